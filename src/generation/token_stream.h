// Turns a stream of tokens into printable text: holds an incomplete UTF-8 sequence back until it is complete, and
// replaces invalid bytes by U+FFFD.
// Thread-safety: none. Refers to the tokenizer, which must outlive it.
#pragma once

#include <string>

#include "kvasir/status.h"
#include "text/space_prefix.h"
#include "text/tokenizer.h"

namespace kvasir {

// A TokenStream as plain data.
struct TokenStreamState {
  std::string pending;        // the bytes of an incomplete character, or empty
  bool strips_space = false;  // a space at the start of the next token was added by the tokenizer and is dropped
};

class TokenStream {
 public:
  // `strip_leading_space`: drop the one space that SPM puts before the first word of a text; false if the stream
  // continues a text. After a control or user-defined token that space is always dropped, as in Tokenizer::decode().
  TokenStream(const Tokenizer& tokenizer, bool strip_leading_space);

  // Continues where state() was taken. Errors: kDataLoss for a state that no stream of this tokenizer can be in.
  static Result<TokenStream> from_state(const Tokenizer& tokenizer, TokenStreamState state);
  TokenStreamState state() const { return {pending_, prefix_.expected()}; }

  // Adds a token and returns the text that it completes; may be empty.
  std::string push(TokenId token);

  // As push, but leaves out the text of a marker (is_marker), which generated text does not show.
  std::string push_shown(TokenId token);

  // As push, but a control token's text is its name.
  std::string push_named(TokenId token);

  // Returns U+FFFD for an incomplete character, or "" if there is none. Call it after the last token.
  std::string flush();

  bool mid_character() const { return !pending_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  SpacePrefix prefix_;
  std::string pending_;
};

}  // namespace kvasir
