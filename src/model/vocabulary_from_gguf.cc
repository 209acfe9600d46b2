#include "model/vocabulary_from_gguf.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "gguf/in_file.h"
#include "model/keys.h"
#include "text/end_tokens.h"
#include "text/pre_tokenizers.h"

namespace kvasir {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";

// Reports an absent key as kDataLoss: a kNotFound would read like a missing file.
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

Result<std::optional<TokenId>> token_id(const gguf::File& file, std::string_view key, std::size_t size) {
  if (file.find(key) == nullptr) return std::optional<TokenId>();
  // Some converters write "none" as -1.
  if (const auto* value = std::get_if<std::int64_t>(&file.find(key)->data); value != nullptr && *value == -1)
    return std::optional<TokenId>();
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t id, file.get_uint(key));
  if (id == std::numeric_limits<std::uint32_t>::max()) return std::optional<TokenId>();
  if (id >= size) return data_loss("{} is {}, but the vocabulary has {} tokens", key, id, size);
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

std::optional<TokenId> default_id(const Vocabulary& vocabulary, std::size_t id, TokenKind kind) {
  if (id >= vocabulary.kinds.size() || vocabulary.kinds[id] != kind) return std::nullopt;
  return static_cast<TokenId>(id);
}

Result<TokenizerKind> read_kind(const gguf::File& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  KVASIR_ASSIGN_OR_RETURN(const std::string_view model, required(file.get_string(kModel), kModel));
  if (model == "llama") return TokenizerKind::kSpm;
  if (model == "gpt2") return TokenizerKind::kBpe;
  if (model == "gemma4") return TokenizerKind::kSpmMerges;
  return unsupported(
      "the tokenizer \"{}\" ({}) is not supported; Kvasir runs models with \"llama\" (SentencePiece), \"gemma4\" "
      "(SentencePiece with a list of merges) and \"gpt2\" (byte-level BPE)",
      model, kModel);
}

Status check_count(std::string_view key, std::size_t count, std::size_t tokens) {
  if (count == tokens) return {};
  return data_loss("{} has {} entries, but {} has {}", key, count, kTokens, tokens);
}

Status read_pieces(const gguf::File& file, Vocabulary* vocabulary) {
  KVASIR_ASSIGN_OR_RETURN(const auto pieces, required(file.get_strings(kTokens), kTokens));
  if (pieces.empty()) return data_loss("{} is empty", kTokens);
  if (pieces.size() > static_cast<std::size_t>(std::numeric_limits<TokenId>::max())) {
    return data_loss("{} has {} entries, more than an id can number", kTokens, pieces.size());
  }
  vocabulary->pieces.assign(pieces.begin(), pieces.end());
  return {};
}

// A tokenizer with merges needs no scores.
Status read_scores(const gguf::File& file, Vocabulary* vocabulary) {
  if (vocabulary->tokenizer != TokenizerKind::kSpm) {
    vocabulary->scores.resize(vocabulary->pieces.size());
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(vocabulary->scores, required(file.get_floats(kScores), kScores));
  return check_count(kScores, vocabulary->scores.size(), vocabulary->pieces.size());
}

// Old files with byte-level BPE have no types: all tokens are normal except those that the file names as special.
Status read_types(const gguf::File& file, Vocabulary* vocabulary) {
  vocabulary->kinds.assign(vocabulary->pieces.size(), TokenKind::kNormal);
  if (vocabulary->tokenizer == TokenizerKind::kBpe && file.find(kTypes) == nullptr) return {};
  KVASIR_ASSIGN_OR_RETURN(const auto types, required(file.get_ints(kTypes), kTypes));
  KVASIR_RETURN_IF_ERROR(check_count(kTypes, types.size(), vocabulary->pieces.size()));
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] < static_cast<std::int64_t>(TokenKind::kNormal) ||
        types[i] > static_cast<std::int64_t>(TokenKind::kByte)) {
      return data_loss("{} of token {} is {}; it must be from 1 to 6", kTypes, i, types[i]);
    }
    vocabulary->kinds[i] = static_cast<TokenKind>(types[i]);
  }
  return {};
}

Status read_ids(const gguf::File& file, Vocabulary* vocabulary) {
  const std::size_t size = vocabulary->pieces.size();
  KVASIR_ASSIGN_OR_RETURN(vocabulary->bos, token_id(file, "tokenizer.ggml.bos_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary->eos, token_id(file, "tokenizer.ggml.eos_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary->eot, token_id(file, "tokenizer.ggml.eot_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(vocabulary->unknown, token_id(file, "tokenizer.ggml.unknown_token_id", size));
  KVASIR_ASSIGN_OR_RETURN(const auto eom, token_id(file, "tokenizer.ggml.eom_token_id", size));
  if (eom) vocabulary->ends.push_back(*eom);
  if (file.find(kTypes) == nullptr) {
    for (const auto& id : {vocabulary->bos, vocabulary->eos, vocabulary->eot, eom}) {
      if (id) vocabulary->kinds[static_cast<std::size_t>(*id)] = TokenKind::kControl;
    }
  }
  const bool spm = vocabulary->tokenizer != TokenizerKind::kBpe;
  if (!vocabulary->bos) vocabulary->bos = default_id(*vocabulary, spm ? 1 : 11, TokenKind::kControl);
  if (!vocabulary->eos) vocabulary->eos = default_id(*vocabulary, spm ? 2 : 11, TokenKind::kControl);
  if (!vocabulary->unknown && spm) vocabulary->unknown = default_id(*vocabulary, 0, TokenKind::kUnknown);
  return {};
}

// Guesses the pre-tokenizer of files older than the key; architecture and vocabulary identify most of them.
void assume_pre_tokenizer(const gguf::File& file, Vocabulary* vocabulary) {
  const auto architecture = file.get_string("general.architecture");
  const auto has = [&](std::string_view piece) {
    return std::find(vocabulary->pieces.begin(), vocabulary->pieces.end(), piece) != vocabulary->pieces.end();
  };
  vocabulary->pre_tokenizer = kDefaultPreTokenizer;
  if (!architecture.ok()) {
    vocabulary->pre_tokenizer_assumed = true;
  } else if (*architecture == "qwen2" || *architecture == "qwen3") {
    vocabulary->pre_tokenizer = "qwen2";
  } else if (has("<|begin_of_text|>") && has("<|eot_id|>")) {
    vocabulary->pre_tokenizer = "llama-bpe";
  } else {
    vocabulary->pre_tokenizer_assumed = *architecture != "gptneox" && *architecture != "gpt2";
  }
}

Status read_merges(const gguf::File& file, Vocabulary* vocabulary) {
  constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  KVASIR_ASSIGN_OR_RETURN(const auto merges, required(file.get_strings(kMerges), kMerges));
  vocabulary->merges.assign(merges.begin(), merges.end());
  return {};
}

// Reads the keys of byte-level BPE alone. Returns whether BOS is added by default.
Result<bool> read_bpe(const gguf::File& file, Vocabulary* vocabulary) {
  constexpr std::string_view kPre = "tokenizer.ggml.pre";
  KVASIR_RETURN_IF_ERROR(read_merges(file, vocabulary));
  if (file.find(kPre) != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(vocabulary->pre_tokenizer, file.get_string(kPre));
  } else {
    assume_pre_tokenizer(file, vocabulary);
  }
  KVASIR_ASSIGN_OR_RETURN(const PreTokenizer* pre_tokenizer, find_pre_tokenizer(vocabulary->pre_tokenizer));
  vocabulary->add_space_prefix = false;
  return pre_tokenizer->add_bos;
}

Result<std::string> lower_case(const gguf::File& file, std::string_view key) {
  if (file.find(key) == nullptr) return std::string();
  KVASIR_ASSIGN_OR_RETURN(const std::string_view value, file.get_string(key));
  std::string text(value);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Phi-3's tokens strip the white space after them. Files do not say so; the tokens' names identify them.
Status read_strip_after(const gguf::File& file, Vocabulary* vocabulary) {
  KVASIR_ASSIGN_OR_RETURN(const std::string name, lower_case(file, "general.name"));
  KVASIR_ASSIGN_OR_RETURN(const std::string architecture, lower_case(file, "general.architecture"));
  const auto named = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (architecture != "phi3" && !named("phi-3") && !named("phi3")) return {};
  for (std::size_t i = 0; i < vocabulary->pieces.size(); ++i) {
    const std::string_view piece = vocabulary->pieces[i];
    const TokenKind kind = vocabulary->kinds[i];
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined && kind != TokenKind::kUnknown) continue;
    if (piece == "<unk>" || piece == "<s>" || piece == "<|endoftext|>") continue;
    vocabulary->strip_after.push_back(static_cast<TokenId>(i));
  }
  return {};
}

Result<Vocabulary> read_vocabulary(const gguf::File& file) {
  Vocabulary vocabulary;
  KVASIR_RETURN_IF_ERROR(refuse_adapter(file));
  KVASIR_ASSIGN_OR_RETURN(vocabulary.tokenizer, read_kind(file));
  KVASIR_RETURN_IF_ERROR(read_pieces(file, &vocabulary));
  KVASIR_RETURN_IF_ERROR(read_scores(file, &vocabulary));
  KVASIR_RETURN_IF_ERROR(read_types(file, &vocabulary));
  KVASIR_RETURN_IF_ERROR(read_ids(file, &vocabulary));
  bool adds_bos = true;
  if (vocabulary.tokenizer == TokenizerKind::kBpe) {
    KVASIR_ASSIGN_OR_RETURN(adds_bos, read_bpe(file, &vocabulary));
  } else {
    const bool merges = vocabulary.tokenizer == TokenizerKind::kSpmMerges;
    if (merges) KVASIR_RETURN_IF_ERROR(read_merges(file, &vocabulary));
    KVASIR_ASSIGN_OR_RETURN(vocabulary.add_space_prefix, bool_or(file, "tokenizer.ggml.add_space_prefix", !merges));
    KVASIR_RETURN_IF_ERROR(read_strip_after(file, &vocabulary));
  }
  KVASIR_ASSIGN_OR_RETURN(vocabulary.add_bos,
                          bool_or(file, "tokenizer.ggml.add_bos_token", adds_bos && vocabulary.bos.has_value()));
  // Early files of Gemma 4 say that it is not added. The model was trained with it.
  if (vocabulary.tokenizer == TokenizerKind::kSpmMerges) vocabulary.add_bos = vocabulary.bos.has_value();
  KVASIR_ASSIGN_OR_RETURN(vocabulary.add_eos, bool_or(file, "tokenizer.ggml.add_eos_token", false));
  find_end_tokens(&vocabulary);
  return vocabulary;
}

}  // namespace

Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file) {
  return gguf::in_file(read_vocabulary(file), file);
}

}  // namespace kvasir
