// Keys and values of a page as floats, for what decides by them.
#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/decode_page.h"
#include "backend/cpu/kernels/encode_page.h"

namespace kvasir {

void CpuPageStore::read_keys(PageId page, float* keys) const {
  const PageFormat& of = format(page);
  float by_dimension[kMaxHeadDim * 64];  // [head_dim][slots]
  decode_keys(of, data(page), by_dimension);
  for (int s = 0; s < of.slots; ++s)
    for (int d = 0; d < of.head_dim; ++d) keys[s * of.head_dim + d] = by_dimension[d * of.slots + s];
  if (of.hadamard_keys) hadamard(keys, of.slots, of.head_dim);
}

void CpuPageStore::read_values(PageId page, float* values) const {
  const PageFormat& of = format(page);
  decode_values(of, data(page), values);
  if (of.hadamard_values) hadamard(values, of.slots, of.head_dim);
}

}  // namespace kvasir
