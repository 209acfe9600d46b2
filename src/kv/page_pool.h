// Page numbers, their reference counts, and the ledger of bytes that bounds them.
//
// Thread-safety: none; one thread plans and allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/batch.h"
#include "backend/page_store.h"
#include "kv/keep_plan.h"
#include "kv/page_blocks.h"
#include "kvasir/result.h"
#include "kvasir/status.h"

namespace kvasir {

// A bound on bytes, and the bytes charged to it: pages, page tables, states of layers and of policies, each charged
// before it is allocated.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t capacity) : capacity_(capacity) {}

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t available() const { return capacity_ - used_; }

  // Optional: called to give something back that is held in case it is useful; returns false when there is nothing
  // more. Must outlive its use.
  void set_reclaimer(std::function<bool()> reclaimer) { reclaimer_ = std::move(reclaimer); }
  // Has memory given back until `bytes` are available. False, with nothing left to give back, if they are not.
  bool make_available(std::uint64_t bytes) {
    while (bytes > available())
      if (!reclaimer_ || !reclaimer_()) return false;
    return true;
  }

  bool try_charge(std::uint64_t bytes);  // false, and nothing charged, if it does not fit
  void release(std::uint64_t bytes);     // REQUIRES: charged before

 private:
  std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
  std::function<bool()> reclaimer_;
};

// Bytes of one owner, charged to a budget until it is destroyed. Move-only. The budget outlives it.
class MemoryCharge {
 public:
  explicit MemoryCharge(MemoryBudget* budget) : budget_(budget) {}
  MemoryCharge(MemoryCharge&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() { budget_->release(bytes_); }

  std::uint64_t bytes() const { return bytes_; }
  // Charges `bytes` in place of what was charged before. False, and nothing changed, if that does not fit.
  bool try_resize(std::uint64_t bytes);

 private:
  MemoryBudget* budget_;
  std::uint64_t bytes_ = 0;
};

// kResourceExhausted: `needed` bytes more than the budget has.
Status kv_memory_full(const MemoryBudget& budget, std::uint64_t needed);

// Memory that page tables of one pool work in while they change, kept so that decoding allocates nothing. Grows to what
// the longest table needs.
struct TableScratch {
  std::vector<std::uint32_t> columns;
  std::vector<IndexRange> ranges;
  std::vector<TokenIndex> indices;
  std::vector<SlotMove> moves;
  std::vector<PageSeal> seals;
  std::vector<PageId> pages;
  std::vector<std::uint8_t> encodings;
  std::vector<char> fates;  // of columns
  std::vector<int> starts;  // frames that begin in columns
};

// Who holds references to pages: a page table, say. An owner refers to a page at most once; only kNobody may do so more
// often, and its pages are not counted as shared.
enum class PageOwner : std::uint32_t { kNobody = 0 };

// A number for each page.
using PageCounts = std::map<PageId, std::uint32_t>;

// The page classes of one format: sealed pages have it, pages that are still written have its open form. One class,
// where the format is not encoded.
struct PageClasses {
  PageClass sealed{};
  PageClass open{};
  bool operator==(const PageClasses&) const = default;
};

// What a new page holds before it is written.
enum class PageContent {
  kZero,
  kUndefined,  // perhaps another sequence's: for pages that are written whole before they are read
};

class PagePool {
 public:
  // Bytes of bookkeeping beside each page: a reference count, that of caches, and its owners or its place in the free
  // list.
  static constexpr std::uint64_t kPageOverhead = 12;

  // `budget` outlives the pool. `store` holds the bytes and outlives the pool; null: everything is counted, nothing can
  // be read or written, as a plan wants it. Sealed pages of `format` are class 0. Errors: kResourceExhausted.
  static Result<std::unique_ptr<PagePool>> create(const PageFormat& format, MemoryBudget* budget, PageStore* store);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  // The classes of a format; they are new where there are none yet. REQUIRES: slots as the first format.
  // Errors: kResourceExhausted.
  Result<PageClasses> classes_of(const PageFormat& format);
  const PageFormat& format(PageClass of) const { return class_at(of).format; }

  // Returns an owner without references, which may have the number of one that was removed.
  // An owner takes about 13 bytes, which the budget is not charged for and which are kept for the next one.
  PageOwner add_owner();
  void remove_owner(PageOwner owner);  // REQUIRES: it refers to no page

  // Allocates out.size() pages with one reference each, or none at all (false).
  bool try_allocate(std::span<PageId> out, PageOwner owner = PageOwner::kNobody, PageClass of = {},
                    PageContent content = PageContent::kZero);
  void retain(PageId page, PageOwner owner = PageOwner::kNobody);   // one more reference
  void release(PageId page, PageOwner owner = PageOwner::kNobody);  // one less; the page is free with the last
  void hand_over(PageId page, PageOwner from, PageOwner to);        // REQUIRES: `from` refers to it, `to` does not
  // From now on the references of this owner, to `pages` and to those that it takes later, count as a cache's: they can
  // be given back at any time. REQUIRES: not kNobody; not called before for this owner; `pages` are all it refers to.
  void mark_cached(PageOwner owner, std::span<const PageId> pages);
  // Pages that a cache refers to, and of these the pages that nobody else refers to: giving up all references of caches
  // frees exactly these. O(1), each page counts once.
  std::uint64_t cached_pages() const;
  std::uint64_t only_cached_pages() const;
  // Bytes charged for these.
  std::uint64_t cached_bytes() const;
  std::uint64_t only_cached_bytes() const;
  std::uint32_t cached_references(PageId page) const { return class_of(page).cached[page_number(page)]; }
  // Pages that the owner refers to and that have other references too. O(1): kept up to date by every change of a
  // reference, another owner's included. REQUIRES: not kNobody.
  std::uint64_t shared_pages(PageOwner owner) const { return shared_[index(owner)]; }
  std::uint32_t references(PageId page) const { return class_of(page).references[page_number(page)]; }
  // Where the bytes of a page in use are. Memory is the only place so far.
  PagePlace place(PageId page) const {
    static_cast<void>(page);
    return PagePlace::kMemory;
  }

  PageStore* store() const { return store_; }
  const MemoryBudget& budget() const { return *budget_; }
  MemoryBudget& budget() { return *budget_; }
  TableScratch& scratch() { return scratch_; }
  // Of class 0.
  const PageFormat& shape() const { return classes_.front().format; }
  std::uint64_t page_cost() const { return page_cost(PageClass{}); }
  // Bytes charged for a page in use.
  std::uint64_t page_cost(PageClass of) const { return class_at(of).page_bytes + kPageOverhead; }
  std::uint64_t capacity() const { return classes_.front().capacity; }  // of class 0, were there no others
  std::uint64_t in_use() const { return in_use_; }                      // of all classes, as the next two
  std::uint64_t peak() const { return peak_; }
  std::uint64_t charged() const;  // bytes
  // Bytes of what has memory in the store: pages in use, and free ones beside them. A block of free pages gives its
  // memory to pages of another class as soon as there would be more than the budget has.
  std::uint64_t allocated() const;
  std::vector<KvPageReport> report() const;  // of each class, in order

  // KVASIR_CHECKs that the free lists hold each free page once, and the sums of cached pages.
  void check_invariants() const;

 private:
  struct Class {
    PageFormat format;
    std::size_t page_bytes = 0;
    std::uint64_t capacity = 0;
    std::uint64_t in_use = 0;
    std::optional<PageBlocks> blocks;
    std::uint32_t* references = nullptr;  // [capacity]
    // [capacity]. Of a page in use: the exclusive or of its owners. When the second-last reference goes, what is left
    // is the last owner. Of a free page: see PageBlocks.
    std::uint32_t* links = nullptr;
    // [capacity]: of the references, those of caches. Takes memory only where pages were cached.
    std::uint32_t* cached = nullptr;
    std::uint64_t cached_pages = 0;
    std::uint64_t only_cached_pages = 0;

    bool only_cached(std::size_t page) const { return references[page] == cached[page]; }
    PageOwner only_owner(std::size_t page) const { return static_cast<PageOwner>(links[page]); }
    void add_reference(std::size_t page, bool from_cache);
    void drop_reference(std::size_t page, bool from_cache);
    void check_invariants() const;
  };

  PagePool() = default;
  Result<PageClass> add_class(const PageFormat& format);
  void make_room_for_block(const Class& of);
  static std::size_t index(PageOwner owner) { return static_cast<std::size_t>(owner); }
  Class& class_at(PageClass of) { return classes_[static_cast<std::size_t>(of)]; }
  const Class& class_at(PageClass of) const { return classes_[static_cast<std::size_t>(of)]; }
  Class& class_of(PageId page) { return class_at(page_class(page)); }
  const Class& class_of(PageId page) const { return class_at(page_class(page)); }

  PageStore* store_ = nullptr;
  MemoryBudget* budget_ = nullptr;
  std::vector<Class> classes_;
  std::uint64_t in_use_ = 0;
  std::uint64_t peak_ = 0;
  std::vector<std::uint64_t> shared_{0};   // [owners ever]
  std::vector<char> is_cache_{0};          // [owners ever]: see mark_cached
  std::vector<PageOwner> removed_owners_;  // whose numbers are used again
  TableScratch scratch_;
};

}  // namespace kvasir
