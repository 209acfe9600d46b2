#include "runtime/draft_file.h"

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "base/status.h"
#include "gguf/cursor.h"
#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "model/weights.h"

namespace kvasir {
namespace {

constexpr const char* kMend = "take a smaller model of the same family";

// Token ids are compared by what they stand for. How text is cut into them is the other model's alone.
Status check_same(const Vocabulary& draft, const Vocabulary& vocabulary) {
  if (draft.pieces.size() != vocabulary.pieces.size())
    return invalid_argument("the draft model has {} tokens, the model {}, and they must have one vocabulary; {}",
                            draft.pieces.size(), vocabulary.pieces.size(), kMend);
  const auto [one, other] = std::ranges::mismatch(draft.pieces, vocabulary.pieces);
  if (one != draft.pieces.end())
    return invalid_argument(
        "token {} is {} in the draft model and {} in the model, and they must have one vocabulary; {}",
        one - draft.pieces.begin(), gguf::quoted(*one), gguf::quoted(*other), kMend);
  return {};
}

Result<DraftFile> read(const std::string& path, const Vocabulary& vocabulary, std::span<const Family* const> known) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(path));
  DraftFile draft;
  KVASIR_ASSIGN_OR_RETURN(draft.config, read_model_config(file, known));
  KVASIR_ASSIGN_OR_RETURN(const Vocabulary own, vocabulary_from_gguf(file));
  KVASIR_RETURN_IF_ERROR(check_same(own, vocabulary));
  if (std::ranges::any_of(draft.config.layers, [](const LayerSpec& layer) { return layer.state.has_value(); }))
    return unsupported("layers of the draft model hold states, which cannot go back to the tokens that came true; {}",
                       kMend);
  KVASIR_ASSIGN_OR_RETURN(const WeightMap weights, map_weights(file, draft.config));
  draft.weight_bytes = cpu_weight_bytes(weights.parts);
  return draft;
}

}  // namespace

Result<DraftFile> read_draft_file(const std::string& path, const Vocabulary& vocabulary,
                                  std::span<const Family* const> known) {
  Result<DraftFile> draft = read(path, vocabulary, known);
  if (!draft.ok()) return Status(draft.status()).about({"draft_model", "draft"});
  return draft;
}

EngineOptions draft_engine_options(const EngineOptions& options) {
  EngineOptions draft;
  draft.model = options.draft_model;
  draft.threads = options.threads;
  draft.isa = options.isa;
  draft.weight_dir = options.weight_dir;
  draft.lock_weights = options.lock_weights;
  draft.page_slots = options.page_slots;
  return draft;
}

}  // namespace kvasir
