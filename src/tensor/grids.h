// The grids of the formats IQ1, IQ2 and IQ3: what an index into a grid stands for, laid out for kernels that look up
// many indices at once.
// Thread-safety: constants.
#pragma once

#include <array>
#include <cstdint>

namespace kvasir {

// Entries of eight codes: byte k holds that of value k in its low nibble, that of value k + 4 in its high one.
extern const std::array<std::uint32_t, 256> kIq2XxsGrid;
extern const std::array<std::uint32_t, 512> kIq2XsGrid;
extern const std::array<std::uint32_t, 1024> kIq2SGrid;
extern const std::array<std::uint32_t, 2048> kIq1Grid;  // of IQ1_S and IQ1_M

// Entries of four codes: byte k holds that of value k.
extern const std::array<std::uint32_t, 256> kIq3XxsGrid;
extern const std::array<std::uint32_t, 512> kIq3SGrid;

// Magnitude of each code, before the scale; -1, 0 and 1 for IQ1.
inline constexpr std::array<int, 3> kIq2Magnitudes = {8, 25, 43};
inline constexpr std::array<int, 8> kIq3XxsMagnitudes = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr std::array<int, 8> kIq3SMagnitudes = {1, 3, 5, 7, 9, 11, 13, 15};

}  // namespace kvasir
