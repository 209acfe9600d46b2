// A tokenizer's vocabulary as plain data, independent of the file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

using TokenId = std::int32_t;  // an index into the vocabulary

inline constexpr TokenId kNoToken = -1;

// Numbered as in GGUF's tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never produced from plain text, prints as nothing
  kUserDefined = 4,  // matched whole in text, before anything else
  kUnused = 5,
  kByte = 6,  // "<0x0A>"
};

enum class TokenizerKind : std::uint8_t {
  kSpm,        // SentencePiece BPE; GGUF's tokenizer.ggml.model = "llama"
  kBpe,        // byte-level BPE; "gpt2"
  kSpmMerges,  // SentencePiece's pieces, merged by a list of merges; "gemma4"
};

struct Vocabulary {
  TokenizerKind tokenizer = TokenizerKind::kSpm;
  std::vector<std::string> pieces;     // as in the file: a space is U+2581 in SPM; BPE's are mapped by byte_alphabet.h
  std::vector<float> scores;           // same length; kSpm merges the best score first
  std::vector<TokenKind> kinds;        // same length
  std::vector<std::string> merges;     // but of kSpm: two pieces with a space between; the first is merged first
  std::string pre_tokenizer;           // BPE: a name of text/pre_tokenizers.h
  bool pre_tokenizer_assumed = false;  // the file names none
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> eot;  // end of turn, where a model has one beside eos
  std::optional<TokenId> unknown;
  std::vector<TokenId> ends;         // tokens that end generation besides eos and eot
  std::vector<TokenId> strip_after;  // tokens after which white space is stripped
  bool add_bos = true;
  bool add_eos = false;
  bool add_space_prefix = true;  // not of kBpe
};

// Returns whether a token is user-defined but spelt like a control token, "<|user|>". Some files store a chat
// template's markers so; like control tokens they are not shown in generated text. REQUIRES: an id of the vocabulary.
bool is_marker(const Vocabulary& vocabulary, TokenId token);

// Errors: kDataLoss if the lists differ in length, an id is out of range, or BOS or EOS is to be added but not named.
Status check_vocabulary(const Vocabulary& vocabulary);

}  // namespace kvasir
