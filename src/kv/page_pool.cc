#include "kv/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
void PagePool::Unmap::operator()(std::uint32_t* numbers) const {
  ::munmap(numbers, bytes);
}

Result<std::unique_ptr<PagePool>> PagePool::create(const PageFormat& format, MemoryBudget* budget, PageStore* store) {
  std::unique_ptr<PagePool> pool(new PagePool);
  pool->store_ = store;
  pool->budget_ = budget;
  budget->add(pool.get());
  pool->classes_.reserve(kMaxPageClasses);
  KVASIR_RETURN_IF_ERROR(pool->classes_of(format).status());
  return pool;
}

PagePool::~PagePool() {
  if (budget_ != nullptr) budget_->remove(this);
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
  KVASIR_CHECK(classes_.empty() || format.slots == this->format().slots);
  if (classes_.size() == kMaxPageClasses)
    return unsupported("a cache holds pages of at most {} formats", kMaxPageClasses);
  Class& added = classes_.emplace_back();
  const auto fail = [&](const Status& status) -> Result<PageClass> {
    classes_.pop_back();
    return status;
  };
  added.format = format;
  added.page_bytes = format.bytes();
  added.capacity = std::min(budget_->capacity() / added.cost(), kMaxPagesOfClass);
  if (added.capacity == 0)
    return fail(exhausted("a KV budget of {} bytes holds no page of {} bytes; give it more", budget_->capacity(),
                          added.page_bytes)
                    .about({"kv_memory"}));
  const std::size_t bytes = 3 * added.capacity * sizeof(std::uint32_t);
  void* numbers = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (numbers == MAP_FAILED)
    return fail(exhausted("the system has no room for a KV budget of {} bytes; give it less", budget_->capacity())
                    .about({"kv_memory"}));
  added.numbers = MappedNumbers(static_cast<std::uint32_t*>(numbers), {bytes});
  added.references = added.numbers.get();
  added.links = added.references + added.capacity;
  added.cached = added.links + added.capacity;
  added.blocks.emplace(added.page_bytes, added.capacity, added.links);
  const auto number = static_cast<PageClass>(classes_.size() - 1);
  if (store_ != nullptr)
    if (Status status = store_->reserve(number, format, added.capacity); !status.ok()) return fail(status);
  return number;
}

void PagePool::mark_cached(PageOwner owner, std::span<const PageId> pages) {
  owners_.mark_cache(owner);
  for (const PageId id : pages) {
    Class& c = class_of(id);
    const std::size_t page = page_number(id);
    KVASIR_CHECK(!c.only_cached(page));
    if (c.cached[page]++ == 0) ++c.cached_pages;
    if (c.only_cached(page)) ++c.only_cached_pages;
  }
}

// Adds a reference to a page that has references already.
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
  recycled.reserve(out.size());  // may throw, so before the charge
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
    if (owners_.is_cache(owner)) {
      c.cached[page] = 1;
      ++c.cached_pages;
      ++c.only_cached_pages;
    }
  }
  // A fresh page is zero already; a recycled one must not show another sequence's data, nor NaNs to masked slots.
  if (store_ != nullptr && !recycled.empty() && content == PageContent::kZero) store_->clear(recycled);
  return true;
}

// Prepares for one more block of a class to take memory: while the pages of all pools would then exceed their part of
// the budget, takes the memory from free blocks.
void PagePool::make_room_for_block(const Class& of) {
  const auto sum = [&](std::uint64_t (PageBlockHolder::*figure)() const) {
    std::uint64_t bytes = 0;
    for (const PageBlockHolder* holder : budget_->holders()) bytes += (holder->*figure)();
    return bytes;
  };
  const std::uint64_t others = budget_->used() - std::min(sum(&PageBlockHolder::charged), budget_->used());
  const std::uint64_t most = budget_->capacity() - others;
  const std::uint64_t more = of.blocks->block_pages() * of.cost();
  const auto holders = budget_->holders();
  for (std::size_t i = 0; i < holders.size() && sum(&PageBlockHolder::allocated) + more > most;)
    if (!holders[i]->give_back_block()) ++i;
}

bool PagePool::give_back_block() {
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    PageBlocks::Dropped dropped;
    if (!classes_[i].blocks->drop_empty(&dropped)) continue;
    if (store_ != nullptr) store_->give_back(static_cast<PageClass>(i), dropped.first, dropped.count);
    return true;
  }
  return false;
}

void PagePool::retain(PageId id, PageOwner owner) {
  Class& c = class_of(id);
  const std::size_t page = page_number(id);
  KVASIR_CHECK(c.references[page] > 0 && c.references[page] < UINT32_MAX);
  if (c.references[page] == 1) ++owners_.shared(c.only_owner(page));
  c.add_reference(page, owners_.is_cache(owner));
  c.links[page] ^= static_cast<std::uint32_t>(owner);
  ++owners_.shared(owner);
}

void PagePool::release(PageId id, PageOwner owner) {
  Class& c = class_of(id);
  const std::size_t page = page_number(id);
  KVASIR_CHECK(c.references[page] > 0);
  c.drop_reference(page, owners_.is_cache(owner));
  if (c.references[page] > 0) {
    c.links[page] ^= static_cast<std::uint32_t>(owner);
    --owners_.shared(owner);
    if (c.references[page] > 1) return;
    --owners_.shared(c.only_owner(page));
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
  if (owners_.is_cache(from) != owners_.is_cache(to)) {
    c.add_reference(page, owners_.is_cache(to));
    c.drop_reference(page, owners_.is_cache(from));
  }
  if (c.references[page] == 1) return;
  --owners_.shared(from);
  ++owners_.shared(to);
}

namespace {

template <class Classes, class Figure>
std::uint64_t sum_of(const Classes& classes, const Figure& figure) {
  std::uint64_t sum = 0;
  for (const auto& c : classes) sum += figure(c);
  return sum;
}

}  // namespace

PagePool::Cached PagePool::cached() const {
  Cached all;
  for (const Class& c : classes_) {
    all.pages += c.cached_pages;
    all.only_pages += c.only_cached_pages;
    all.bytes += c.cached_pages * c.cost();
    all.only_bytes += c.only_cached_pages * c.cost();
  }
  return all;
}

std::uint64_t PagePool::charged() const {
  return sum_of(classes_, [](const Class& c) { return c.in_use * c.cost(); });
}

std::uint64_t PagePool::allocated() const {
  return sum_of(classes_, [](const Class& c) { return c.blocks->pages() * c.cost(); });
}

std::vector<KvPageReport> PagePool::report() const {
  std::vector<KvPageReport> reports;
  for (const Class& c : classes_) {
    reports.push_back({codec_name(c.format), c.in_use, c.in_use * c.cost(), c.blocks->pages() * c.cost()});
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
