// Rows of activations in the quantised form of kernels.h, and the memory that holds them.
// Internal to src/backend/cpu. Thread-safety: none.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"
#include "base/aligned_buffer.h"

namespace kvasir {

class QuantizedRows {
 public:
  // Bytes that ensure allocates.
  static std::uint64_t bytes(int groups, int inputs);

  // Makes room for groups of 16 rows of `inputs` floats, and returns it. What was there before is lost.
  MutableQ8Rows ensure(int groups, int inputs);
  // From row group `group` on; `inputs` as of ensure. Before the first ensure there is nothing.
  Q8Rows view(int group, int inputs) const;
  std::uint64_t allocated_bytes() const;

 private:
  AlignedBuffer<std::int8_t> quants_;
  AlignedBuffer<float> scale_;
  AlignedBuffer<float> scaled_sum_;
  AlignedBuffer<std::int32_t> sum_;
  AlignedBuffer<std::int32_t> half_sum_;
};

// Places of the blocks of row groups before `group`.
inline std::size_t group_places(int group, int inputs) {
  return static_cast<std::size_t>(group) * static_cast<std::size_t>(inputs / kQ8Block) * kRowGroup;
}

}  // namespace kvasir
