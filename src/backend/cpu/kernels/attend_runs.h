// Splits a partial of attention into what a kernel for one type of elements takes: entries that follow each other in
// one format, and encoded pages one by one, decoded to floats that stay in the first cache. A state is added to entry
// by entry, so the split does not change its bits. Written once; compiled for each instruction set by the file that
// includes it.
#pragma once

#include "backend/cpu/kernels/decode_page.h"
#include "backend/cpu/kernels/kernels.h"

namespace kvasir {
namespace {

// Entries [first, first + count) of a partial.
inline AttentionPartial entries_of_partial(const AttentionPartial& partial, int first, int count) {
  AttentionPartial part = partial;
  part.entries = count;
  part.pages += first;
  part.formats += first;
  part.masks += first;
  if (part.weights != nullptr) {
    part.weights += static_cast<std::ptrdiff_t>(first) * partial.slots;
    part.weight_maxima += first;
  }
  return part;
}

inline bool sees_entry(const AttentionPartial& partial, int entry) {
  SlotMask any = 0;
  for (int r = 0; r < partial.rows; ++r)
    any |= partial.masks[static_cast<std::size_t>(r) * partial.mask_row_stride + static_cast<std::size_t>(entry)];
  return any != 0;
}

// Calls run(part) for each; the pages of a part are of one format that is not encoded.
template <class Run>
inline void attend_runs(const AttentionPartial& partial, const Run& run) {
  alignas(64) float decoded[2 * kMaxHeadDim * 64];
  const PageFormat floats{partial.head_dim, partial.slots, KvType::kF32};
  const std::byte* decoded_page = reinterpret_cast<const std::byte*>(decoded);
  const PageFormat* decoded_format = &floats;
  for (int e = 0; e < partial.entries;) {
    const PageFormat& format = *partial.formats[e];
    int end = e + 1;
    if (format.encoded()) {
      if (sees_entry(partial, e)) {
        decode_keys(format, partial.pages[e], decoded);
        decode_values(format, partial.pages[e], decoded + partial.head_dim * partial.slots);
        AttentionPartial part = entries_of_partial(partial, e, 1);
        part.pages = &decoded_page;
        part.formats = &decoded_format;
        run(part);
      }
    } else {
      while (end < partial.entries && (partial.formats[end] == partial.formats[e] || *partial.formats[end] == format))
        ++end;
      run(entries_of_partial(partial, e, end - e));
    }
    e = end;
  }
}

}  // namespace
}  // namespace kvasir
