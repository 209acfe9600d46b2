#include "tensor/grids.h"

#include <cstddef>

#include "tensor/grid_codes.h"

namespace kvasir {
namespace {

template <std::size_t kCount>
constexpr std::array<std::uint32_t, kCount> of_eight(const std::array<std::uint16_t, kCount>& codes) {
  std::array<std::uint32_t, kCount> grid{};
  for (std::size_t entry = 0; entry < kCount; ++entry)
    for (int i = 0; i < 8; ++i)
      grid[entry] |= static_cast<std::uint32_t>(codes[entry] >> (2 * i) & 3) << (i % 4 * 8 + i / 4 * 4);
  return grid;
}

template <std::size_t kCount>
constexpr std::array<std::uint32_t, kCount> of_four(const std::array<std::uint16_t, kCount>& codes) {
  std::array<std::uint32_t, kCount> grid{};
  for (std::size_t entry = 0; entry < kCount; ++entry)
    for (int i = 0; i < 4; ++i) grid[entry] |= static_cast<std::uint32_t>(codes[entry] >> (4 * i) & 15) << (8 * i);
  return grid;
}

}  // namespace

constexpr std::array<std::uint32_t, 256> kIq2XxsGrid = of_eight(kIq2XxsCodes);
constexpr std::array<std::uint32_t, 512> kIq2XsGrid = of_eight(kIq2XsCodes);
constexpr std::array<std::uint32_t, 1024> kIq2SGrid = of_eight(kIq2SCodes);
constexpr std::array<std::uint32_t, 2048> kIq1Grid = of_eight(kIq1Codes);
constexpr std::array<std::uint32_t, 256> kIq3XxsGrid = of_four(kIq3XxsCodes);
constexpr std::array<std::uint32_t, 512> kIq3SGrid = of_four(kIq3SCodes);

}  // namespace kvasir
