// Text to token ids and back.
// Thread-safety: a Tokenizer is immutable.
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
  bool continues = false;      // the text continues another one: no space is put in front of it
};

// Longest text that encode() accepts.
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

// A part of a text. `parse_special`: control tokens written out in it become tokens; true for text from a template,
// false for text from a person.
struct TextSegment {
  std::string text;
  bool parse_special = false;
};

// A TextSegment that refers to the caller's text, which must outlive it.
struct TextPart {
  std::string_view text;
  bool parse_special = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors: kInvalidArgument with the byte offset if `text` is not valid UTF-8, and if it is longer than kMaxTextBytes;
  // kResourceExhausted if there is no memory. Byte-level BPE takes no copy of the text.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options) const;

  // Encodes one text given in parts. Ordinary pieces may span parts; tokens recognised whole may not. Tokens in
  // `reserved`, user-defined ones included, are never produced from a part without parse_special. `continues`: as in
  // EncodeOptions. Errors: as encode(); byte offsets count over all parts.
  Result<std::vector<TokenId>> encode_segments(std::span<const TextSegment> segments, bool add_special,
                                               std::span<const TokenId> reserved, bool continues = false) const;

  // Returns the bytes of a token, possibly part of a UTF-8 sequence. Control and unknown tokens give "" unless
  // `special`. REQUIRES: 0 <= token < vocabulary().pieces.size().
  virtual std::string bytes_of(TokenId token, bool special = false) const = 0;

  // Returns the text of a whole sequence: the bytes of each token, without the spaces that encode() adds at the front
  // and after control or user-defined tokens. Inverse of encode(), except for white space that the vocabulary's
  // `strip_after` removed and bytes that the vocabulary cannot express.
  std::string decode(std::span<const TokenId> tokens, bool special = false) const;

  // Returns true for the vocabulary's EOS, end of turn and other end tokens: generation stops there.
  bool is_end(TokenId token) const;

  virtual const Vocabulary& vocabulary() const = 0;

 private:
  // As encode_segments().
  virtual Result<std::vector<TokenId>> encode_parts(std::span<const TextPart> parts, bool add_special,
                                                    std::span<const TokenId> reserved, bool continues) const = 0;
};

// Makes the SentencePiece BPE tokenizer of Llama 2 (GGUF's tokenizer.ggml.model = "llama").
//   - Starts from single characters and merges the adjacent pair whose union scores best, the leftmost on a tie, until
//     no union is in the vocabulary.
//   - A character not in the vocabulary falls back to its bytes, or to the unknown token if a byte token is missing.
//   - Merges never produce control, unknown or byte tokens.
// A vocabulary of kind kSpmMerges (Gemma 4) merges by its list instead: the earliest merge first, the leftmost on a
// tie, until none applies. Errors: kDataLoss for ids out of range, malformed byte tokens, missing byte tokens without
// an unknown token, malformed merges or more than 2^24 of them, and BOS or EOS that is to be added but not named.
Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(Vocabulary vocabulary);

// Makes the byte-level BPE tokenizer (GGUF's tokenizer.ggml.model = "gpt2").
//   - The vocabulary's pre-tokenizer cuts the text into words. Within a word, starts from single bytes and applies the
//     earliest merge of the list, leftmost first, until none applies.
//   - A symbol without a token falls back to the tokens of its bytes, and a byte without a token to the unknown token.
//     If there is none, or it is a control token, the byte is left out: SmolLM2 has no token for six control characters
//     and for the first byte of U+40000 to U+BFFFF.
//   - Merges never produce control or unknown tokens.
// Errors: kUnsupported for an unknown pre-tokenizer; kDataLoss for ids out of range, malformed merges, and BOS or EOS
// that is to be added but not named.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(Vocabulary vocabulary);

// Makes the tokenizer of the vocabulary's kind.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary);

}  // namespace kvasir
