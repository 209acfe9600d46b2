// A tokenizer's vocabulary as plain data, independent of the file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

using TokenValue = std::int32_t;  // an index into the vocabulary; the model's "token id"

// Numbered as in GGUF's tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never produced from plain text, prints as nothing
  kUserDefined = 4,  // matched whole in text, before anything else
  kUnused = 5,
  kByte = 6,  // "<0x0A>"
};

struct Vocabulary {
  std::vector<std::string> pieces;  // as in the file: SPM writes a space as U+2581
  std::vector<float> scores;        // same length; SPM merges the best score first
  std::vector<TokenKind> kinds;     // same length
  std::optional<TokenValue> bos;
  std::optional<TokenValue> eos;
  std::optional<TokenValue> eot;  // end of turn, where a model has one beside eos
  std::optional<TokenValue> unknown;
  bool add_bos = true;
  bool add_eos = false;
  bool add_space_prefix = true;
};

}  // namespace kvasir
