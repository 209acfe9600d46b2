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

Result<std::unique_ptr<PagePool>> PagePool::create(const PageFormat& format, MemoryBudget* budget, PageStore* store) {
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->store_ = store;
  pool->budget_ = budget;
  pool->classes_.reserve(kMaxPageClasses);
  KVASIR_RETURN_IF_ERROR(pool->classes_of(format).status());
  return pool;
}

Result<PageClasses> PagePool::classes_of(const PageFormat& format) {
  PageClasses classes;
  KVASIR_ASSIGN_OR_RETURN(classes.sealed, add_class(format));
  KVASIR_ASSIGN_OR_RETURN(classes.open, add_class(format.open()));
  return classes;
}

Result<PageClass> PagePool::add_class(const PageFormat& format) {
  const auto found = std::ranges::find(classes_, format, &Class::format);
  if (found != classes_.end()) return static_cast<PageClass>(found - classes_.begin());
  KVASIR_CHECK(classes_.empty() || format.slots == shape().slots);
  if (classes_.size() == kMaxPageClasses)
    return unsupported("a cache holds pages of at most {} formats", kMaxPageClasses);
  Class& added = classes_.emplace_back();
  const auto fail = [&](const Status& status) -> Result<PageClass> {
    for (std::uint32_t* array : {added.references, added.links, added.cached})
      if (array != nullptr) ::munmap(array, added.capacity * sizeof(std::uint32_t));
    classes_.pop_back();
    return status;
  };
  added.format = format;
  added.page_bytes = format.bytes();
  added.capacity = std::min(budget_->capacity() / (added.page_bytes + kPageOverhead), kMaxPagesOfClass);
  if (added.capacity == 0)
    return fail(exhausted("a KV budget of {} bytes holds no page of {} bytes; give it more", budget_->capacity(),
                          added.page_bytes)
                    .about({"kv_memory"}));
  added.references = static_cast<std::uint32_t*>(reserve(added.capacity * sizeof(std::uint32_t)));
  added.links = static_cast<std::uint32_t*>(reserve(added.capacity * sizeof(std::uint32_t)));
  added.cached = static_cast<std::uint32_t*>(reserve(added.capacity * sizeof(std::uint32_t)));
  if (added.references == nullptr || added.links == nullptr || added.cached == nullptr)
    return fail(exhausted("the system has no room for a KV budget of {} bytes; give it less", budget_->capacity())
                    .about({"kv_memory"}));
  added.blocks.emplace(added.page_bytes, added.capacity, added.links);
  const auto number = static_cast<PageClass>(classes_.size() - 1);
  if (store_ != nullptr)
    if (Status status = store_->reserve(number, format, added.capacity); !status.ok()) return fail(status);
  return number;
}

PagePool::~PagePool() {
  for (const Class& c : classes_)
    for (std::uint32_t* array : {c.references, c.links, c.cached})
      if (array != nullptr) ::munmap(array, c.capacity * sizeof(std::uint32_t));
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
  for (const PageId id : pages) {
    Class& c = class_of(id);
    const std::size_t page = page_number(id);
    KVASIR_CHECK(!c.only_cached(page));
    if (c.cached[page]++ == 0) ++c.cached_pages;
    if (c.only_cached(page)) ++c.only_cached_pages;
  }
}

// Of a page that has references already.
void PagePool::Class::add_reference(std::size_t page, bool from_cache) {
  const bool was_only_cached = only_cached(page);
  ++references[page];
  if (from_cache && cached[page]++ == 0) ++cached_pages;
  if (was_only_cached && !only_cached(page)) --only_cached_pages;
}

void PagePool::Class::drop_reference(std::size_t page, bool from_cache) {
  const bool was_only_cached = only_cached(page);
  --references[page];
  if (from_cache && --cached[page] == 0) --cached_pages;
  const bool is_only_cached = references[page] > 0 && only_cached(page);
  if (was_only_cached && !is_only_cached) --only_cached_pages;
  if (!was_only_cached && is_only_cached) ++only_cached_pages;
}

bool PagePool::try_allocate(std::span<PageId> out, PageOwner owner, PageClass of, PageContent content) {
  Class& c = class_at(of);
  std::vector<PageId>& recycled = scratch_.pages;
  recycled.clear();
  recycled.reserve(out.size());  // may throw, so before anything is charged
  c.blocks->prepare(out.size());
  if (out.size() > c.capacity - c.in_use || !budget_->try_charge(out.size() * page_cost(of))) return false;
  c.in_use += out.size();
  in_use_ += out.size();
  peak_ = std::max(peak_, in_use_);
  for (PageId& id : out) {
    if (!c.blocks->has_free()) make_room_for_block(c);
    const PageBlocks::Taken taken = c.blocks->take();
    const std::size_t page = taken.page;
    id = page_id(of, page);
    if (!taken.fresh) recycled.push_back(id);
    c.references[page] = 1;
    c.links[page] = static_cast<std::uint32_t>(owner);
    if (is_cache_[index(owner)] != 0) {
      c.cached[page] = 1;
      ++c.cached_pages;
      ++c.only_cached_pages;
    }
  }
  // A fresh page is zero already; a recycled one must not show another sequence's data, nor NaNs to masked slots.
  if (store_ != nullptr && !recycled.empty() && content == PageContent::kZero) store_->clear(recycled);
  return true;
}

// Pages of a class are about to take memory for one more block: takes that of free blocks where there would be more
// than the budget leaves for pages.
void PagePool::make_room_for_block(const Class& of) {
  const std::uint64_t pages = charged();
  const std::uint64_t others = budget_->used() - std::min(pages, budget_->used());
  const std::uint64_t most = budget_->capacity() - others;
  const std::uint64_t more = of.blocks->block_pages() * (of.page_bytes + kPageOverhead);
  for (std::size_t i = 0; i < classes_.size() && allocated() + more > most;) {
    PageBlocks::Dropped dropped;
    if (!classes_[i].blocks->drop_empty(&dropped)) {
      ++i;
    } else if (store_ != nullptr) {
      store_->give_back(static_cast<PageClass>(i), dropped.first, dropped.count);
    }
  }
}

void PagePool::retain(PageId id, PageOwner owner) {
  Class& c = class_of(id);
  const std::size_t page = page_number(id);
  KVASIR_CHECK(c.references[page] > 0 && c.references[page] < UINT32_MAX);
  if (c.references[page] == 1) ++shared_[index(c.only_owner(page))];
  c.add_reference(page, is_cache_[index(owner)] != 0);
  c.links[page] ^= static_cast<std::uint32_t>(owner);
  ++shared_[index(owner)];
}

void PagePool::release(PageId id, PageOwner owner) {
  Class& c = class_of(id);
  const std::size_t page = page_number(id);
  KVASIR_CHECK(c.references[page] > 0);
  c.drop_reference(page, is_cache_[index(owner)] != 0);
  if (c.references[page] > 0) {
    c.links[page] ^= static_cast<std::uint32_t>(owner);
    --shared_[index(owner)];
    if (c.references[page] > 1) return;
    KVASIR_CHECK(index(c.only_owner(page)) < shared_.size());
    --shared_[index(c.only_owner(page))];
    return;
  }
  KVASIR_CHECK(c.only_owner(page) == owner);
  c.blocks->give(static_cast<std::uint32_t>(page));
  --c.in_use;
  --in_use_;
  budget_->release(page_cost(page_class(id)));
}

void PagePool::hand_over(PageId id, PageOwner from, PageOwner to) {
  Class& c = class_of(id);
  const std::size_t page = page_number(id);
  c.links[page] ^= static_cast<std::uint32_t>(from) ^ static_cast<std::uint32_t>(to);
  if (is_cache_[index(from)] != is_cache_[index(to)]) {
    c.add_reference(page, is_cache_[index(to)] != 0);
    c.drop_reference(page, is_cache_[index(from)] != 0);
  }
  if (c.references[page] == 1) return;
  --shared_[index(from)];
  ++shared_[index(to)];
}

namespace {

template <class Classes, class Figure>
std::uint64_t sum_of(const Classes& classes, const Figure& figure) {
  std::uint64_t sum = 0;
  for (const auto& c : classes) sum += figure(c);
  return sum;
}

}  // namespace

std::uint64_t PagePool::cached_pages() const {
  return sum_of(classes_, [](const Class& c) { return c.cached_pages; });
}
std::uint64_t PagePool::only_cached_pages() const {
  return sum_of(classes_, [](const Class& c) { return c.only_cached_pages; });
}
std::uint64_t PagePool::cached_bytes() const {
  return sum_of(classes_, [](const Class& c) { return c.cached_pages * (c.page_bytes + kPageOverhead); });
}
std::uint64_t PagePool::only_cached_bytes() const {
  return sum_of(classes_, [](const Class& c) { return c.only_cached_pages * (c.page_bytes + kPageOverhead); });
}
std::uint64_t PagePool::charged() const {
  return sum_of(classes_, [](const Class& c) { return c.in_use * (c.page_bytes + kPageOverhead); });
}

std::uint64_t PagePool::allocated() const {
  return sum_of(classes_, [](const Class& c) { return c.blocks->pages() * (c.page_bytes + kPageOverhead); });
}

std::vector<KvPageReport> PagePool::report() const {
  std::vector<KvPageReport> reports;
  for (const Class& c : classes_) {
    const std::uint64_t cost = c.page_bytes + kPageOverhead;
    reports.push_back({codec_name(c.format), c.in_use, c.in_use * cost, c.blocks->pages() * cost});
  }
  return reports;
}

void PagePool::check_invariants() const {
  for (const Class& c : classes_) c.check_invariants();
  KVASIR_CHECK(in_use_ == sum_of(classes_, [](const Class& c) { return c.in_use; }));
}

void PagePool::Class::check_invariants() const {
  blocks->check_invariants(references);
  std::uint64_t used = 0;
  std::uint64_t in_caches = 0;
  std::uint64_t only_in_caches = 0;
  for (std::uint64_t i = 0; i < blocks->end(); ++i) {
    KVASIR_CHECK(cached[i] <= references[i]);
    used += references[i] > 0 ? 1 : 0;
    in_caches += cached[i] > 0 ? 1 : 0;
    only_in_caches += cached[i] > 0 && cached[i] == references[i] ? 1 : 0;
  }
  KVASIR_CHECK(used == in_use && used <= capacity);
  KVASIR_CHECK(in_caches == cached_pages && only_in_caches == only_cached_pages);
}

}  // namespace kvasir
