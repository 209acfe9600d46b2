// Splits a partial of attention into runs of entries in one format, which a kernel takes each, and into blocks of
// queries. A state is added to entry by entry, so the splits do not change its bits.
// Written once; compiled for each instruction set by the file that includes it.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {
namespace {

// Returns the page `ahead` entries behind an entry, to be fetched while that entry's page is read; null where it is not
// known.
inline const std::byte* known_page_ahead(const AttentionPartial& partial, int entry, int ahead) {
  if (entry + ahead < partial.entries) return partial.pages[entry + ahead];
  const int next = entry + ahead - partial.entries;
  return next < NextPages::kMost ? partial.next_pages.of[next] : nullptr;
}

// The same; that page itself where none is known.
inline const std::byte* page_ahead(const AttentionPartial& partial, int entry, int ahead = 1) {
  const std::byte* page = known_page_ahead(partial, entry, ahead);
  return page != nullptr ? page : partial.pages[entry];
}

// Entries [first, first + count) of a partial.
inline AttentionPartial entries_of_partial(const AttentionPartial& partial, int first, int count) {
  AttentionPartial part = partial;
  part.entries = count;
  if (part.pages != nullptr) {
    for (int i = 0; i < NextPages::kMost; ++i)
      part.next_pages.of[i] = known_page_ahead(partial, first + count - 1, i + 1);
    part.pages += first;
  }
  part.joined = partial.joined >> first & ~1U;
  part.formats += first;
  part.masks += first;
  if (part.biases != nullptr) part.biases += first;
  if (part.weights != nullptr) {
    part.weights += static_cast<std::ptrdiff_t>(first) * partial.slots;
    part.weight_maxima += first;
  }
  return part;
}

// A block of queries of a partial.
template <int kQueries>
struct QueryBlock {
  const float* q[kQueries];  // [head_dim] each
  float* weighted[kQueries];
  const SlotMask* masks[kQueries];  // [entries]
  float* observed[kQueries];        // nullptr: weights are not wanted

  QueryBlock(const AttentionPartial& partial, const AttentionState& state, int first) {
    const int dim = partial.head_dim;
    int row = first / partial.group;
    int head = first % partial.group;
    for (int i = 0; i < kQueries; ++i) {
      q[i] = partial.q + static_cast<std::size_t>(row) * partial.q_row_stride + static_cast<std::size_t>(head * dim);
      weighted[i] = state.weighted + static_cast<std::size_t>(first + i) * static_cast<std::size_t>(dim);
      observed[i] = partial.weights != nullptr
                        ? partial.weights + static_cast<std::size_t>(first + i) * partial.weight_stride
                        : nullptr;
      masks[i] = partial.masks + static_cast<std::size_t>(row) * partial.mask_row_stride;
      if (++head == partial.group) {
        head = 0;
        ++row;
      }
    }
  }

  // The slots of an entry that each query sees. Returns whether any sees one.
  [[gnu::always_inline]] bool live(int entry, SlotMask (&of)[kQueries]) const {
    SlotMask any = 0;
    for (int i = 0; i < kQueries; ++i) any |= of[i] = masks[i][entry];
    return any != 0;
  }
};

// Calls run(part) for each run of entries.
template <class Run>
inline void attend_runs(const AttentionPartial& partial, const Run& run) {
  for (int e = 0; e < partial.entries;) {
    int end = e + 1;
    while (end < partial.entries &&
           (partial.formats[end] == partial.formats[e] || *partial.formats[end] == *partial.formats[e]))
      ++end;
    run(entries_of_partial(partial, e, end - e));
    e = end;
  }
}

}  // namespace
}  // namespace kvasir
