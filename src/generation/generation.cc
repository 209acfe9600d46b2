#include "generation/generation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "generation/log_probabilities.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

Status not_a_number() {
  return data_loss("the model's output is NaN; the file is damaged");
}

// `mask`: of the grammar; empty: there is none.
Status nothing_to_draw(std::span<const float> logits, TokenMask mask) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isnan(logit); })) return not_a_number();
  if (!mask.empty() && std::ranges::all_of(mask, [](std::uint64_t bits) { return bits == 0; }))
    return invalid_argument(
               "no token of the model's vocabulary continues the text as its grammar or schema demands; change that, "
               "or "
               "use a model with other tokens")
        .about({"grammar"});
  return invalid_argument(
             "no token may follow: allowed_token_ids, bad_words and min_tokens together exclude every one; allow more")
      .about({"allowed_token_ids"});
}

// REQUIRES: no string is empty.
std::vector<std::string> all_stops(const GenerateOptions& options, std::span<const std::string> template_stops) {
  if (!options.forced_texts.empty()) return {};
  std::vector<std::string> stops = options.stop;
  stops.insert(stops.end(), template_stops.begin(), template_stops.end());
  for (const std::string& stop : stops) KVASIR_CHECK(!stop.empty());
  return stops;
}

bool is_token(const Tokenizer& tokenizer, TokenId token) {
  return token >= 0 && static_cast<std::size_t>(token) < tokenizer.vocabulary().pieces.size();
}

// Checks a state as a whole; sampler, matcher and stream check their own parts.
Status check(const Tokenizer& tokenizer, const GenerationState& state) {
  const auto damaged = [](const char* what) { return data_loss("the state of a generation is damaged: {}", what); };
  const std::int64_t pending = state.pending ? 1 : 0;
  if (state.max_tokens < -1 || state.tokens < 0 || (state.max_tokens >= 0 && state.tokens > state.max_tokens - pending))
    return damaged("its number of tokens is outside of its limit");
  for (const std::string& stop : state.stops)
    if (stop.empty()) return damaged("a stop string is empty");
  if (find_invalid_utf8(state.text)) return damaged("its text is not valid UTF-8");
  if (state.shown_stops > state.stops.size()) return damaged("it shows more stop strings than it has");
  if (!state.forced.empty() &&
      (state.sample >= state.forced.size() || state.max_tokens != std::ssize(state.forced[state.sample])))
    return damaged("its forced text has another length");
  for (const std::vector<TokenId>& text : state.forced)
    if (!std::ranges::all_of(text, [&](TokenId token) { return is_token(tokenizer, token); }))
      return damaged("a forced token is not in the vocabulary");
  for (const std::optional<TokenId>& token : {state.pending, state.end_token, state.stop_token})
    if (token && !is_token(tokenizer, *token)) return damaged("a token is not in the vocabulary");
  if (state.finish_reason &&
      (*state.finish_reason < FinishReason::kEnd || *state.finish_reason > FinishReason::kCancelled))
    return damaged("its finish reason is unknown");
  if (state.pending && state.undrawn == std::array<std::uint64_t, 4>{})
    return damaged("the generator's words before its newest draw are all zero");
  if (state.pending && state.finish_reason) return damaged("it has finished, but has a token to run");
  if (state.logprobs < -1 || state.logprobs > kMostLogprobs ||
      std::ssize(state.choices) != (state.logprobs < 0 ? 0 : state.tokens + pending))
    return damaged("the log-probabilities are not those of its tokens");
  if (state.end_token.has_value() != (state.finish_reason == FinishReason::kEnd))
    return damaged("its end token and its finish reason disagree");
  if (state.end_token && !tokenizer.is_end(*state.end_token)) return damaged("its end token ends nothing");
  if (state.stop_token && state.finish_reason != FinishReason::kStop)
    return damaged("its stop token and its finish reason disagree");
  if (state.end_choice.has_value() != ((state.end_token || state.stop_token) && state.logprobs >= 0))
    return damaged("its end token and the log-probability of that disagree");
  // The flush may complete a stop string too, after the generation has finished for another reason.
  const bool stopped = state.finish_reason == FinishReason::kStop && !state.stop_token && !state.grammar_ended;
  if (stopped != state.matcher.stopped && (stopped || !state.finish_reason))
    return damaged("its stop string and its finish reason disagree");
  return {};
}

Status check_bad_words(std::span<const std::string> words) {
  if (words.size() > kMostBadWords)
    return invalid_argument("bad_words has {} words; it may have {}", words.size(), kMostBadWords).about({"bad_words"});
  for (const std::string& word : words) {
    if (word.find_first_not_of(' ') == std::string::npos)
      return invalid_argument("an empty word in bad_words would exclude nothing; remove it").about({"bad_words"});
    if (word.size() > kLongestBadWord)
      return invalid_argument("a word in bad_words has {} bytes; it may have {}", word.size(), kLongestBadWord)
          .about({"bad_words"});
    if (const Status status = check_utf8(word, 0, "a word in bad_words"); !status.ok())
      return Status(status).about({"bad_words"});
  }
  return {};
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd: return "end";
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kContext: return "context";
    case FinishReason::kKvMemory: return "kv_memory";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kFailed: return "failed";
  }
  return "?";
}

std::string token_name(std::string_view bytes) {
  if (!find_invalid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

namespace {

std::int64_t longest_forced(const GenerateOptions& options) {
  std::size_t longest = 0;
  for (const std::vector<TokenId>& text : options.forced_texts) longest = std::max(longest, text.size());
  return static_cast<std::int64_t>(longest);
}

Status check_forced(const GenerateOptions& options) {
  if (options.forced_texts.empty()) return {};
  if (std::ranges::any_of(options.forced_texts, [](const auto& text) { return text.empty(); }))
    return invalid_argument("a forced text has no tokens").about({"forced_texts"});
  const std::int64_t longest = longest_forced(options);
  if (longest > kMostGenerated || (options.max_tokens >= 0 && options.max_tokens != longest))
    return invalid_argument("max_tokens={} with a forced text of {} tokens; give -1 or their number, at most {}",
                            options.max_tokens, longest, kMostGenerated)
        .about({"max_tokens"});
  if (!options.stop.empty() || !options.stop_tokens.empty() || options.min_tokens > 0 ||
      !options.allowed_tokens.empty() || !options.bad_words.empty() || options.grammar != nullptr ||
      options.thoughts != nullptr)
    return invalid_argument(
               "forced texts are whole: stop strings, stop tokens, limits of tokens, a grammar and thoughts have no "
               "place beside them")
        .about({"forced_texts"});
  return {};
}

}  // namespace

Status validate(const GenerateOptions& options) {
  KVASIR_RETURN_IF_ERROR(validate(options.sampling));
  if (options.max_tokens < -1)
    return invalid_argument("max_tokens={} is below -1 (no limit)", options.max_tokens).about({"max_tokens"});
  if (options.max_tokens > kMostGenerated)
    return invalid_argument("max_tokens={} is above {}; give -1 for no limit", options.max_tokens, kMostGenerated)
        .about({"max_tokens"});
  if (options.thought_budget < -1 || options.thought_budget > kMostGenerated)
    return invalid_argument("thought_budget={} is outside -1 (no limit) to {}", options.thought_budget, kMostGenerated)
        .about({"thought_budget"});
  if (options.stop.size() > kMostStops)
    return invalid_argument("there are {} stop strings; there may be {}", options.stop.size(), kMostStops)
        .about({"stop"});
  for (const std::string& stop : options.stop) {
    if (stop.empty()) return invalid_argument("an empty stop string would end every text; remove it").about({"stop"});
    if (stop.size() > kLongestStop)
      return invalid_argument("a stop string has {} bytes; it may have {}", stop.size(), kLongestStop).about({"stop"});
  }
  for (const int count : {options.logprobs, options.prompt_logprobs})
    if (count < -1 || count > kMostLogprobs)
      return invalid_argument("logprobs={} is outside 0 to {} (-1: none)", count, kMostLogprobs).about({"logprobs"});
  if (options.min_tokens < 0 || (options.max_tokens >= 0 && options.min_tokens > options.max_tokens))
    return invalid_argument("min_tokens={} is outside 0 to max_tokens={}", options.min_tokens, options.max_tokens)
        .about({"min_tokens"});
  if (options.stop_tokens.size() > kMostStopTokens)
    return invalid_argument("stop_token_ids has {} tokens; it may have {}", options.stop_tokens.size(), kMostStopTokens)
        .about({"stop_token_ids"});
  if (options.allowed_tokens.size() > kMostAllowedTokens)
    return invalid_argument("allowed_token_ids has {} tokens; it may have {}", options.allowed_tokens.size(),
                            kMostAllowedTokens)
        .about({"allowed_token_ids"});
  if (const Status forced = check_forced(options); !forced.ok()) return forced;
  KVASIR_RETURN_IF_ERROR(parse_draft(options.draft).status());
  return check_bad_words(options.bad_words);
}

Status validate(const GenerateOptions& options, int vocabulary) {
  KVASIR_RETURN_IF_ERROR(validate(options));
  const auto check = [&](const char* name, TokenId token) {
    if (token >= 0 && token < vocabulary) return Status();
    return invalid_argument("{} names token {}, outside the vocabulary of {}", name, token, vocabulary).about({name});
  };
  for (const auto& [token, bias] : options.sampling.logit_bias) KVASIR_RETURN_IF_ERROR(check("logit_bias", token));
  for (const TokenId token : options.stop_tokens) KVASIR_RETURN_IF_ERROR(check("stop_token_ids", token));
  for (const TokenId token : options.allowed_tokens) KVASIR_RETURN_IF_ERROR(check("allowed_token_ids", token));
  for (const std::vector<TokenId>& text : options.forced_texts)
    for (const TokenId token : text) KVASIR_RETURN_IF_ERROR(check("forced_texts", token));
  if (options.thoughts != nullptr) {
    if (options.thoughts->open.empty() || options.thoughts->closes.empty() ||
        std::ranges::count(options.thoughts->closes, "") > 0)
      return invalid_argument("a mark of thoughts is empty; take the marks from encode_prompt").about({"thoughts"});
    for (const auto* closing : {&options.thoughts->closing, &options.thoughts->closing_again})
      for (const TokenId token : *closing) KVASIR_RETURN_IF_ERROR(check("thoughts", token));
  }
  if (options.grammar == nullptr) return {};
  if (options.grammar->trie().vocabulary() != static_cast<std::size_t>(vocabulary))
    return invalid_argument("the grammar was compiled for another model").about({"grammar"});
  if (options.ignore_eos)
    return invalid_argument("a grammar says where its text ends, so ignore_eos has no place there; leave it out")
        .about({"ignore_eos"});
  return {};
}

Status check_forced_texts(const GenerateOptions& options, int samples) {
  const std::size_t forced = options.forced_texts.size();
  if (forced == 0 || forced == static_cast<std::size_t>(samples)) return {};
  return invalid_argument("there are {} forced texts for {} samples; give one for each", forced, samples)
      .about({"forced_texts"});
}

Generation::Generation(const Tokenizer& tokenizer, Parts parts)
    : tokenizer_(&tokenizer),
      sampler_(std::move(parts.sampler)),
      limits_(std::move(parts.limits)),
      matcher_(std::move(parts.matcher)),
      stream_(std::move(parts.stream)) {}

Generation::Generation(const Tokenizer& tokenizer, const GenerateOptions& options,
                       std::span<const std::string> template_stops, std::span<const TokenId> newest)
    : Generation(tokenizer,
                 {Sampler(options.sampling), TokenLimits(tokenizer, options),
                  StopMatcher(all_stops(options, template_stops), options.include_stop ? options.stop.size() : 0),
                  TokenStream(tokenizer, false)}) {
  KVASIR_CHECK(validate(options).ok());
  forced_ = options.forced_texts;
  max_tokens_ = forced_.empty() ? options.max_tokens : std::ssize(forced_.front());
  ignore_eos_ = options.ignore_eos;
  show_special_ = options.show_special;
  logprobs_ = options.logprobs;
  if (const auto draft = parse_draft(options.draft); *draft) drafting_.emplace(**draft);
  if (options.grammar != nullptr) grammar_.emplace(options.grammar);
  if (options.thoughts != nullptr) thoughts_.emplace(options.thoughts, options.thought_budget);
  for (const TokenId token : newest) observe(token);
}

void Generation::observe(TokenId token) {
  sampler_.observe(token, sampler_.watches_repetitions() &&
                              tokenizer_->bytes_of(token).find_first_of("\n\":*") != std::string::npos);
}

Result<Generation> Generation::from_state(const Tokenizer& tokenizer, GenerationState state) {
  KVASIR_RETURN_IF_ERROR(check(tokenizer, state));
  KVASIR_ASSIGN_OR_RETURN(Sampler sampler, Sampler::from_state(state.sampler));
  KVASIR_ASSIGN_OR_RETURN(TokenLimits limits, TokenLimits::from_state(tokenizer, std::move(state.limits)));
  KVASIR_ASSIGN_OR_RETURN(StopMatcher matcher,
                          StopMatcher::from_state(std::move(state.stops), std::move(state.matcher), state.shown_stops));
  KVASIR_ASSIGN_OR_RETURN(TokenStream stream, TokenStream::from_state(tokenizer, std::move(state.stream)));
  Generation generation(tokenizer, {std::move(sampler), std::move(limits), std::move(matcher), std::move(stream)});
  generation.max_tokens_ = state.max_tokens;
  generation.ignore_eos_ = state.ignore_eos;
  generation.show_special_ = state.show_special;
  generation.forced_ = std::move(state.forced);
  generation.sample_ = state.sample;
  generation.text_ = std::move(state.text);
  generation.tokens_ = state.tokens;
  generation.pending_ = state.pending;
  generation.undrawn_ = state.undrawn;
  generation.finish_reason_ = state.finish_reason;
  generation.end_token_ = state.end_token;
  generation.stop_token_ = state.stop_token;
  generation.logprobs_ = state.logprobs;
  generation.choices_ = std::move(state.choices);
  generation.end_choice_ = std::move(state.end_choice);
  generation.grammar_ = std::move(state.grammar);
  generation.grammar_ended_ = state.grammar_ended;
  generation.thoughts_ = std::move(state.thoughts);
  return generation;
}

GenerationState Generation::state() const {
  return {max_tokens_,     ignore_eos_,      show_special_, matcher_.stops(), matcher_.shown(),
          limits_.state(), sampler_.state(), undrawn_,      matcher_.state(), stream_.state(),
          text_,           tokens_,          pending_,      finish_reason_,   end_token_,
          stop_token_,     logprobs_,        choices_,      end_choice_,      grammar_,
          grammar_ended_,  thoughts_,        forced_,       sample_};
}

Generation Generation::lookahead() const {
  Generation copy(*tokenizer_, {sampler_, limits_, matcher_, stream_});
  copy.max_tokens_ = max_tokens_;
  copy.ignore_eos_ = ignore_eos_;
  copy.show_special_ = show_special_;
  copy.forced_ = forced_;
  copy.sample_ = sample_;
  copy.tokens_ = tokens_;
  copy.pending_ = pending_;
  copy.undrawn_ = undrawn_;
  copy.finish_reason_ = finish_reason_;
  copy.grammar_ = grammar_;
  copy.grammar_ended_ = grammar_ended_;
  copy.thoughts_ = thoughts_;
  return copy;
}

std::size_t Generation::allowed_by_grammar(std::span<const TokenId> tokens) const {
  if (!grammar_ || tokens.empty()) return tokens.size();
  GrammarMatcher place = *grammar_;
  if (!place.accept(*pending_).ok()) return 0;
  const auto refused = std::ranges::find_if(tokens, [&](TokenId token) { return !place.accept(token).ok(); });
  return static_cast<std::size_t>(refused - tokens.begin());
}

Result<std::optional<TokenId>> Generation::push(std::span<const float> logits) {
  KVASIR_CHECK(!pending_);
  if (finished()) return std::optional<TokenId>();
  if (max_tokens_ >= 0 && tokens_ >= max_tokens_) {
    settle(FinishReason::kLength);
    return std::optional<TokenId>();
  }
  undrawn_ = sampler_.random();
  TokenId token = due();
  if (!forced_.empty()) {
    token = forced_[sample_][static_cast<std::size_t>(tokens_)];
    if (std::isnan(logits[static_cast<std::size_t>(token)])) return not_a_number();
  }
  if (token == kNoToken) {
    KVASIR_ASSIGN_OR_RETURN(token, draw(logits));
  }
  if (token == kNoToken) {
    grammar_ended_ = true;
    settle(FinishReason::kStop);
    return std::optional<TokenId>();
  }
  const bool stops = limits_.stops(token);
  const bool ends = stops || (!ignore_eos_ && forced_.empty() && tokenizer_->is_end(token));
  if (logprobs_ >= 0) {
    try {
      GeneratedToken choice = describe(logits, token, logprobs_);
      if (ends) {
        end_choice_ = std::move(choice);
      } else {
        choices_.push_back(std::move(choice));
      }
    } catch (...) {  // another push() draws the same token
      sampler_.set_random(undrawn_);
      throw;
    }
  }
  if (ends) {
    (stops ? stop_token_ : end_token_) = token;
    settle(stops ? FinishReason::kStop : FinishReason::kEnd);
    return std::optional<TokenId>();
  }
  pending_ = token;
  return pending_;
}

// Returns kNoToken where the grammar's text is complete, nothing can follow it, and no end token may be drawn.
Result<TokenId> Generation::draw(std::span<const float> logits) {
  std::shared_ptr<const std::vector<std::uint64_t>> mask;
  if (grammar_) {
    KVASIR_ASSIGN_OR_RETURN(mask, grammar_->mask());
  }
  const TokenMask of_grammar = mask != nullptr ? TokenMask(*mask) : TokenMask();
  const TokenId token = sampler_.sample(logits, limits_.allowed(tokens_, of_grammar));
  if (token == kNoToken && !(grammar_ && grammar_->finished())) return nothing_to_draw(logits, of_grammar);
  return token;
}

// Returns the token that ends thoughts which have used up their budget; kNoToken: none, or the grammar has no place for
// all of those tokens.
TokenId Generation::due() const {
  if (!thoughts_) return kNoToken;
  const TokenId due = thoughts_->due(stream_.mid_character());
  if (due == kNoToken || !grammar_ || thoughts_->closing()) return due;
  GrammarMatcher place = *grammar_;
  const auto fits = [&place](TokenId token) { return place.accept(token).ok(); };
  return std::ranges::all_of(thoughts_->closing_tokens(), fits) ? due : kNoToken;
}

GeneratedToken Generation::describe(std::span<const float> logits, TokenId token, int likeliest) const {
  const auto choice = [&](TokenId id, double log_probability, std::int64_t rank) {
    return TokenChoice{id, tokenizer_->bytes_of(id, true), log_probability, rank};
  };
  GeneratedToken generated{choice(token, log_probability(logits, token), rank_of(logits, token)), {}, false};
  generated.hidden = tokenizer_->bytes_of(token).empty() || is_marker(tokenizer_->vocabulary(), token);
  for (const TokenLogProbability& likely : top_log_probabilities(logits, likeliest))
    generated.likeliest.push_back(choice(likely.token, likely.log_probability, std::ssize(generated.likeliest) + 1));
  return generated;
}

std::vector<TokenId> Generation::forced(std::size_t most) {
  KVASIR_CHECK(!pending_);
  if (!grammar_ || finished() || logprobs_ >= 0 || !matcher_.stops().empty() || !limits_.allowed(tokens_, {}).empty())
    return {};
  if (due() != kNoToken) return {};
  if (max_tokens_ >= 0)
    most = std::min(most, static_cast<std::size_t>(std::max<std::int64_t>(max_tokens_ - tokens_, 0)));
  return forced_tokens(*grammar_, *tokenizer_, most);
}

void Generation::force(TokenId token) {
  KVASIR_CHECK(!pending_ && !finished());
  undrawn_ = sampler_.random();
  pending_ = token;
}

void Generation::become(std::size_t sample, std::uint64_t seed) {
  sampler_.reseed(seed);
  if (forced_.empty()) return;
  KVASIR_CHECK(tokens_ == 0 && !pending_ && sample < forced_.size());
  // The others' texts are held by the generation that they are copied from.
  forced_ = {std::vector<TokenId>(forced_[sample])};
  sample_ = 0;
  max_tokens_ = std::ssize(forced_.front());
}

std::string Generation::accept(TokenId token) {
  KVASIR_CHECK(pending_ && token == *pending_);
  pending_.reset();
  if (thoughts_) thoughts_->read(tokenizer_->bytes_of(token, true), token == due());
  observe(token);
  limits_.accept(token);
  if (grammar_) KVASIR_CHECK(grammar_->accept(token).ok());
  const bool may_stop = !limits_.too_few(tokens_);
  ++tokens_;
  // A marker's text is seen only by a stop string that equals it.
  const std::string& piece = tokenizer_->vocabulary().pieces[static_cast<std::size_t>(token)];
  const bool stops = is_marker(tokenizer_->vocabulary(), token) && std::ranges::count(matcher_.stops(), piece) > 0;
  const bool named = show_special_ && !tokenizer_->is_end(token);
  std::string text = named               ? stream_.push_named(token)
                     : may_stop && stops ? stream_.push(token)
                                         : stream_.push_shown(token);
  if (may_stop) text = matcher_.push(text);
  text_ += text;
  if (matcher_.stopped()) settle(FinishReason::kStop);
  return text;
}

void Generation::finish(FinishReason reason) {
  KVASIR_CHECK(reason != FinishReason::kEnd && reason != FinishReason::kStop && reason != FinishReason::kFailed);
  settle(reason);
}

void Generation::settle(FinishReason reason) {
  if (finished()) return;
  finish_reason_ = reason;
  if (pending_) sampler_.set_random(undrawn_);
  if (pending_ && logprobs_ >= 0) choices_.pop_back();
  pending_.reset();
}

std::string Generation::flush() {
  KVASIR_CHECK(finished());
  if (matcher_.stopped() || *finish_reason_ == FinishReason::kCancelled) return {};
  std::string text = matcher_.push(stream_.flush());
  if (text.empty()) text = matcher_.flush();
  text_ += text;
  return text;
}

GenerateResult Generation::result() const {
  GenerateResult result;
  result.text = text_;
  result.choices = choices_;
  result.end_choice = end_choice_;
  result.stop_token = stop_token_;
  result.tokens = tokens_;
  result.thought_tokens = thought_tokens();
  result.finish_reason = finish_reason_.value_or(FinishReason::kFailed);
  result.stopped_by = matcher_.found();
  if (drafting_)
    result.draft = DraftReport{drafting_->drafted(), drafting_->came_true(), std::string(drafting_->why_none())};
  return result;
}

}  // namespace kvasir
