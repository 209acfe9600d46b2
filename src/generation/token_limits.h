// Restricts the next token of one generation, beyond the sampler's options: to allowed tokens, to tokens that complete
// no bad word, and, before the least number of tokens, to tokens that end no text. Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generation/sampler.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// A TokenLimits as plain data.
struct TokenLimitsState {
  std::int64_t min_tokens = 0;
  std::vector<TokenId> stop_tokens;             // ascending
  std::vector<TokenId> ends;                    // tokens that end a text otherwise, ascending
  std::vector<std::uint64_t> allowed;           // a TokenMask; empty: all
  std::vector<std::vector<TokenId>> bad_words;  // none empty
  std::vector<TokenId> newest;                  // as many generated tokens as a bad word can continue, oldest first
};

class TokenLimits {
 public:
  // REQUIRES: validate(options).ok(), token ids inside the vocabulary.
  TokenLimits(const Tokenizer& tokenizer, const GenerateOptions& options);

  // Continues where state() was taken. Errors: kDataLoss for a state that no limits of this tokenizer can be in.
  static Result<TokenLimits> from_state(const Tokenizer& tokenizer, TokenLimitsState state);
  const TokenLimitsState& state() const { return state_; }

  // Returns which tokens may follow `tokens` generated ones: those of `others` that no limit excludes. Valid until the
  // next call and as long as `others`. `others`: as TokenMask.
  TokenMask allowed(std::int64_t tokens, TokenMask others);

  // Returns whether `tokens` generated tokens are too few for the text to end.
  bool too_few(std::int64_t tokens) const { return tokens < state_.min_tokens; }

  // Adds a generated token.
  void accept(TokenId token);

  // Returns whether the token is one of GenerateOptions::stop_tokens.
  bool stops(TokenId token) const;

 private:
  explicit TokenLimits(std::size_t vocabulary) : vocabulary_(vocabulary) {}
  void find_longest();

  std::size_t vocabulary_;
  TokenLimitsState state_;
  std::size_t longest_ = 0;        // tokens of the longest bad word
  std::vector<TokenId> excluded_;  // scratch of allowed(), as is mask_
  std::vector<std::uint64_t> mask_;
};

}  // namespace kvasir
