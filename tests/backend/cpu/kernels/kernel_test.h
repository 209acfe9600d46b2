// A test that runs on every table of kernels this machine runs, and reproducible random numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels/kernels.h"

namespace kvasir::test {

class KernelTest : public testing::TestWithParam<std::string_view> {
 protected:
  const KernelTable& table() const { return *find_kernels(GetParam()); }
};

inline std::string table_name(const testing::TestParamInfo<std::string_view>& table) {
  return std::string(table.param);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  std::uint64_t bits() { return bits_(); }
  // In [0, below).
  int below(int limit) { return static_cast<int>(bits_() % static_cast<std::uint64_t>(limit)); }
  // In [-range, range].
  float symmetric(float range = 1.0F) {
    return static_cast<float>(static_cast<double>(bits_() >> 11) * 0x1p-52 - 1.0) * range;
  }
  std::vector<float> floats(std::size_t count, float range = 1.0F) {
    std::vector<float> out(count);
    for (float& x : out) x = symmetric(range);
    return out;
  }

 private:
  std::mt19937_64 bits_;
};

inline constexpr double kEpsilon = 0x1p-24;  // of one rounding to float

}  // namespace kvasir::test

#define KVASIR_ON_EVERY_TABLE(suite) \
  INSTANTIATE_TEST_SUITE_P(Tables, suite, testing::ValuesIn(::kvasir::kernel_names()), ::kvasir::test::table_name)
