// Text to token ids and back.
// Thread-safety: a Tokenizer is immutable; a TokenStream belongs to one thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

struct EncodeOptions {
  bool add_special = true;     // BOS and EOS where the vocabulary asks for them
  bool parse_special = false;  // recognise control tokens written out in the text ("<s>"), not only user-defined ones
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors: kInvalidArgument with the byte offset if `text` is not valid UTF-8.
  virtual Result<std::vector<TokenValue>> encode(std::string_view text, const EncodeOptions& options) const = 0;

  // The bytes a token stands for; possibly part of a UTF-8 sequence. Control tokens give "" unless `special`.
  // REQUIRES: 0 <= token < vocabulary().pieces.size().
  virtual std::string bytes_of(TokenValue token, bool special = false) const = 0;

  // The text of a whole sequence: bytes_of each, less the space that encode() put in front of the first.
  std::string decode(std::span<const TokenValue> tokens, bool special = false) const;

  // True for EOS and end-of-turn tokens: generation stops there.
  bool is_end(TokenValue token) const;

  virtual const Vocabulary& vocabulary() const = 0;
};

// The SentencePiece BPE of Llama 2 (GGUF's tokenizer.ggml.model = "llama"): start from single characters, merge the
// adjacent pair whose union has the best score, leftmost first, until none is in the vocabulary; a character not in the
// vocabulary falls back to its bytes. Errors: kDataLoss when byte tokens or required ids are missing or malformed.
Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(Vocabulary vocabulary);

// Turns a stream of tokens into printable text: holds back an incomplete UTF-8 sequence until it is complete, replaces
// bytes that can never become valid by U+FFFD.
class TokenStream {
 public:
  // `strip_leading_space`: drop the one space that SPM puts before the first word of a text.
  TokenStream(const Tokenizer& tokenizer, bool strip_leading_space);
  std::string push(TokenValue token);   // the text that became complete; may be empty
  std::string flush();                  // what is left, incomplete sequences replaced by U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool strip_;
  std::string pending_;
};

}  // namespace kvasir
