#include "generation/generation.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "generation/log_probabilities.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr int kMostLogprobs = 100;

// REQUIRES: no string is empty.
std::vector<std::string> all_stops(const GenerateOptions& options, std::span<const std::string> template_stops) {
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
  for (const std::optional<TokenId>& token : {state.pending, state.end_token})
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
  if (state.end_choice.has_value() != (state.end_token && state.logprobs >= 0))
    return damaged("its end token and the log-probability of that disagree");
  // The flush may complete a stop string too, after the generation has finished for another reason.
  const bool stopped = state.finish_reason == FinishReason::kStop;
  if (stopped != state.matcher.stopped && (stopped || !state.finish_reason))
    return damaged("its stop string and its finish reason disagree");
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

Status validate(const GenerateOptions& options) {
  KVASIR_RETURN_IF_ERROR(validate(options.sampling));
  if (options.max_tokens < -1)
    return invalid_argument("max_tokens={} is below -1 (no limit)", options.max_tokens).about({"max_tokens"});
  for (const std::string& stop : options.stop)
    if (stop.empty()) return invalid_argument("an empty stop string would end every text; remove it").about({"stop"});
  for (const int count : {options.logprobs, options.prompt_logprobs})
    if (count < -1 || count > kMostLogprobs)
      return invalid_argument("logprobs={} is outside 0 to {} (-1: none)", count, kMostLogprobs).about({"logprobs"});
  return {};
}

Generation::Generation(const Tokenizer& tokenizer, Parts parts)
    : tokenizer_(&tokenizer),
      sampler_(std::move(parts.sampler)),
      matcher_(std::move(parts.matcher)),
      stream_(std::move(parts.stream)) {}

Generation::Generation(const Tokenizer& tokenizer, const GenerateOptions& options,
                       std::span<const std::string> template_stops, std::span<const TokenId> newest)
    : Generation(tokenizer, {Sampler(options.sampling), StopMatcher(all_stops(options, template_stops)),
                             TokenStream(tokenizer, false)}) {
  KVASIR_CHECK(validate(options).ok());
  max_tokens_ = options.max_tokens;
  ignore_eos_ = options.ignore_eos;
  show_special_ = options.show_special;
  logprobs_ = options.logprobs;
  for (const TokenId token : newest) observe(token);
}

void Generation::observe(TokenId token) {
  sampler_.observe(token, sampler_.watches_repetitions() &&
                              tokenizer_->bytes_of(token).find_first_of("\n\":*") != std::string::npos);
}

Result<Generation> Generation::from_state(const Tokenizer& tokenizer, GenerationState state) {
  KVASIR_RETURN_IF_ERROR(check(tokenizer, state));
  KVASIR_ASSIGN_OR_RETURN(Sampler sampler, Sampler::from_state(state.sampler));
  KVASIR_ASSIGN_OR_RETURN(StopMatcher matcher,
                          StopMatcher::from_state(std::move(state.stops), std::move(state.matcher)));
  KVASIR_ASSIGN_OR_RETURN(TokenStream stream, TokenStream::from_state(tokenizer, std::move(state.stream)));
  Generation generation(tokenizer, {std::move(sampler), std::move(matcher), std::move(stream)});
  generation.max_tokens_ = state.max_tokens;
  generation.ignore_eos_ = state.ignore_eos;
  generation.show_special_ = state.show_special;
  generation.text_ = std::move(state.text);
  generation.tokens_ = state.tokens;
  generation.pending_ = state.pending;
  generation.undrawn_ = state.undrawn;
  generation.finish_reason_ = state.finish_reason;
  generation.end_token_ = state.end_token;
  generation.logprobs_ = state.logprobs;
  generation.choices_ = std::move(state.choices);
  generation.end_choice_ = std::move(state.end_choice);
  return generation;
}

GenerationState Generation::state() const {
  return {max_tokens_,      ignore_eos_,     show_special_, matcher_.stops(), sampler_.state(), undrawn_,
          matcher_.state(), stream_.state(), text_,         tokens_,          pending_,         finish_reason_,
          end_token_,       logprobs_,       choices_,      end_choice_};
}

Result<std::optional<TokenId>> Generation::push(std::span<const float> logits) {
  KVASIR_CHECK(!pending_);
  if (finished()) return std::optional<TokenId>();
  if (max_tokens_ >= 0 && tokens_ >= max_tokens_) {
    settle(FinishReason::kLength);
    return std::optional<TokenId>();
  }
  undrawn_ = sampler_.random();
  const TokenId token = sampler_.sample(logits);
  if (token == kNoToken) return data_loss("the model's output is NaN; the file is damaged");
  const bool ends = !ignore_eos_ && tokenizer_->is_end(token);
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
    end_token_ = token;
    settle(FinishReason::kEnd);
    return std::optional<TokenId>();
  }
  pending_ = token;
  return pending_;
}

GeneratedToken Generation::describe(std::span<const float> logits, TokenId token, int likeliest) const {
  const auto choice = [&](TokenId id, double log_probability) {
    return TokenChoice{id, tokenizer_->bytes_of(id, true), log_probability};
  };
  GeneratedToken generated{choice(token, log_probability(logits, token)), {}, false};
  generated.hidden = tokenizer_->bytes_of(token).empty() || is_marker(tokenizer_->vocabulary(), token);
  for (const TokenLogProbability& likely : top_log_probabilities(logits, likeliest))
    generated.likeliest.push_back(choice(likely.token, likely.log_probability));
  return generated;
}

std::string Generation::accept(TokenId token) {
  KVASIR_CHECK(pending_ && token == *pending_);
  pending_.reset();
  observe(token);
  ++tokens_;
  // A marker's text is seen only by a stop string that equals it.
  const std::string& piece = tokenizer_->vocabulary().pieces[static_cast<std::size_t>(token)];
  const bool stops = is_marker(tokenizer_->vocabulary(), token) && std::ranges::count(matcher_.stops(), piece) > 0;
  const bool named = show_special_ && !tokenizer_->is_end(token);
  std::string text = matcher_.push(named   ? stream_.push_named(token)
                                   : stops ? stream_.push(token)
                                           : stream_.push_shown(token));
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
  if (*finish_reason_ == FinishReason::kStop || *finish_reason_ == FinishReason::kCancelled) return {};
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
  result.tokens = tokens_;
  result.finish_reason = finish_reason_.value_or(FinishReason::kFailed);
  return result;
}

}  // namespace kvasir
