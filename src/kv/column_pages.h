// The pages of a table's columns, and the number of columns that other tables refer to as well.
//
// Thread-safety: none, as the pool.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_refs.h"

namespace kvasir {

// Pages for new columns, handed out one column after the other. Remaining pages are given back with the object.
class FreshPages {
 public:
  FreshPages(int lanes, PagePool* pool, const PageClasses& classes)
      : lanes_(static_cast<std::size_t>(lanes)), classes_(classes), refs_(pool) {}

  // Allocates pages for `open` open and `sealed` sealed columns. Returns false if not all fit. Called once.
  bool try_allocate(std::uint64_t open, std::uint64_t sealed, PageContent content = PageContent::kZero) {
    next_sealed_ = open * lanes_;
    return refs_.try_allocate_columns(open, lanes_, classes_.open, content) &&
           refs_.try_allocate_columns(sealed, lanes_, classes_.sealed, content);
  }
  // Instead of try_allocate: refers to pages in use, all of one form. Called once.
  void add(std::span<const PageId> pages) { refs_.add(pages); }

  // The pages of the column that is handed out `ahead` columns after the next one.
  std::span<const PageId> next(bool sealed, std::size_t ahead = 0) const {
    return refs_.ids().subspan((sealed ? next_sealed_ : next_open_) + ahead * lanes_, lanes_);
  }
  // Moves the references of the next column to [at, at + lanes) of `to`, which gives back its references there.
  void hand_out(bool sealed, PageRefs& to, std::size_t at) {
    std::size_t& next = sealed ? next_sealed_ : next_open_;
    to.take(at, refs_, std::exchange(next, next + lanes_), lanes_);
  }

 private:
  std::size_t lanes_;
  PageClasses classes_;
  PageRefs refs_;  // [column][lane], open ones first
  std::size_t next_open_ = 0;
  std::size_t next_sealed_ = 0;
};

// Adds a move, or merges it into the last one where it continues that one.
void add_move(std::vector<SlotMove>& moves, const SlotMove& move);

class ColumnPages {
 public:
  // The pool and its budget outlive the pages.
  ColumnPages(ColumnLanes lanes, PagePool* pool, const PageClasses& classes)
      : lanes_(lanes), pool_(pool), classes_(classes), refs_(pool) {}

  int lanes() const { return lanes_.count; }
  ColumnLanes rotated_lanes() const { return lanes_; }
  PagePool& pool() const { return *pool_; }
  const PageFormat& format() const { return pool_->format(classes_.sealed); }
  PageClass class_of(bool sealed) const { return sealed ? classes_.sealed : classes_.open; }

  std::span<const PageId> all() const { return refs_.ids(); }  // [column][lane]
  std::span<const PageId> of(std::uint32_t column) const { return all().subspan(first(column), count()); }
  // Either all lanes of a column are shared or none: forks share whole columns (PageTable::check_invariants).
  bool is_shared(std::uint32_t column) const { return pool_->references(of(column).front()) > 1; }
  std::uint64_t shared() const { return refs_.shared() / count(); }  // shared columns. O(1)
  // Bytes charged for the pages of `columns` columns, `open` of which are not encoded.
  std::uint64_t bytes(std::uint64_t columns, std::uint64_t open) const {
    return count() * ((columns - open) * pool_->page_cost(classes_.sealed) + open * pool_->page_cost(classes_.open));
  }

  FreshPages fresh() const { return {lanes_.count, pool_, classes_}; }
  // Replaces the column's pages by the next fresh ones.
  void take(std::uint32_t column, FreshPages& from, bool sealed) { from.hand_out(sealed, refs_, first(column)); }
  // Replaces the column's pages by the next fresh ones, with the same content.
  void copy(std::uint32_t column, FreshPages& to, bool sealed);
  // Replaces shared pages by copies, before a physical write. REQUIRES: room for them was reserved (checked).
  void own(std::uint32_t column, bool sealed);
  // Moves the column's pages to [at, at + lanes) of `to`.
  void hand_over(std::uint32_t column, PageRefs& to, std::size_t at) { to.take(at, refs_, first(column), count()); }
  void exchange(std::uint32_t a, std::uint32_t b) { refs_.exchange(first(a), first(b), count()); }
  void release(std::uint32_t column) { refs_.reset(first(column), count()); }
  // Refers to the same pages as `other`. REQUIRES: this object has no pages.
  void share(const ColumnPages& other) { refs_.share(other.refs_); }
  void mark_cached() { refs_.mark_cached(); }  // PageRefs::mark_cached

  // Moves slots in the store, if there is one. Encoded destinations are written as wholes (PageStore::repack).
  void move(std::span<const SlotMove> moves, bool repack = false);

  std::uint64_t slots_moved() const { return slots_moved_; }    // total, of one lane
  std::uint64_t pages_copied() const { return pages_copied_; }  // total of copies before writes to shared pages

  void reserve(std::size_t columns) { refs_.reserve(columns * count()); }
  std::uint64_t allocated_bytes() const { return refs_.capacity() * sizeof(PageId); }

 private:
  std::size_t count() const { return static_cast<std::size_t>(lanes_.count); }
  std::size_t first(std::uint32_t column) const { return std::size_t{column} * count(); }

  ColumnLanes lanes_;
  PagePool* pool_;
  PageClasses classes_;
  PageRefs refs_;  // [column][lane]
  std::uint64_t slots_moved_ = 0;
  std::uint64_t pages_copied_ = 0;
};

}  // namespace kvasir
