// Describes a page table to a batch: frames, write slots, positions, and masks where rows differ.
// Thread-safety: a pure function of its arguments.
#pragma once

#include <span>
#include <vector>

#include "backend/batch.h"
#include "kv/page_table.h"

namespace kvasir {

// The newest hidden.size() tokens of the table are the rows; row r sees the retained tokens with indices up to its own,
// except hidden[r]. `window`: a row attends to keys less than this many positions before it (native sliding-window
// attention); 0: to all. Keys outside stay retained.
//
// `read`: if not null, the rows attend only to these ranges (ascending, disjoint), which include the rows' own tokens.
// Tokens outside stay retained.
//
// REQUIRES: hidden ranges are empty, or begin where a frame begins (tokens before them lie in earlier frames), and end
// at or before the row's own token (checked).
void describe_table(const PageTable& table, std::span<const IndexRange> hidden, Position window, BatchTable* out,
                    const std::vector<IndexRange>* read = nullptr);

}  // namespace kvasir
