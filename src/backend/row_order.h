// Which row of a file's matrix is which output.
// Thread-safety: plain values.
#pragma once

namespace kvasir {

// Rows from `first` on; if `rotary` is set, heads of head_dim rows whose rotated pairs are i and i + rotary / 2
// (GPT-NeoX) become the pairs 2i and 2i + 1 that backends rotate. Queries and keys reordered alike have the same
// products.
struct RowOrder {
  int first = 0;
  int head_dim = 0;
  int rotary = 0;
  int stride = 0;  // rows from one head to the next; 0: head_dim

  int row(int output) const {
    if (rotary == 0 && stride == 0) return first + output;
    const int d = output % head_dim;
    const int head = first + (stride > 0 ? output / head_dim * stride : output - d);
    return head + (d >= rotary ? d : d / 2 + d % 2 * (rotary / 2));
  }
};

}  // namespace kvasir
