// The columns of a page table by handle: their pages, the tokens in their slots, and which handles are free.
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "kv/column_pages.h"
#include "kv/page_table_layout.h"

namespace kvasir {

class TableColumns {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;  // no column

  struct Column {
    SlotMask live = 0;          // slots that hold retained tokens
    std::uint64_t ordinal = 0;  // of this column in its run, from 0
    TokenIndex first = 0;       // index of the token in slot 0
    Position base = 0;          // compact positions: slot s is stored rotated by base + s + its frame's rotation
    std::int32_t used = 0;      // slots written; 0: the handle is free, or the column a spare one
    std::int16_t entries = 0;   // that refer to it
    bool sealed = false;        // its pages are encoded
  };

  // The pool and its budget outlive the columns.
  TableColumns(int lanes, PagePool* pool, const PageTableLayout& layout)
      : layout_(layout), slots_(static_cast<std::size_t>(pool->shape().slots)), pages_(lanes, pool, layout.classes) {}

  const PageTableLayout& layout() const { return layout_; }
  int slots() const { return static_cast<int>(slots_); }
  int count() const { return count_; }  // that hold pages, spare ones included
  Column& operator[](std::uint32_t column) { return columns_[column]; }
  const Column& operator[](std::uint32_t column) const { return columns_[column]; }
  // Columns that hold tokens, oldest first.
  std::vector<std::uint32_t> in_order() const;
  std::uint32_t handles() const { return static_cast<std::uint32_t>(columns_.size()); }  // each is below this

  TokenIndex index(std::uint32_t column, int slot) const {
    const auto at = static_cast<std::size_t>(slot);
    return columns_[column].first + static_cast<TokenIndex>(layout_.lists ? offsets_[column * slots_ + at] : at);
  }
  // Of the last slot written.
  TokenIndex last_index(std::uint32_t column) const { return index(column, columns_[column].used - 1); }
  TokenIndex first_live(const PageEntry& entry) const { return index(entry.column, std::countr_zero(entry.live)); }
  TokenIndex last_live(const PageEntry& entry) const {
    return index(entry.column, static_cast<int>(std::bit_width(entry.live)) - 1);
  }
  // The slots of a column whose tokens have indices in [begin, end); indices ascend with slots.
  SlotMask slots_of(std::uint32_t column, TokenIndex begin, TokenIndex end) const;
  // Indices relative to the column's first, of the slots written. REQUIRES: lists.
  std::span<std::uint32_t> offsets(std::uint32_t column) {
    return std::span(offsets_).subspan(std::size_t{column} * slots_, static_cast<std::size_t>(columns_[column].used));
  }
  std::span<const std::uint32_t> offsets(std::uint32_t column) const {
    return std::span(offsets_).subspan(std::size_t{column} * slots_, static_cast<std::size_t>(columns_[column].used));
  }

  // How often the token in each slot was encoded, up to 255: when its page was sealed, and each time that it was
  // packed, handed on or rotated. [slots]. REQUIRES: the format is encoded.
  std::span<std::uint8_t> encodings(std::uint32_t column) {
    return std::span(encodings_).subspan(std::size_t{column} * slots_, slots_);
  }
  std::span<const std::uint8_t> encodings(std::uint32_t column) const {
    return std::span(encodings_).subspan(std::size_t{column} * slots_, slots_);
  }
  // The slots of a column were encoded.
  void count_encodings(std::uint32_t column, SlotMask slots);
  struct Encodings {
    std::uint64_t tokens = 0;  // retained ones that were encoded
    std::uint64_t sum = 0;     // of their numbers
    int most = 0;              // at most 255
    // Tokens of one lane that were encoded when they had been before, so far, also dropped ones.
    std::uint64_t again = 0;
    double mean() const { return tokens > 0 ? static_cast<double>(sum) / static_cast<double>(tokens) : 0; }
  };
  Encodings all_encodings() const;

  ColumnPages& pages() { return pages_; }
  const ColumnPages& pages() const { return pages_; }
  // Gives the column its own copy of pages that others refer to (ColumnPages::own).
  void own(std::uint32_t column) { pages_.own(column, columns_[column].sealed); }
  // Gives the column the next of the fresh pages, in place of those that it has.
  void replace_pages(std::uint32_t column, FreshPages& fresh, bool sealed) {
    pages_.take(column, fresh, sealed);
    columns_[column].sealed = sealed;
  }
  // Exchanges the pages of two columns, one of which is sealed: then the other is.
  void exchange_pages(std::uint32_t a, std::uint32_t b);

  // A column without tokens, with the next of the fresh pages. REQUIRES: room in the arrays (checked).
  std::uint32_t take(FreshPages& fresh, bool sealed);
  void release(std::uint32_t column);  // REQUIRES: no entry refers to it
  // Columns without tokens that are kept ready for tokens that move between runs.
  std::span<const std::uint32_t> spares() const { return spares_; }
  void add_spare(FreshPages& fresh, bool sealed) { spares_.push_back(take(fresh, sealed)); }
  // A spare column, or one with the pages that a run has just given back.
  std::uint32_t take_spare(bool sealed);

  // Refers to the same pages as `other`, but for its spare columns. REQUIRES: nothing is held; room in the arrays.
  void share(const TableColumns& other);

  // Grows the arrays; the capacity last, where an allocation throws.
  void reserve(std::int64_t columns);
  std::int64_t capacity() const { return static_cast<std::int64_t>(columns_.capacity()); }
  static std::uint64_t bytes_of_column(int lanes, int slots, const PageTableLayout& layout);  // in the arrays
  std::uint64_t allocated_bytes() const;

 private:
  PageTableLayout layout_;
  std::size_t slots_;
  ColumnPages pages_;
  std::vector<Column> columns_;          // by handle
  std::vector<std::uint32_t> offsets_;   // lists: [column][slot]
  std::vector<std::uint8_t> encodings_;  // pages are encoded: [column][slot]
  std::vector<std::uint32_t> free_;      // handles without pages
  std::vector<std::uint32_t> spares_;
  int count_ = 0;
  std::uint64_t encoded_again_ = 0;
};

}  // namespace kvasir
