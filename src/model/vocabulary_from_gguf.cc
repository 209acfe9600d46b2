#include "model/vocabulary_from_gguf.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

// Absent keys are malformed files here, so that no kNotFound of a key reads like a missing file.
template <class T>
Result<T> required(Result<T> value, std::string_view key) {
  if (!value.ok() && value.status().code() == StatusCode::kNotFound) {
    return data_loss("the file holds no usable tokenizer: {} is missing; convert the model again", key);
  }
  return value;
}

Result<bool> bool_or(const gguf::File& file, std::string_view key, bool fallback) {
  if (file.find(key) == nullptr) return fallback;
  return file.get_bool(key);
}

Result<std::optional<TokenValue>> token_id(const gguf::File& file, std::string_view key, std::size_t size) {
  if (file.find(key) == nullptr) return std::optional<TokenValue>();
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t id, file.get_uint(key));
  if (id >= size) return data_loss("{} is {}, but the vocabulary has {} tokens", key, id, size);
  return std::optional<TokenValue>(static_cast<TokenValue>(id));
}

std::optional<TokenValue> default_id(const Vocabulary& vocabulary, std::size_t id, TokenKind kind) {
  if (id >= vocabulary.kinds.size() || vocabulary.kinds[id] != kind) return std::nullopt;
  return static_cast<TokenValue>(id);
}

bool looks_like_end_of_turn(std::string_view piece) {
  static constexpr std::string_view kEnds[] = {"<|end|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>"};
  return std::find(std::begin(kEnds), std::end(kEnds), piece) != std::end(kEnds);
}

Status read_tokens(const gguf::File& file, Vocabulary* vocabulary) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
  KVASIR_ASSIGN_OR_RETURN(const auto pieces, required(file.get_strings(kTokens), kTokens));
  KVASIR_ASSIGN_OR_RETURN(vocabulary->scores, required(file.get_floats(kScores), kScores));
  KVASIR_ASSIGN_OR_RETURN(const auto types, required(file.get_ints(kTypes), kTypes));
  if (pieces.empty()) return data_loss("{} is empty", kTokens);
  if (pieces.size() > static_cast<std::size_t>(std::numeric_limits<TokenValue>::max())) {
    return data_loss("{} has {} entries, more than an id can number", kTokens, pieces.size());
  }
  if (vocabulary->scores.size() != pieces.size()) {
    return data_loss("{} has {} entries, but {} has {}", kScores, vocabulary->scores.size(), kTokens, pieces.size());
  }
  if (types.size() != pieces.size()) {
    return data_loss("{} has {} entries, but {} has {}", kTypes, types.size(), kTokens, pieces.size());
  }
  vocabulary->pieces.assign(pieces.begin(), pieces.end());
  vocabulary->kinds.reserve(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] < static_cast<std::int64_t>(TokenKind::kNormal) ||
        types[i] > static_cast<std::int64_t>(TokenKind::kByte)) {
      return data_loss("{} of token {} is {}; it must be from 1 to 6", kTypes, i, types[i]);
    }
    vocabulary->kinds.push_back(static_cast<TokenKind>(types[i]));
  }
  return {};
}

}  // namespace

Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  KVASIR_ASSIGN_OR_RETURN(const std::string_view model, required(file.get_string(kModel), kModel));
  if (model != "llama") {
    return unsupported("the tokenizer \"{}\" ({}) is not supported; Kvasir runs models with \"llama\" (SentencePiece)",
                       model, kModel);
  }
  Vocabulary vocabulary;
  KVASIR_RETURN_IF_ERROR(read_tokens(file, &vocabulary));
  const std::size_t size = vocabulary.pieces.size();
  KVASIR_ASSIGN_OR_RETURN(vocabulary.bos, token_id(file, "tokenizer.ggml.bos_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.eos, token_id(file, "tokenizer.ggml.eos_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.eot, token_id(file, "tokenizer.ggml.eot_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.unknown, token_id(file, "tokenizer.ggml.unknown_token_id", size));
  if (!vocabulary.bos) vocabulary.bos = default_id(vocabulary, 1, TokenKind::kControl);
  if (!vocabulary.eos) vocabulary.eos = default_id(vocabulary, 2, TokenKind::kControl);
  if (!vocabulary.unknown) vocabulary.unknown = default_id(vocabulary, 0, TokenKind::kUnknown);
  KVASIR_ASSIGN_OR_RETURN(vocabulary.add_bos,
                          bool_or(file, "tokenizer.ggml.add_bos_token", vocabulary.bos.has_value()));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.add_eos, bool_or(file, "tokenizer.ggml.add_eos_token", false));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.add_space_prefix, bool_or(file, "tokenizer.ggml.add_space_prefix", true));

  for (std::size_t i = 0; i < size; ++i) {
    if (!looks_like_end_of_turn(vocabulary.pieces[i])) continue;
    vocabulary.kinds[i] = TokenKind::kControl;
    if (!vocabulary.eot) vocabulary.eot = static_cast<TokenValue>(i);
  }
  return vocabulary;
}

}  // namespace kvasir
