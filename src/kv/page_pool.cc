#include "kv/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

void* reserve(std::uint64_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

}  // namespace

bool MemoryBudget::try_charge(std::uint64_t bytes) {
  if (bytes > available()) return false;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

void MemoryBudget::release(std::uint64_t bytes) {
  KVASIR_CHECK(bytes <= used_);
  used_ -= bytes;
}

bool MemoryCharge::try_resize(std::uint64_t bytes) {
  if (bytes > bytes_ && !budget_->try_charge(bytes - bytes_)) return false;
  if (bytes < bytes_) budget_->release(bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

Status kv_memory_full(const MemoryBudget& budget, std::uint64_t needed) {
  return exhausted(
             "the KV memory of {} bytes has no room: {} bytes in use, {} more needed; give it more, or choose a "
             "policy that forgets",
             budget.capacity(), budget.used(), needed)
      .about({"kv_memory", "policy"});
}

Result<std::unique_ptr<PagePool>> PagePool::create(const PageFormat& shape, MemoryBudget* budget, PageStore* store) {
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->shape_ = shape;
  pool->store_ = store;
  pool->budget_ = budget;
  pool->page_bytes_ = shape.bytes();
  pool->capacity_ = std::min<std::uint64_t>(budget->capacity() / pool->page_cost(), UINT32_MAX);
  if (pool->capacity_ == 0)
    return exhausted("a KV budget of {} bytes holds no page of {} bytes; give it more", budget->capacity(),
                     pool->page_bytes_)
        .about({"kv_memory"});
  pool->references_ = static_cast<std::uint32_t*>(reserve(pool->capacity_ * sizeof(std::uint32_t)));
  pool->links_ = static_cast<std::uint32_t*>(reserve(pool->capacity_ * sizeof(std::uint32_t)));
  pool->cached_ = static_cast<std::uint32_t*>(reserve(pool->capacity_ * sizeof(std::uint32_t)));
  if (pool->references_ == nullptr || pool->links_ == nullptr || pool->cached_ == nullptr)
    return exhausted("the system has no room for a KV budget of {} bytes; give it less", budget->capacity())
        .about({"kv_memory"});
  if (store != nullptr) KVASIR_RETURN_IF_ERROR(store->reserve(pool->capacity_));
  return pool;
}

PagePool::~PagePool() {
  if (references_ != nullptr) ::munmap(references_, capacity_ * sizeof(std::uint32_t));
  if (links_ != nullptr) ::munmap(links_, capacity_ * sizeof(std::uint32_t));
  if (cached_ != nullptr) ::munmap(cached_, capacity_ * sizeof(std::uint32_t));
}

PageOwner PagePool::add_owner() {
  if (!removed_owners_.empty()) {
    const PageOwner owner = removed_owners_.back();
    removed_owners_.pop_back();
    return owner;
  }
  shared_.push_back(0);
  is_cache_.push_back(0);
  removed_owners_.reserve(shared_.capacity());  // removing an owner never allocates
  return static_cast<PageOwner>(shared_.size() - 1);
}

void PagePool::remove_owner(PageOwner owner) {
  KVASIR_CHECK(owner != PageOwner::kNobody && shared_pages(owner) == 0);
  is_cache_[index(owner)] = 0;
  removed_owners_.push_back(owner);
}

void PagePool::mark_cached(PageOwner owner, std::span<const PageId> pages) {
  KVASIR_CHECK(owner != PageOwner::kNobody && is_cache_[index(owner)] == 0);
  is_cache_[index(owner)] = 1;
  for (const PageId page : pages) {
    KVASIR_CHECK(!only_cached(page));
    if (cached_[index(page)]++ == 0) ++cached_pages_;
    if (only_cached(page)) ++only_cached_pages_;
  }
}

// Of a page that has references already.
void PagePool::add_reference(PageId page, bool cached) {
  const bool was_only_cached = only_cached(page);
  ++references_[index(page)];
  if (cached && cached_[index(page)]++ == 0) ++cached_pages_;
  if (was_only_cached && !only_cached(page)) --only_cached_pages_;
}

void PagePool::drop_reference(PageId page, bool cached) {
  const bool was_only_cached = only_cached(page);
  --references_[index(page)];
  if (cached && --cached_[index(page)] == 0) --cached_pages_;
  const bool is_only_cached = references_[index(page)] > 0 && only_cached(page);
  if (was_only_cached && !is_only_cached) --only_cached_pages_;
  if (!was_only_cached && is_only_cached) ++only_cached_pages_;
}

bool PagePool::try_allocate(std::span<PageId> out, PageOwner owner) {
  std::vector<PageId>& recycled = scratch_.pages;
  recycled.clear();
  recycled.reserve(std::min<std::size_t>(out.size(), free_count_));  // may throw, so before anything is charged
  if (out.size() > capacity_ - in_use_ || !budget_->try_charge(out.size() * page_cost())) return false;
  for (PageId& page : out) {
    const bool used_before = free_count_ > 0;
    page = static_cast<PageId>(used_before ? first_free_ : touched_++);
    if (used_before) {
      first_free_ = links_[index(page)];
      --free_count_;
      recycled.push_back(page);
    }
    references_[index(page)] = 1;
    links_[index(page)] = static_cast<std::uint32_t>(owner);
    if (is_cache_[index(owner)] != 0) {
      cached_[index(page)] = 1;
      ++cached_pages_;
      ++only_cached_pages_;
    }
  }
  // A fresh page is zero already; a recycled one must not show another sequence's data, nor NaNs to masked slots.
  if (store_ != nullptr && !recycled.empty()) store_->clear(recycled);
  in_use_ += out.size();
  peak_ = std::max(peak_, in_use_);
  return true;
}

void PagePool::retain(PageId page, PageOwner owner) {
  KVASIR_CHECK(references_[index(page)] > 0 && references_[index(page)] < UINT32_MAX);
  if (references_[index(page)] == 1) ++shared_[index(only_owner(page))];
  add_reference(page, is_cache_[index(owner)] != 0);
  links_[index(page)] ^= static_cast<std::uint32_t>(owner);
  ++shared_[index(owner)];
}

void PagePool::release(PageId page, PageOwner owner) {
  KVASIR_CHECK(references_[index(page)] > 0);
  drop_reference(page, is_cache_[index(owner)] != 0);
  if (references_[index(page)] > 0) {
    links_[index(page)] ^= static_cast<std::uint32_t>(owner);
    --shared_[index(owner)];
    if (references_[index(page)] > 1) return;
    KVASIR_CHECK(index(only_owner(page)) < shared_.size());
    --shared_[index(only_owner(page))];
    return;
  }
  KVASIR_CHECK(only_owner(page) == owner);
  links_[index(page)] = first_free_;
  first_free_ = static_cast<std::uint32_t>(page);
  ++free_count_;
  --in_use_;
  budget_->release(page_cost());
}

void PagePool::hand_over(PageId page, PageOwner from, PageOwner to) {
  links_[index(page)] ^= static_cast<std::uint32_t>(from) ^ static_cast<std::uint32_t>(to);
  if (is_cache_[index(from)] != is_cache_[index(to)]) {
    add_reference(page, is_cache_[index(to)] != 0);
    drop_reference(page, is_cache_[index(from)] != 0);
  }
  if (references_[index(page)] == 1) return;
  --shared_[index(from)];
  ++shared_[index(to)];
}

void PagePool::check_invariants() const {
  KVASIR_CHECK(in_use_ + free_count_ == touched_ && touched_ <= capacity_ && peak_ <= touched_);
  std::vector<bool> free(touched_, false);
  std::uint32_t page = first_free_;
  for (std::uint64_t i = 0; i < free_count_; ++i, page = links_[page]) {
    KVASIR_CHECK(page < touched_ && !free[page] && references_[page] == 0);
    free[page] = true;
  }
  std::uint64_t cached = 0;
  std::uint64_t only_cached = 0;
  for (std::uint64_t i = 0; i < touched_; ++i) {
    KVASIR_CHECK((free[i] || references_[i] > 0) && cached_[i] <= references_[i]);
    cached += cached_[i] > 0 ? 1 : 0;
    only_cached += cached_[i] > 0 && cached_[i] == references_[i] ? 1 : 0;
  }
  KVASIR_CHECK(cached == cached_pages_ && only_cached == only_cached_pages_);
}

}  // namespace kvasir
