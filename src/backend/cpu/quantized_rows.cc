#include "backend/cpu/quantized_rows.h"

namespace kvasir {

std::uint64_t QuantizedRows::bytes(int groups, int inputs) {
  constexpr std::size_t kBlockSums = 2 * sizeof(float) + 3 * sizeof(std::int32_t);
  return group_places(groups, (inputs + kQ8Block - 1) / kQ8Block * kQ8Block) * (kQ8Block + kBlockSums);
}

MutableQ8Rows QuantizedRows::ensure(int groups, int inputs) {
  const std::size_t places = group_places(groups, inputs);
  return {quants_.ensure(places * kQ8Block), scale_.ensure(places), scaled_sum_.ensure(places), sum_.ensure(places),
          half_sum_.ensure(2 * places)};
}

Q8Rows QuantizedRows::view(int group, int inputs) const {
  if (quants_.data() == nullptr) return {};
  const Q8Rows all{quants_.data(), scale_.data(), scaled_sum_.data(), sum_.data(), half_sum_.data()};
  return all.at(group_places(group, inputs));
}

std::uint64_t QuantizedRows::allocated_bytes() const {
  return quants_.bytes() + scale_.bytes() + scaled_sum_.bytes() + sum_.bytes() + half_sum_.bytes();
}

}  // namespace kvasir
