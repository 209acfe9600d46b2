#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostSteps = 20'000'000;  // of one mask

using Configurations = grammar::Configurations;

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->mutex_);
  space_ = grammar_->space();
  space_->configurations.grant(kMostSteps);
  move_to(space_->configurations.start());
}

void GrammarMatcher::move_to(Configurations::Id id) {
  at_ = id;
  complete_ = id != Configurations::kNone && space_->configurations[id].complete;
}

void GrammarMatcher::enter_newest_space() {
  const std::shared_ptr<Grammar::Space> newest = grammar_->space();
  if (newest == space_) return;
  at_ = newest->configurations.import(space_->configurations, at_);
  space_ = newest;
}

Status GrammarMatcher::exhausted_error() {
  return exhausted("the grammar is too ambiguous: too many of its rules match the text so far; make it simpler");
}

Result<std::shared_ptr<const grammar::TokenBits>> GrammarMatcher::mask() {
  const std::lock_guard lock(grammar_->mutex_);
  enter_newest_space();
  if (at_ == Configurations::kNone) return exhausted_error();
  const auto [found, added] = space_->masks.try_emplace(at_);
  if (!added) return found->second;
  space_->configurations.grant(kMostSteps);
  found->second = std::make_shared<const grammar::TokenBits>(
      make_mask(space_->configurations, at_, *grammar_->trie_, grammar_->interiors_));
  if (!space_->configurations.exhausted()) return found->second;
  space_->masks.erase(found);
  return exhausted_error();
}

Status GrammarMatcher::accept(TokenId token) {
  const std::lock_guard lock(grammar_->mutex_);
  enter_newest_space();
  Configurations& configurations = space_->configurations;
  configurations.grant(kMostSteps);
  Configurations::Id id = at_;
  const std::string_view bytes = grammar_->trie_->bytes_of(token);
  if (bytes.empty()) return invalid_argument("token {} has no text, so no grammar allows it", token);
  for (const char c : bytes) {
    if (id == Configurations::kNone) break;
    id = configurations.step(id, configurations.machine().class_of[static_cast<std::uint8_t>(c)]);
  }
  if (configurations.exhausted()) return exhausted_error();
  if (id == Configurations::kNone) return invalid_argument("the grammar does not allow token {} here", token);
  move_to(id);
  return {};
}

bool GrammarMatcher::finished() {
  const std::lock_guard lock(grammar_->mutex_);
  enter_newest_space();
  return at_ == Configurations::kNone || space_->configurations[at_].items.empty();
}

std::string GrammarMatcher::forced(std::size_t most) {
  const std::lock_guard lock(grammar_->mutex_);
  enter_newest_space();
  Configurations& configurations = space_->configurations;
  configurations.grant(kMostSteps);
  const grammar::Machine& machine = configurations.machine();
  std::string bytes;
  for (Configurations::Id id = at_; id != Configurations::kNone && bytes.size() < most;) {
    if (configurations[id].complete) break;
    int choices = 0;
    char only = 0;
    Configurations::Id to = Configurations::kNone;
    for (int byte = 0; byte < 256 && choices < 2; ++byte) {
      const Configurations::Id next = configurations.step(id, machine.class_of[static_cast<std::size_t>(byte)]);
      if (next == Configurations::kNone) continue;
      ++choices;
      only = static_cast<char>(byte);
      to = next;
    }
    if (choices != 1 || configurations.exhausted()) break;
    bytes += only;
    id = to;
  }
  if (const std::size_t control = bytes.rfind(static_cast<char>(grammar::kControlByte));
      control != std::string::npos && control + 4 > bytes.size())
    bytes.resize(control);
  return bytes;
}

std::vector<TokenId> forced_tokens(GrammarMatcher& matcher, const Tokenizer& tokenizer, std::size_t most) {
  constexpr std::size_t kMostForcedBytes = 128;
  const std::string bytes = matcher.forced(kMostForcedBytes);
  const std::size_t control = bytes.find(static_cast<char>(grammar::kControlByte));
  if (bytes.empty() || most == 0) return {};
  if (control == 0) {
    TokenId token = 0;
    for (std::size_t i = 1; i < 4; ++i) token = token * 256 + static_cast<unsigned char>(bytes[i]);
    return {token};
  }
  std::string text = bytes.substr(0, control);
  if (control == std::string::npos) text.resize(std::min(text.size(), find_invalid_utf8(text).value_or(text.size())));
  Result<std::vector<TokenId>> tokens = tokenizer.encode(text, {.add_special = false, .continues = true});
  if (!tokens.ok()) return {};
  if (control == std::string::npos && !tokens->empty()) tokens->pop_back();
  std::size_t at = 0;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const std::string_view own = matcher.grammar().trie().bytes_of((*tokens)[i]);
    if (own.empty() || i == most || text.compare(at, own.size(), own) != 0) {
      tokens->resize(i);
      break;
    }
    at += own.size();
  }
  return std::move(*tokens);
}

}  // namespace kvasir
