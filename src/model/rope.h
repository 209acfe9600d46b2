// Reads a file's rotary position embedding: the angle of each rotated pair per position, scaled by the file's
// long-context rule. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir {

struct RotaryEmbedding {
  int dims = 0;  // rotated dimensions of a head; even
  double base = 10000;
  // Angles per position, [dims / 2]: base^(-2i / dims), scaled by the file's rule:
  //   linear     divided by rope.scaling.factor (Chen et al. 2023)
  //   yarn       divided for wavelengths long against the original context, unchanged for short ones, interpolated in
  //              between (Peng et al. 2023, YaRN, "NTK-by-parts")
  //   factors    divided by rope_freqs.weight (Llama 3)
  //   longrope   divided by rope_factors_short.weight
  std::vector<double> inverse_frequencies;
  // LongRoPE (Ding et al. 2024, arXiv 2402.13753): the angles of sequences that may become longer than
  // original_context, in place of those above. Empty: all sequences have the same.
  std::vector<double> long_inverse_frequencies;
  std::int64_t original_context = 0;  // of LongRoPE, tokens
  // Factor on the rotated dimensions of queries and keys: YaRN's sqrt(1 / t) = 0.1 ln(factor) + 1, LongRoPE's, or 1.
  double magnitude = 1;
};

// What families do with YaRN's parameters.
struct YarnRules {
  bool exact_range = false;  // interpolation begins and ends where it would between pairs, not at whole ones (gpt-oss)
  bool plain_magnitude = false;  // 1, whatever else the file says: the family scales scores
  bool log_multiplier = false;   // the magnitude is divided by 0.1 m ln(factor) + 1 with m = yarn_log_multiplier
};

// The tensors that the reader below applies to the angles. LongRoPE's divide those of short and of long sequences.
inline constexpr std::string_view kRotaryFactors = "rope_freqs.weight";
inline constexpr std::string_view kShortFactors = "rope_factors_short.weight";
inline constexpr std::string_view kLongFactors = "rope_factors_long.weight";

// Of `dims` rotated dimensions, without scaling. Errors: kDataLoss for a base that is not above 1.
Result<RotaryEmbedding> plain_rotary_embedding(int dims, double base);

// `prefix`: the architecture's name. `dims`: rotated dimensions. `context`: trained context, used as YaRN's original
// context if the file names none. `long_rotation`: LongRoPE is read, too. Errors: kUnsupported for other rules (named),
// kDataLoss for values out of range.
Result<RotaryEmbedding> read_rotary_embedding(const gguf::File& file, std::string_view prefix, int dims,
                                              std::int64_t context, const YarnRules& rules = {},
                                              bool long_rotation = false);

}  // namespace kvasir
