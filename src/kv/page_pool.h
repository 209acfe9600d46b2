// Page numbers and their reference counts.
//
// Thread-safety: none; one thread plans and allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "backend/page_store.h"
#include "kv/keep_plan.h"
#include "kv/memory_budget.h"
#include "kv/page_blocks.h"
#include "kv/page_owners.h"
#include "kvasir/result.h"

namespace kvasir {

// Working memory that the page tables of one pool share while they change, kept so that decoding allocates nothing.
// Grows to the needs of the longest table.
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

// A number for each page.
using PageCounts = std::map<PageId, std::uint32_t>;

// The page classes of one format. Sealed pages have the format itself, pages still being written have its open form.
// Both are the same class if the format is not encoded.
struct PageClasses {
  PageClass sealed{};
  PageClass open{};
  bool operator==(const PageClasses&) const = default;
};

// What a new page holds before it is written.
enum class PageContent {
  kZero,
  kUndefined,  // may be another sequence's data: for pages that are written whole before they are read
};

class PagePool : public PageBlockHolder {
 public:
  ~PagePool() override;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Bytes of bookkeeping beside each page: its reference count, its count of cache references, and its owners or its
  // place in the free list.
  static constexpr std::uint64_t kPageOverhead = 12;

  // `budget` outlives the pool. `store` holds the bytes and outlives the pool; null: pages are only counted, as for a
  // plan. Sealed pages of `format` are class 0. Errors: kResourceExhausted.
  static Result<std::unique_ptr<PagePool>> create(const PageFormat& format, MemoryBudget* budget, PageStore* store);

  // Returns the classes of a format, and creates them if it has none yet. REQUIRES: as many slots as the first format.
  // Errors: kResourceExhausted.
  Result<PageClasses> classes_of(const PageFormat& format);
  const PageFormat& format(PageClass of = {}) const { return class_at(of).format; }

  // Allocates out.size() pages with one reference each. Allocates none if it returns false.
  bool try_allocate(std::span<PageId> out, PageOwner owner = PageOwner::kNobody, PageClass of = {},
                    PageContent content = PageContent::kZero);
  void retain(PageId page, PageOwner owner = PageOwner::kNobody);   // one more reference
  void release(PageId page, PageOwner owner = PageOwner::kNobody);  // one reference less; the last one frees the page
  void hand_over(PageId page, PageOwner from, PageOwner to);        // REQUIRES: `from` refers to it, `to` does not
  // Counts the references of this owner, to `pages` and to pages that it takes later, as a cache's: they can be given
  // back at any time. REQUIRES: not kNobody; not called before for this owner; the owner refers to exactly `pages`.
  void mark_cached(PageOwner owner, std::span<const PageId> pages);
  // Pages that caches refer to, and those that only caches refer to (only_*): these are freed when caches give up all
  // their references. O(1). Each page counts once.
  struct Cached {
    std::uint64_t pages = 0;
    std::uint64_t only_pages = 0;
    std::uint64_t bytes = 0;  // charged for `pages`
    std::uint64_t only_bytes = 0;
  };
  Cached cached() const;
  std::uint32_t cached_references(PageId page) const { return class_of(page).cached[page_number(page)]; }
  std::uint32_t references(PageId page) const { return class_of(page).references[page_number(page)]; }
  // Returns where the bytes of a page in use are. Memory is the only place so far.
  PagePlace place(PageId page) const {
    static_cast<void>(page);
    return PagePlace::kMemory;
  }

  PageStore* store() const { return store_; }
  const MemoryBudget& budget() const { return *budget_; }
  MemoryBudget& budget() { return *budget_; }
  PageOwners& owners() { return owners_; }
  TableScratch& scratch() { return scratch_; }
  // Bytes charged for a page in use.
  std::uint64_t page_cost(PageClass of = {}) const { return class_at(of).cost(); }
  std::uint64_t capacity() const { return classes_.front().capacity; }  // pages of class 0, if the budget held no other
  std::uint64_t in_use() const { return in_use_; }                      // pages of all classes, as in the next two
  std::uint64_t peak() const { return peak_; }
  std::uint64_t charged() const override;
  // Bytes of the pages that have memory in the store: pages in use, and free pages of blocks with memory. A block of
  // free pages gives its memory up when the allocated bytes of all pools would otherwise exceed the budget.
  std::uint64_t allocated() const override;
  bool give_back_block() override;
  std::vector<KvPageReport> report() const;  // of each class, in order

  // KVASIR_CHECKs that the free lists hold each free page once, and the sums of cached pages.
  void check_invariants() const;

 private:
  // Frees an array of numbers that begin as 0 and take memory as they are first written.
  struct Unmap {
    std::size_t bytes;
    void operator()(std::uint32_t* numbers) const;
  };
  using MappedNumbers = std::unique_ptr<std::uint32_t[], Unmap>;

  struct Class {
    PageFormat format;
    std::size_t page_bytes = 0;
    std::uint64_t capacity = 0;
    std::uint64_t in_use = 0;
    std::optional<PageBlocks> blocks;
    MappedNumbers numbers;                // the arrays that follow
    std::uint32_t* references = nullptr;  // [capacity]
    // [capacity]. For a page in use: the exclusive or of its owners, so a page with one reference names its owner. For
    // a free page: see PageBlocks.
    std::uint32_t* links = nullptr;
    std::uint32_t* cached = nullptr;  // [capacity]: the references that are caches'
    std::uint64_t cached_pages = 0;
    std::uint64_t only_cached_pages = 0;

    std::uint64_t cost() const { return page_bytes + kPageOverhead; }
    bool only_cached(std::size_t page) const { return references[page] == cached[page]; }
    PageOwner only_owner(std::size_t page) const { return static_cast<PageOwner>(links[page]); }
    void add_reference(std::size_t page, bool from_cache);
    void drop_reference(std::size_t page, bool from_cache);
    void check_invariants() const;
  };

  PagePool() = default;
  Result<PageClass> add_class(const PageFormat& format);
  void make_room_for_block(const Class& of);
  Class& class_at(PageClass of) { return classes_[static_cast<std::size_t>(of)]; }
  const Class& class_at(PageClass of) const { return classes_[static_cast<std::size_t>(of)]; }
  Class& class_of(PageId page) { return class_at(page_class(page)); }
  const Class& class_of(PageId page) const { return class_at(page_class(page)); }

  PageStore* store_ = nullptr;
  MemoryBudget* budget_ = nullptr;
  std::vector<Class> classes_;
  std::uint64_t in_use_ = 0;
  std::uint64_t peak_ = 0;
  PageOwners owners_;
  TableScratch scratch_;
};

}  // namespace kvasir
