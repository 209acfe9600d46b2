// Options of a generation by the names that llama.cpp and Ollama give them.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvasir/options.h"
#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Reads temperature, top_k, top_p, min_p, seed, stop, repeat_penalty, repeat_last_n, presence_penalty,
// frequency_penalty and the four of DRY into `generate`; absent ones stay. Refuses the samplers that the engine does
// not have where their values are not those that turn them off. Errors: kInvalidArgument and kUnsupported, about() the
// field.
Status read_llama_options(const Fields& options, GenerateOptions& generate);

// Returns the same options of a request, as llama-server shows them.
nlohmann::json llama_settings(const GenerateOptions& generate);

}  // namespace kvasir::server
