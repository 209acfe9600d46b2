// The columns that the pass at hand seals, and their open pages, which rows before the first reader of the encoded ones
// still read (Sealing in page_table.h).
//
// Thread-safety: as the table's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/table_columns.h"

namespace kvasir {

class PassSeals {
 public:
  struct Seal {
    std::uint32_t column = 0;
    TokenIndex first_reader = 0;  // the first token that reads the encoded pages
    int open = -1;                // place of the open pages in open_pages(); -1: the column was not there before
  };

  explicit PassSeals(PagePool* pool) : open_pages_(pool) {}

  std::span<const Seal> all() const { return seals_; }                      // in order of token
  std::span<const PageId> open_pages() const { return open_pages_.ids(); }  // [Seal::open][lane]
  int kept_columns() const { return kept_; }                                // whose open pages are kept

  void reserve(int seals) { seals_.reserve(static_cast<std::size_t>(seals)); }
  // Of a column whose pages are encoded from the start.
  void add(std::uint32_t column, TokenIndex first_reader) { seals_.push_back({column, first_reader, -1}); }
  // Of an open column, which gets the next of the fresh encoded pages.
  void add(std::uint32_t column, TokenIndex first_reader, TableColumns& columns, FreshPages& fresh) {
    const auto lanes = static_cast<std::size_t>(columns.pages().lanes());
    columns.pages().hand_over(column, open_pages_, static_cast<std::size_t>(kept_) * lanes);
    columns.replace_pages(column, fresh, true);
    seals_.push_back({column, first_reader, kept_++});
  }
  // The pass has ended: gives the open pages back.
  void clear() {
    seals_.clear();
    open_pages_.reset(0, open_pages_.size());
    kept_ = 0;
  }

  // Open pages of so many columns.
  void reserve_pages(std::size_t pages) { open_pages_.reserve(pages); }
  std::uint64_t allocated_bytes() const { return open_pages_.capacity() * sizeof(PageId); }

 private:
  std::vector<Seal> seals_;
  PageRefs open_pages_;
  int kept_ = 0;
};

}  // namespace kvasir
