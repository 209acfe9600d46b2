// Logits that are no ordinary numbers.
#pragma once

#include <limits>

namespace kvasir::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace kvasir::test
