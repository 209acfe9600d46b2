#pragma once

#include <cstdint>

namespace kvasir::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

}  // namespace kvasir::test
