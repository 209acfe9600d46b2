// Copies of the keys and values that a page table has dropped, in pages of no table.
//
// Each drop appends its tokens, in order of index, to an open column of 16-bit pages. A full column is sorted by index,
// encoded, and never changes again. Every lane of a column has bounds: for each segment of kSegment slots the least and
// the greatest element of each dimension of its keys, as attention reads them (decoded, before the pages' Hadamard
// matrix). Nothing is ever lost. With a file, only the newest encoded columns stay in memory; the oldest leave first.
//
// Keys stay rotated as the table had them. REQUIRES: a table whose keys are stored rotated by their tokens' indices:
// original positions, or ranges whose frames move by their origins alone.
//
// Forks share encoded columns.
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <bit>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "kv/page_table.h"
#include "offload/demotion_file.h"

namespace kvasir {

class DemotedPages {
 public:
  static constexpr int kSegment = 16;  // slots that share bounds

  struct Layout {
    int lanes = 0;
    PageClasses classes;  // of encoded columns and of the open one
    PageFormat format;    // of encoded columns
    // Most encoded columns in memory, at least 1; others leave for the file. Without a file all stay.
    std::int64_t most_in_memory = 0;
    DemotionFile* file = nullptr;  // outlives this

    int segments() const { return format.slots / kSegment; }
    // Floats of the bounds of one lane: [segment][low, high][dimension].
    std::size_t lane_floats() const {
      return static_cast<std::size_t>(segments()) * 2 * static_cast<std::size_t>(format.head_dim);
    }
  };

  // An encoded column.
  struct Column {
    explicit Column(PagePool* pool) : pages(pool), charge(&pool->budget()) {}
    PageRefs pages;                       // [lane]; given back once they are in the file
    AlignedBuffer<float> bounds;          // [lane][segment][low, high][dimension]
    SpillFile* file = nullptr;            // where `parts` are
    std::shared_ptr<SpilledParts> parts;  // [lane]; null: the pages are in memory
    MemoryCharge charge;                  // of all but the pages
  };

  // The pool outlives this. Nothing is charged before the first token.
  DemotedPages(PagePool* pool, const Layout& layout);

  // Returns the most bytes() of `tokens` demoted tokens, whatever is shared.
  static std::uint64_t bytes_for(const Layout& layout, std::int64_t tokens);
  std::uint64_t bytes() const;      // charged, for what is shared too
  std::uint64_t own_bytes() const;  // of these, what is freed with this object
  std::uint64_t file_bytes() const;

  // Copies the tokens of `ranges` (ascending, disjoint) that `table` retains and is about to drop. REQUIRES: between
  // passes; bytes_for(tokens() and these) less bytes() are available; status().ok().
  void take(const PageTable& table, std::span<const IndexRange> ranges);
  // Returns the first failure to write the oldest column to the file.
  const Status& status() const { return status_; }

  std::int64_t tokens() const { return std::ssize(columns_) * layout_.format.slots + used_; }
  const Layout& layout() const { return layout_; }

  // Columns with tokens; the last may be the open one. A column keeps its number; only encoding changes its pages.
  std::int64_t columns() const { return std::ssize(columns_) + (used_ > 0 ? 1 : 0); }
  bool is_open(std::int64_t column) const { return column == std::ssize(columns_); }
  const Column& encoded(std::int64_t column) const { return *columns_[static_cast<std::size_t>(column)]; }
  bool in_memory(std::int64_t column) const { return is_open(column) || encoded(column).parts == nullptr; }
  // REQUIRES: in_memory(column).
  PageId page(std::int64_t column, int lane) const {
    const std::span<const PageId> pages = is_open(column) ? open_.ids() : encoded(column).pages.ids();
    return pages[static_cast<std::size_t>(lane)];
  }
  SlotMask live(std::int64_t column) const { return slot_range(0, is_open(column) ? used_ : layout_.format.slots); }
  // Returns the bounds of the segments that hold tokens: [segment][low, high][dimension].
  const float* bounds(std::int64_t column, int lane) const {
    const AlignedBuffer<float>& all = is_open(column) ? open_bounds_ : encoded(column).bounds;
    return all.data() + static_cast<std::size_t>(lane) * layout_.lane_floats();
  }
  int segments(std::int64_t column) const { return (std::popcount(live(column)) + kSegment - 1) / kSegment; }

  // Seconds waited for room in the file's buffers.
  double seconds_writing() const { return seconds_writing_; }

  // Returns the same content; encoded columns are shared. Errors: kResourceExhausted.
  Result<DemotedPages> fork() const;
  std::uint64_t fork_bytes() const { return charge_.bytes() + open_page_bytes(); }

 private:
  static constexpr std::int64_t kStep = 16;  // columns by which the list of them grows

  static std::uint64_t list_bytes(std::int64_t columns) {
    return static_cast<std::uint64_t>((columns + kStep - 1) / kStep * kStep) * sizeof(std::shared_ptr<Column>);
  }
  static std::uint64_t open_bytes(const Layout& layout);    // but for the pages
  static std::uint64_t column_bytes(const Layout& layout);  // but for the pages and their places in a file
  std::uint64_t open_page_bytes() const;
  Status open();
  void append(const PageTable& table, std::uint32_t column, SlotMask slots);
  void encode_open();
  Status send_oldest();
  void note_bounds(std::span<const PageId> pages, int count, AlignedBuffer<float>& to) const;

  PagePool* pool_;
  Layout layout_;
  std::vector<std::shared_ptr<Column>> columns_;  // oldest first
  std::int64_t away_ = 0;                         // columns that it has sent to the file, or found there
  PageRefs open_;                                 // [lane]; empty before the first token
  AlignedBuffer<float> open_bounds_;
  std::vector<TokenIndex> open_tokens_;  // [slots]
  int used_ = 0;                         // slots of the open column
  MemoryCharge charge_;                  // of the list of columns and of the open column, but for its pages
  double seconds_writing_ = 0;
  Status status_;
};

}  // namespace kvasir
