// The values of a tensor in double, by definitions of the formats written apart from the engine's: the oracle should
// not inherit its mistakes.
// Thread-safety: pure functions.
#pragma once

#include <vector>

#include "gguf/reader.h"

namespace kvasir::test {

// Of elements of `type` (GGUF's number), stored one after the other. REQUIRES: a type that the engine runs, no infinity
// or NaN among 16-bit floats (checked).
std::vector<double> dequantise(std::uint32_t type, std::span<const std::byte> bytes, std::size_t elements);

}  // namespace kvasir::test
