// SplitMix64 (Steele, Lea, Flood 2014): a generator that draws the same numbers with every library.
// Thread-safety: a value.
#pragma once

#include <cstdint>

namespace kvasir {

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Below `count`. The modulus favours low numbers by less than count / 2^64.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(count));
  }
  // In [0, 1), a multiple of 2^-53.
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_;
};

}  // namespace kvasir
