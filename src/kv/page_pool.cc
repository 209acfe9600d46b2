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

Result<std::unique_ptr<PagePool>> PagePool::create(const KvPageShape& shape, MemoryBudget* budget, Backing backing) {
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->shape_ = shape;
  pool->backing_ = backing;
  pool->budget_ = budget;
  pool->page_bytes_ = shape.page_bytes();
  pool->capacity_ = std::min<std::uint64_t>(budget->capacity() / pool->page_cost(), UINT32_MAX);
  if (pool->capacity_ == 0)
    return exhausted("a KV budget of {} bytes holds no page of {} bytes; raise --kv-memory", budget->capacity(),
                     pool->page_bytes_);
  pool->references_ = static_cast<std::uint32_t*>(reserve(pool->capacity_ * sizeof(std::uint32_t)));
  pool->free_ = static_cast<std::uint32_t*>(reserve(pool->capacity_ * sizeof(std::uint32_t)));
  bool reserved = pool->references_ != nullptr && pool->free_ != nullptr;
  if (backing == Backing::kMemory) {
    pool->data_ = static_cast<std::byte*>(reserve(pool->capacity_ * pool->page_bytes_));
    reserved = reserved && pool->data_ != nullptr;
  }
  if (!reserved)
    return exhausted("the system has no room for a KV budget of {} bytes; lower --kv-memory", budget->capacity());
  return pool;
}

PagePool::~PagePool() {
  if (references_ != nullptr) ::munmap(references_, capacity_ * sizeof(std::uint32_t));
  if (free_ != nullptr) ::munmap(free_, capacity_ * sizeof(std::uint32_t));
  if (data_ != nullptr) ::munmap(data_, capacity_ * page_bytes_);
}

bool PagePool::try_allocate(std::span<PageId> out) {
  if (out.size() > capacity_ - in_use_ || !budget_->try_charge(out.size() * page_cost())) return false;
  for (PageId& page : out) {
    const bool recycled = free_count_ > 0;
    page = static_cast<PageId>(recycled ? free_[--free_count_] : touched_++);
    references_[index(page)] = 1;
    // A fresh page is zero already; a recycled one must not show another sequence's data, nor NaNs to masked slots.
    if (recycled && backing_ == Backing::kMemory) std::memset(data(page), 0, page_bytes_);
  }
  in_use_ += out.size();
  peak_ = std::max(peak_, in_use_);
  return true;
}

void PagePool::retain(PageId page) {
  KVASIR_CHECK(references_[index(page)] > 0 && references_[index(page)] < UINT32_MAX);
  ++references_[index(page)];
}

void PagePool::release(PageId page) {
  KVASIR_CHECK(references_[index(page)] > 0);
  if (--references_[index(page)] > 0) return;
  free_[free_count_++] = static_cast<std::uint32_t>(page);
  --in_use_;
  budget_->release(page_cost());
}

void PagePool::check_invariants() const {
  KVASIR_CHECK(in_use_ + free_count_ == touched_ && touched_ <= capacity_ && peak_ <= touched_);
  std::vector<bool> free(touched_, false);
  for (std::uint64_t i = 0; i < free_count_; ++i) {
    KVASIR_CHECK(free_[i] < touched_ && !free[free_[i]] && references_[free_[i]] == 0);
    free[free_[i]] = true;
  }
  for (std::uint64_t i = 0; i < touched_; ++i) KVASIR_CHECK(free[i] || references_[i] > 0);
}

}  // namespace kvasir
