// The sampling settings that a model file recommends.
// Thread-safety: pure functions.
#pragma once

#include "gguf/reader.h"
#include "kvasir/options.h"

namespace kvasir {

// Returns the defaults of SamplingOptions, with those values in their place that the file has under general.sampling.*
// (temp, top_k, top_p, min_p, penalty_repeat). A value of another type or out of range counts as
// absent: it is advice, not part of the model.
SamplingOptions sampling_from_gguf(const gguf::File& file);

}  // namespace kvasir
