// Page tables of lists of one run: any tokens may leave. Their slots are masked, and compacted when due.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// One change of a list of one run. Works on columns in the pool's scratch.
class ListChange {
 public:
  explicit ListChange(TableTokens& tokens)
      : tokens_(tokens), columns_(tokens.columns), order_(columns_.pages().pool().scratch().columns) {}

  // Gathers all columns in the scratch, oldest first.
  void gather_columns() {
    order_.clear();
    for (const TableTokens::Frame& frame : tokens_.frames)
      for (const PageEntry& entry : tokens_.entries_of(frame))
        if (order_.empty() || order_.back() != entry.column) order_.push_back(entry.column);
  }

  // Original positions: one frame, one entry for each column.
  void mask_entries(std::span<const IndexRange> drop) {
    TableTokens::Frame& frame = tokens_.frames.front();
    std::vector<PageEntry>& entries = tokens_.runs.front().entries;
    auto entry = entries.begin() + frame.begin;
    const auto end = entries.begin() + frame.end;
    auto first_empty = end;
    for (const IndexRange& range : drop) {
      // The last entry that begins at or before the range may hold tokens of it.
      const auto from = static_cast<std::uint32_t>(entry - entries.begin());
      const std::size_t before = tokens_.columns_up_to(frame, range.begin, from);
      entry += before > 0 ? static_cast<std::ptrdiff_t>(before) - 1 : 0;
      for (auto at = entry; at != end && columns_[at->column].first < range.end; ++at) {
        at->live = mask(at->column, range);
        if (at->live == 0) first_empty = std::min(first_empty, at);
      }
    }
    frame.tokens = tokens_.length;
    if (first_empty != end) close_up(first_empty);
    tokens_.set_tail(0, tokens_.newest_column(0));
  }

  // Compact positions: masks tokens out of the gathered columns, releases columns that become empty and lays the
  // entries out anew. Returns false if there would be too many entries or frames.
  bool mask_columns(std::span<const IndexRange> drop) {
    auto column = order_.begin();
    for (const IndexRange& range : drop) {
      column = std::partition_point(column, order_.end(),
                                    [&](std::uint32_t c) { return columns_.last_index(c) < range.begin; });
      for (auto at = column; at != order_.end() && columns_[*at].first < range.end; ++at) mask(*at, range);
    }
    std::erase_if(order_, [&](std::uint32_t c) {
      if (columns_[c].live != 0) return false;
      columns_[c].entries = 1;
      tokens_.unlink_entry(0, c);
      return true;
    });
    tokens_.set_tail(0, order_.empty() ? TableTokens::kNone : order_.back());
    return tokens_.lay_out(order_);
  }

  bool compaction_due() const {
    std::int64_t entries = 0;
    for (const TableTokens::Frame& frame : tokens_.frames) entries += frame.end - frame.begin;
    return (tokens_.written - tokens_.length) * 4 > tokens_.written ||
           (!columns_.layout().packs() && entries > 2 * static_cast<std::int64_t>(tokens_.runs.front().columns));
  }

 private:
  // Removes the entries without live slots; `empty` is the first of them.
  void close_up(std::vector<PageEntry>::iterator empty) {
    std::vector<PageEntry>& entries = tokens_.runs.front().entries;
    TableTokens::Frame& frame = tokens_.frames.front();
    const auto end = entries.begin() + frame.end;
    auto to = empty;
    for (auto from = empty; from != end; ++from) {
      if (from->live == 0) {
        tokens_.unlink_entry(0, from->column);
      } else {
        tokens_.entry_first[static_cast<std::size_t>(to - entries.begin())] = columns_[from->column].first;
        *to++ = *from;
      }
    }
    frame.end = static_cast<std::uint32_t>(to - entries.begin());
    entries.resize(frame.end);
    tokens_.entry_first.resize(frame.end);
  }

  // Masks tokens out of a column. Returns the slots that stay.
  SlotMask mask(std::uint32_t column, IndexRange range) {
    SlotMask& live = columns_[column].live;
    const SlotMask leaves = live & columns_.slots_of(column, range.begin, range.end);
    tokens_.length -= std::popcount(leaves);
    return live &= ~leaves;
  }

  TableTokens& tokens_;
  TableColumns& columns_;
  std::vector<std::uint32_t>& order_;
};

}  // namespace

void PageTable::apply_list(std::span<const IndexRange> drop) {
  ListChange change(tokens_);
  bool fits = true;
  if (tokens_.original) {
    change.mask_entries(drop);
  } else {
    change.gather_columns();
    fits = change.mask_columns(drop);
  }
  if (fits && !change.compaction_due()) return;
  if (tokens_.original) change.gather_columns();
  pack(tokens_.original, layout().most_frames() / 2);
}

void PageTable::compact() {
  KVASIR_CHECK(layout().lists && layout().runs() == 1);
  ListChange(tokens_).gather_columns();
  pack(tokens_.original, kPackedFrames);
}

void PageTable::make_positions_compact() {
  KVASIR_CHECK(layout().lists && layout().runs() == 1);
  if (!tokens_.original) return;
  ListChange(tokens_).gather_columns();
  pack(false, layout().most_frames() / 2);
}

}  // namespace kvasir
