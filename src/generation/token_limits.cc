#include "generation/token_limits.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::size_t kBits = 64;

// Returns the tokens of a bad word as it begins a text, and, if that is another token of the same length, as it follows
// a space: the forms that vLLM bans.
std::vector<std::vector<TokenId>> forms_of(const Tokenizer& tokenizer, std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  std::vector<std::vector<TokenId>> forms;
  for (const std::string& text : {std::string(word), " " + std::string(word)}) {
    Result<std::vector<TokenId>> tokens = tokenizer.encode(text, {.add_special = false});
    if (!tokens.ok()) throw std::bad_alloc();  // validate() has checked the text
    if (tokens->empty()) continue;
    if (!forms.empty() && (tokens->front() == forms[0].front() || tokens->size() != forms[0].size())) continue;
    forms.push_back(std::move(*tokens));
  }
  return forms;
}

std::vector<TokenId> ends_of(const Tokenizer& tokenizer) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  std::vector<TokenId> ends = vocabulary.ends;
  for (const std::optional<TokenId>& token : {vocabulary.eos, vocabulary.eot})
    if (token) ends.push_back(*token);
  std::sort(ends.begin(), ends.end());
  return ends;
}

}  // namespace

TokenLimits::TokenLimits(const Tokenizer& tokenizer, const GenerateOptions& options)
    : vocabulary_(tokenizer.vocabulary().pieces.size()) {
  state_.min_tokens = options.min_tokens;
  state_.stop_tokens = options.stop_tokens;
  std::sort(state_.stop_tokens.begin(), state_.stop_tokens.end());
  if (options.min_tokens > 0 && !options.ignore_eos) state_.ends = ends_of(tokenizer);
  if (!options.allowed_tokens.empty()) state_.allowed.resize((vocabulary_ + kBits - 1) / kBits);
  for (const TokenId token : options.allowed_tokens) {
    KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < vocabulary_);
    state_.allowed[static_cast<std::size_t>(token) / kBits] |= std::uint64_t{1}
                                                               << (static_cast<std::size_t>(token) % kBits);
  }
  for (const std::string& word : options.bad_words)
    for (std::vector<TokenId>& form : forms_of(tokenizer, word)) state_.bad_words.push_back(std::move(form));
  find_longest();
}

void TokenLimits::find_longest() {
  for (const std::vector<TokenId>& word : state_.bad_words) longest_ = std::max(longest_, word.size());
}

Result<TokenLimits> TokenLimits::from_state(const Tokenizer& tokenizer, TokenLimitsState state) {
  const auto damaged = [](const char* what) { return data_loss("the limits of a generation are damaged: {}", what); };
  TokenLimits limits(tokenizer.vocabulary().pieces.size());
  const auto is_token = [&](TokenId token) {
    return token >= 0 && static_cast<std::size_t>(token) < limits.vocabulary_;
  };
  const auto are_tokens = [&](std::span<const TokenId> tokens) { return std::ranges::all_of(tokens, is_token); };
  if (state.min_tokens < 0) return damaged("the least number of tokens is negative");
  if (!are_tokens(state.stop_tokens) || !are_tokens(state.ends) || !are_tokens(state.newest))
    return damaged("a token is not in the vocabulary");
  if (!std::ranges::is_sorted(state.stop_tokens) || !std::ranges::is_sorted(state.ends))
    return damaged("tokens are not in order");
  for (const std::vector<TokenId>& word : state.bad_words)
    if (word.empty() || !are_tokens(word)) return damaged("a bad word is none");
  if (!state.allowed.empty() && state.allowed.size() != (limits.vocabulary_ + kBits - 1) / kBits)
    return damaged("the allowed tokens are not those of the vocabulary");
  limits.state_ = std::move(state);
  limits.find_longest();
  if (limits.state_.newest.size() > (limits.longest_ > 0 ? limits.longest_ - 1 : 0))
    return damaged("it holds more tokens than a bad word has");
  return limits;
}

TokenMask TokenLimits::allowed(std::int64_t tokens, TokenMask others) {
  excluded_.clear();
  if (too_few(tokens)) {
    excluded_ = state_.ends;
    excluded_.insert(excluded_.end(), state_.stop_tokens.begin(), state_.stop_tokens.end());
  }
  for (const std::vector<TokenId>& word : state_.bad_words) {
    const std::span<const TokenId> start = std::span(word).first(word.size() - 1);
    if (start.size() <= state_.newest.size() && std::equal(start.rbegin(), start.rend(), state_.newest.rbegin()))
      excluded_.push_back(word.back());
  }
  if (excluded_.empty() && state_.allowed.empty()) return others;
  if (excluded_.empty() && others.empty()) return state_.allowed;
  if (state_.allowed.empty()) {
    mask_.assign((vocabulary_ + kBits - 1) / kBits, ~std::uint64_t{0});
  } else {
    mask_ = state_.allowed;
  }
  if (!others.empty())
    for (std::size_t word = 0; word < mask_.size(); ++word) mask_[word] &= word < others.size() ? others[word] : 0;
  for (const TokenId token : excluded_)
    mask_[static_cast<std::size_t>(token) / kBits] &= ~(std::uint64_t{1} << (static_cast<std::size_t>(token) % kBits));
  return mask_;
}

void TokenLimits::accept(TokenId token) {
  if (longest_ < 2) return;
  if (state_.newest.size() == longest_ - 1) state_.newest.erase(state_.newest.begin());
  state_.newest.push_back(token);
}

bool TokenLimits::stops(TokenId token) const {
  return std::binary_search(state_.stop_tokens.begin(), state_.stop_tokens.end(), token);
}

}  // namespace kvasir
