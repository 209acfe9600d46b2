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
  bool continues = false;      // the text goes on where another ended: no space is put in front of it
};

// The longest text that is encoded at once.
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

// A part of a text, and whether control tokens written out in it count: yes in what a template wrote, no in what a
// person did.
struct TextSegment {
  std::string text;
  bool parse_special = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors: kInvalidArgument with the byte offset if `text` is not valid UTF-8 or has a byte that the vocabulary cannot
  // express, and if it is longer than kMaxTextBytes; kResourceExhausted if there is no memory.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options) const;

  // Encodes one text given in parts: pieces may span parts as if they were written together, recognised tokens may
  // not. A token of `reserved` is never produced from a part without parse_special, not even a user-defined one.
  // `continues`: as in EncodeOptions. Errors: as encode(), the offset counted over all parts.
  virtual Result<std::vector<TokenId>> encode_segments(std::span<const TextSegment> segments, bool add_special,
                                                       std::span<const TokenId> reserved,
                                                       bool continues = false) const = 0;

  // The bytes a token stands for; possibly part of a UTF-8 sequence. Control and unknown tokens give "" unless
  // `special`. REQUIRES: 0 <= token < vocabulary().pieces.size().
  virtual std::string bytes_of(TokenId token, bool special = false) const = 0;

  // The text of a whole sequence: bytes_of each, less the spaces that encode() puts where it starts a text: at the
  // front and after a control or user-defined token. The inverse of encode(), but for white space that the vocabulary's
  // `strip_after` swallowed.
  std::string decode(std::span<const TokenId> tokens, bool special = false) const;

  // True for what the vocabulary names as EOS, end of turn or another end: generation stops there.
  bool is_end(TokenId token) const;

  virtual const Vocabulary& vocabulary() const = 0;
};

// The SentencePiece BPE of Llama 2 (GGUF's tokenizer.ggml.model = "llama"): start from single characters, merge the
// adjacent pair whose union has the best score, leftmost first, until none is in the vocabulary; a character not in the
// vocabulary falls back to its bytes, or to the unknown token where the vocabulary lacks one of them. Control, unknown
// and byte tokens are never the result of a merge. Errors: kDataLoss for ids out of range, malformed byte tokens, bytes
// missing without an unknown token, BOS or EOS to be added but not named.
Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(Vocabulary vocabulary);

// Byte-level BPE (GGUF's tokenizer.ggml.model = "gpt2"): the vocabulary's pre-tokenizer cuts the text into words; in
// each, start from single bytes and apply the merge that stands first in the list, leftmost first, until none applies.
// What has no token then falls back to the tokens of its bytes, and these to the unknown token, if there is one that is
// no control token; otherwise encoding fails (kInvalidArgument) and names the byte. Control and unknown tokens are
// never the result of a merge. Errors: kUnsupported for an unknown pre-tokenizer; kDataLoss for ids out of range,
// malformed merges, BOS or EOS to be added but not named.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(Vocabulary vocabulary);

// The one of the vocabulary's kind.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary);

}  // namespace kvasir
