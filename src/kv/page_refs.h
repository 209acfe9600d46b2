// References of one owner to pages of one pool. A reference is given back when it is overwritten, or with the object.
// Move-only. Thread-safety: none, as the pool.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace kvasir {

// An array of references, some of which may be empty. One array serves a whole page table, so that a batch can use the
// page numbers in place.
class PageRefs {
 public:
  // The pool outlives the references.
  explicit PageRefs(PagePool* pool) : pool_(pool), owner_(pool->owners().add()) {}
  // After the move, `other` may only be assigned to or destroyed.
  PageRefs(PageRefs&& other) noexcept
      : pool_(other.pool_),
        owner_(std::exchange(other.owner_, PageOwner::kNobody)),
        ids_(std::exchange(other.ids_, {})) {}
  PageRefs& operator=(PageRefs&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(owner_, other.owner_);
    ids_.swap(other.ids_);
    return *this;
  }
  PageRefs(const PageRefs&) = delete;
  PageRefs& operator=(const PageRefs&) = delete;
  ~PageRefs() {
    reset(0, ids_.size());
    if (owner_ != PageOwner::kNobody) pool_->owners().remove(owner_);
  }

  // The page numbers; those of empty references mean nothing.
  std::span<const PageId> ids() const { return ids_; }
  PageOwner owner() const { return owner_; }
  std::size_t size() const { return ids_.size(); }
  std::size_t capacity() const { return ids_.capacity(); }
  // The number of references to pages that other owners refer to as well.
  std::uint64_t shared() const { return pool_->owners().shared(owner_); }
  void reserve(std::size_t size) { ids_.reserve(size); }

  // Adds `count` references to new pages of a class, each its page's only one. Adds none if it returns false.
  bool try_allocate(std::size_t count, PageClass of = {}, PageContent content = PageContent::kZero);

  // As try_allocate, for [columns][lanes] references. Where the pool has such pages, up to four columns of a lane are
  // adjacent in memory: attention reads them in that order, and faster. Longer series would keep more page blocks from
  // becoming free, because columns are released one by one.
  bool try_allocate_columns(std::size_t columns, std::size_t lanes, PageClass of = {},
                            PageContent content = PageContent::kZero);

  // Moves `count` references of `from` to [at, at + count), and gives back those there. REQUIRES: at <= size().
  void take(std::size_t at, PageRefs& from, std::size_t first, std::size_t count);

  // Gives back the references of [at, at + count), which are then empty.
  void reset(std::size_t at, std::size_t count);

  // Exchanges `count` references at two places that do not overlap.
  void exchange(std::size_t at, std::size_t with, std::size_t count);

  // Adds references to pages in use. REQUIRES: this object refers to none of them yet.
  void add(std::span<const PageId> pages);

  // Counts the references as a cache's from now on (PagePool::mark_cached). Called once.
  void mark_cached();

  // Refers to the same pages as `other`. REQUIRES: size() == 0.
  void share(const PageRefs& other);

 private:
  static constexpr PageId kNoPage{0xffffffff};
  static constexpr std::size_t kColumnRun = 4;

  PagePool* pool_;
  PageOwner owner_;
  std::vector<PageId> ids_;
};

}  // namespace kvasir
