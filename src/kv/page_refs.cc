#include "kv/page_refs.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace kvasir {

bool PageRefs::try_allocate(std::size_t count, PageClass of, PageContent content) {
  const std::size_t size = ids_.size();
  ids_.resize(size + count, kNoPage);
  if (pool_->try_allocate(std::span(ids_).subspan(size), owner_, of, content)) return true;
  ids_.resize(size);
  return false;
}

bool PageRefs::try_allocate_columns(std::size_t columns, std::size_t lanes, PageClass of, PageContent content) {
  const std::size_t size = ids_.size();
  if (!try_allocate(columns * lanes, of, content)) return false;
  if (columns < 2) return true;
  std::vector<PageId>& in_order = pool_->scratch().pages;
  in_order.assign(ids_.begin() + static_cast<std::ptrdiff_t>(size), ids_.end());
  std::ranges::sort(in_order);
  std::size_t next = 0;
  for (std::size_t first = 0; first < columns; first += kColumnRun)
    for (std::size_t lane = 0; lane < lanes; ++lane)
      for (std::size_t c = first; c < std::min(first + kColumnRun, columns); ++c)
        ids_[size + c * lanes + lane] = in_order[next++];
  return true;
}

void PageRefs::take(std::size_t at, PageRefs& from, std::size_t first, std::size_t count) {
  KVASIR_CHECK(at <= ids_.size() && first + count <= from.ids_.size());
  reset(at, std::min(count, ids_.size() - at));
  if (ids_.size() < at + count) ids_.resize(at + count, kNoPage);
  for (std::size_t i = 0; i < count; ++i) {
    ids_[at + i] = std::exchange(from.ids_[first + i], kNoPage);
    if (ids_[at + i] != kNoPage) pool_->hand_over(ids_[at + i], from.owner_, owner_);
  }
}

void PageRefs::exchange(std::size_t at, std::size_t with, std::size_t count) {
  const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(at);
  std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(count), ids_.begin() + static_cast<std::ptrdiff_t>(with));
}

void PageRefs::reset(std::size_t at, std::size_t count) {
  for (PageId& id : std::span(ids_).subspan(at, count))
    if (id != kNoPage) pool_->release(std::exchange(id, kNoPage), owner_);
}

void PageRefs::add(std::span<const PageId> pages) {
  ids_.reserve(ids_.size() + pages.size());  // may throw, so before any reference is taken
  for (const PageId id : pages) {
    pool_->retain(id, owner_);
    ids_.push_back(id);
  }
}

void PageRefs::mark_cached() {
  std::vector<PageId> held;
  std::ranges::copy_if(ids_, std::back_inserter(held), [](PageId id) { return id != kNoPage; });
  pool_->mark_cached(owner_, held);
}

void PageRefs::share(const PageRefs& other) {
  KVASIR_CHECK(ids_.empty() && pool_ == other.pool_);
  ids_.assign(other.ids_.begin(), other.ids_.end());
  for (const PageId id : ids_)
    if (id != kNoPage) pool_->retain(id, owner_);
}

}  // namespace kvasir
