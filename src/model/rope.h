// Rotary position embeddings as a file describes them: the angle of each rotated pair per position, and what
// long-context extensions do to it. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir {

struct RotaryEmbedding {
  int dims = 0;  // of a head that are rotated; even
  double base = 10000;
  // Angles per position, [dims / 2]: base^(-2i / dims), scaled by the file's rule:
  //   linear     divided by rope.scaling.factor (Chen et al. 2023)
  //   yarn       divided where the wavelength is long against the original context, left where it is short, mixed
  //              between (Peng et al. 2023, YaRN, "NTK-by-parts")
  //   factors    divided by rope_freqs.weight (Llama 3)
  std::vector<double> inverse_frequencies;
  // What the rotated dimensions of queries and of keys are multiplied with: YaRN's sqrt(1 / t) = 0.1 ln(factor) + 1,
  // else 1.
  double magnitude = 1;
};

// `prefix`: the architecture's name. `dims`: rotated dimensions. `context`: trained context, which stands in for YaRN's
// original context where the file names none. Errors: kUnsupported for other rules (named), kDataLoss for values that
// make no sense.
Result<RotaryEmbedding> read_rotary_embedding(const gguf::File& file, std::string_view prefix, int dims,
                                              std::int64_t context);

}  // namespace kvasir
