// The least work memory that a model runs in.
// Thread-safety: pure function.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "model/config.h"

namespace kvasir {

// Returns the workspace of a pass of one token, in bytes. `shape`: of the model, with its adapters.
std::uint64_t token_workspace_bytes(const ModelConfig& config, const BackendShape& shape, int threads);

}  // namespace kvasir
