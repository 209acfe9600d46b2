// References of one owner to pages of one pool: each is given back when it is overwritten, or with the object.
// Move-only. Thread-safety: none, as the pool.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace kvasir {

// An array of references, some of which may be empty. One array serves a whole page table, so that a batch can refer to
// the page numbers as they lie.
class PageRefs {
 public:
  // The pool outlives the references.
  explicit PageRefs(PagePool* pool) : pool_(pool), owner_(pool->owners().add()) {}
  // `other` may then only be assigned to or destroyed.
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
  // References to pages that have others too.
  std::uint64_t shared() const { return pool_->owners().shared(owner_); }
  void reserve(std::size_t size) { ids_.reserve(size); }

  // Adds `count` references to new pages of a class, each its page's only one, or none at all (false).
  bool try_allocate(std::size_t count, PageClass of = {}, PageContent content = PageContent::kZero);

  // As try_allocate, of [columns][lanes] references, of which those of a lane follow each other in memory over up to
  // four columns, as far as the pool has such pages: attention reads them in that order, and faster. Longer runs would
  // keep more blocks of pages from coming free, as columns end one by one.
  bool try_allocate_columns(std::size_t columns, std::size_t lanes, PageClass of = {},
                            PageContent content = PageContent::kZero);

  // Moves `count` references of `from` to [at, at + count), which gives back what was there. REQUIRES: at <= size().
  void take(std::size_t at, PageRefs& from, std::size_t first, std::size_t count);

  // Gives back the references of [at, at + count), which are then empty.
  void reset(std::size_t at, std::size_t count);

  // Exchanges `count` references at two places that do not overlap.
  void exchange(std::size_t at, std::size_t with, std::size_t count);

  // Adds references to pages in use, none of which it refers to yet.
  void add(std::span<const PageId> pages);

  // From now on its references count as a cache's: PagePool::mark_cached, once.
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
