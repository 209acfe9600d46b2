// Blocks of quantised weights as a file holds them: random bits, with scales that give the values a wanted spread.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace kvasir::test {

// Values with a mean near 0 and about this standard deviation. REQUIRES: a quantised type, and whole blocks.
std::vector<std::byte> random_blocks(DType type, std::size_t elements, double deviation, std::mt19937_64& random);

}  // namespace kvasir::test
