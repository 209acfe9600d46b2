// The memory that a served model takes, planned from the header of its file.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "cli/serve/serve_models.h"
#include "kvasir/engine.h"
#include "server/models/model_desk.h"

namespace kvasir::cli {

struct PlannedModel {
  server::ModelSize size;
  ModelSummary summary;  // as in ModelEntry, with the sampling that the file recommends
};

// Plans a model by the arithmetic of its engine. `memory`: of all loaded models; 0: what the system has left. Without a
// kv_memory of its own the KV memory is what the engine would take within `memory`; if `shared`, it leaves half of that
// to other models, as far as one request at the trained context allows. Errors: those of the file, which is read as far
// as its tensors' places; of the options; kResourceExhausted if its weights leave no memory.
Result<PlannedModel> plan_served_model(const ModelSettings& settings, std::uint64_t memory, bool shared);

// Returns the number of sequences that the KV memory is sized for: Settings::batch below the stop mark.
int sequences_of(const ModelSettings& settings);

// Returns what the model's file recommends, overridden by the settings.
SamplingOptions sampling_of(const ModelSettings& settings, const ModelSummary& model);

}  // namespace kvasir::cli
