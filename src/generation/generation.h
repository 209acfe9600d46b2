// Continues one request without running the model: takes logits, returns the next token and text.
//
//   Generation generation(tokenizer, options, stops, newest);
//   while (const std::optional<TokenId> token = *generation.push(logits)) {
//     ... run the token to get the next logits, or call generation.finish(kContext or kKvMemory) if it cannot run
//     show(generation.accept(*token));  // or generation.finish(kCancelled) if the caller has gone
//   }
//   for (std::string text = generation.flush(); !text.empty(); text = generation.flush()) show(text);
//
// A generation may be suspended at any point, even between choosing a token and running it: state() and from_state()
// continue it with the same tokens and text. Copies continue independently (parallel samples).
// Thread-safety: none. Refers to the tokenizer, which must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generation/drafting.h"
#include "generation/sampler.h"
#include "generation/stop_matcher.h"
#include "generation/thought_meter.h"
#include "generation/token_limits.h"
#include "generation/token_stream.h"
#include "grammar/matcher.h"
#include "kvasir/finish_reason.h"
#include "kvasir/options.h"
#include "kvasir/result.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// Errors: kInvalidArgument naming the option and what to change.
Status validate(const GenerateOptions& options);
// As validate; also for a token id that is none of `vocabulary` tokens.
Status validate(const GenerateOptions& options, int vocabulary);

// Checks that there is a forced text for each of `samples` samples, if there are any. Errors: kInvalidArgument.
Status check_forced_texts(const GenerateOptions& options, int samples);

// A Generation as plain data.
struct GenerationState {
  std::int64_t max_tokens = -1;
  bool ignore_eos = false;
  bool show_special = false;
  std::vector<std::string> stops;  // those of the options and of the chat template
  std::size_t shown_stops = 0;     // so many of them, from the first, are part of the text
  TokenLimitsState limits;
  SamplerState sampler;
  std::array<std::uint64_t, 4> undrawn{};  // with `pending`: the generator's words before that token was drawn
  StopMatcherState matcher;
  TokenStreamState stream;
  std::string text;
  std::int64_t tokens = 0;
  std::optional<TokenId> pending;  // chosen but not accepted yet
  std::optional<FinishReason> finish_reason;
  std::optional<TokenId> end_token;
  std::optional<TokenId> stop_token;
  int logprobs = -1;
  std::vector<GeneratedToken> choices;       // of the tokens accepted and the pending one; none without logprobs
  std::optional<GeneratedToken> end_choice;  // of end_token or stop_token; none without logprobs
  std::optional<GrammarMatcher> grammar;     // where the text is in its grammar
  bool grammar_ended = false;                // the text is complete, and nothing can follow it
  std::optional<ThoughtMeter> thoughts;
  std::vector<std::vector<TokenId>> forced;  // GenerateOptions::forced_texts
  std::size_t sample = 0;                    // whose text of `forced` this is
};

class Generation {
 public:
  // `template_stops`: further stop strings. `newest`: the newest tokens of the context, oldest first, for penalties.
  // The seed is used as given, including 0. REQUIRES: validate(options, vocabulary).ok(); no string of `template_stops`
  // is empty.
  Generation(const Tokenizer& tokenizer, const GenerateOptions& options, std::span<const std::string> template_stops,
             std::span<const TokenId> newest);

  // Continues where state() was taken. Errors: kDataLoss for a state that no generation of this tokenizer can be in.
  static Result<Generation> from_state(const Tokenizer& tokenizer, GenerationState state);
  GenerationState state() const;

  // Takes the logits [vocabulary] of the newest token. Returns the token to run next, or nullopt once the generation
  // has finished. Checks in this order: an earlier finish, max_tokens (kLength), then the chosen token (kEnd for an end
  // token, kStop for a stop token; neither is run; kStop also where a grammar's text is complete and no end token may
  // be drawn). Where a budget of thoughts is used up, the chosen token is the next of those that close them, and no
  // draw is made. Errors: kDataLoss if all logits are NaN, kInvalidArgument if the options exclude every token; the
  // request cannot continue then. REQUIRES: the token of the last push was accepted.
  Result<std::optional<TokenId>> push(std::span<const float> logits);

  // Reports that the token of the last push was run: counts it, and adds it to the penalties. Returns the text that
  // became complete; may be empty. Finishes with kStop if a stop string is complete. REQUIRES: token == *pending().
  std::string accept(TokenId token);

  // Returns the tokens, at most `most`, that the grammar forces next, whatever the logits: the caller may run them in
  // one pass, with force() and accept() for each. None where their logits or the text between them may matter: for
  // log-probabilities, stop strings and limits of tokens. REQUIRES: nothing is pending.
  std::vector<TokenId> forced(std::size_t most);
  bool has_grammar() const { return grammar_.has_value(); }
  // Makes a token of forced() the pending one, in place of push(). REQUIRES: nothing is pending; not finished.
  void force(TokenId token);

  // Returns a copy that draws as this generation will, given the same logits: for guesses at its next tokens. Its text
  // and choices are those from here on, and it has no drafts.
  Generation lookahead() const;

  // Returns how many of these tokens, from the first on, the grammar allows behind the pending token; all without one.
  // REQUIRES: a token is pending.
  std::size_t allowed_by_grammar(std::span<const TokenId> tokens) const;

  // The drafts of GenerateOptions::draft; null without them. A state() has none.
  Drafting* drafting() { return drafting_ ? &*drafting_ : nullptr; }
  const Drafting* drafting() const { return drafting_ ? &*drafting_ : nullptr; }

  // Finishes from outside, for example with kContext, kKvMemory or kCancelled. Has no effect on a finished generation.
  // Drops a pending token and undoes its draw, so that a continuation from the sampler's state and the same logits
  // draws it again. REQUIRES: reason is none of kEnd, kStop and kFailed.
  void finish(FinishReason reason);

  // Returns the next piece of held-back text, or "" when none is left. After kStop by a stop string and kCancelled
  // always returns "": the text belongs to the stop string, or the caller has gone. REQUIRES: finished.
  std::string flush();

  // Returns what GenerateOptions::logprobs reports of a token. `logits` [vocabulary]: those it was drawn from.
  // `likeliest`: the number of other tokens reported.
  GeneratedToken describe(std::span<const float> logits, TokenId token, int likeliest) const;

  // Makes a copy another sample: restarts the random draws with its seed, and takes its forced text. REQUIRES: nothing
  // was accepted or is pending, if there are forced texts; one of them is the sample's.
  void become(std::size_t sample, std::uint64_t seed);
  // Continues the draws of another generation; the tokens that count for penalties stay.
  void resume(const SamplerState& other) { sampler_.set_random(other.random); }

  bool finished() const { return finish_reason_.has_value(); }
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }
  std::optional<TokenId> end_token() const { return end_token_; }  // chosen by the model; after kEnd only
  std::optional<TokenId> pending() const { return pending_; }      // the token to run, not accepted yet
  std::int64_t tokens() const { return tokens_; }                  // accepted
  // The most tokens that may still be accepted.
  std::int64_t tokens_left() const { return (max_tokens_ < 0 ? kMostGenerated : max_tokens_) - tokens_; }
  std::optional<ThoughtMeter::Span> closed_thoughts() const { return thoughts_ ? thoughts_->closed() : std::nullopt; }
  std::int64_t thought_tokens() const { return thoughts_ ? thoughts_->tokens() : 0; }
  const std::string& text() const { return text_; }  // all that accept() and flush() returned
  // With GenerateOptions::logprobs: one per accepted token, and one for the pending token.
  const std::vector<GeneratedToken>& choices() const { return choices_; }
  const std::optional<GeneratedToken>& end_choice() const { return end_choice_; }  // the token that ended the text

  // Returns text, tokens, choices and finish reason; kFailed where it has not finished.
  GenerateResult result() const;

  // Returns true while the accepted tokens end inside a UTF-8 character that has not been flushed.
  bool mid_character() const { return stream_.mid_character(); }

 private:
  struct Parts {
    Sampler sampler;
    TokenLimits limits;
    StopMatcher matcher;
    TokenStream stream;
  };
  Generation(const Tokenizer& tokenizer, Parts parts);
  void settle(FinishReason reason);
  void observe(TokenId token);
  Result<TokenId> draw(std::span<const float> logits);
  TokenId due() const;

  const Tokenizer* tokenizer_;
  std::int64_t max_tokens_ = -1;
  bool ignore_eos_ = false;
  bool show_special_ = false;
  Sampler sampler_;
  TokenLimits limits_;
  StopMatcher matcher_;
  TokenStream stream_;
  std::optional<GrammarMatcher> grammar_;
  bool grammar_ended_ = false;
  std::optional<ThoughtMeter> thoughts_;
  std::string text_;
  std::int64_t tokens_ = 0;
  std::optional<TokenId> pending_;
  std::array<std::uint64_t, 4> undrawn_{};  // the generator's words before the newest draw
  std::optional<FinishReason> finish_reason_;
  std::optional<TokenId> end_token_;
  std::optional<TokenId> stop_token_;
  int logprobs_ = -1;
  std::vector<GeneratedToken> choices_;
  std::optional<GeneratedToken> end_choice_;
  std::vector<std::vector<TokenId>> forced_;  // GenerateOptions::forced_texts
  std::size_t sample_ = 0;                    // whose text of them this is
  std::optional<Drafting> drafting_;
};

}  // namespace kvasir
