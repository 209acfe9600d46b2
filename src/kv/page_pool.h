// Memory for KV: a ledger of bytes, and a pool of equal pages that is bounded by it.
//
// Thread-safety: none; one thread plans and allocates. Page data may be read and written from many threads, as the
// kernels do, while no page is allocated or released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/kv_page.h"
#include "kvasir/status.h"

namespace kvasir {

enum class PageId : std::uint32_t {};

// Bytes promised and bytes charged. Every byte of KV, pages and tables alike, is charged here before it is taken.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t capacity) : capacity_(capacity) {}

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t available() const { return capacity_ - used_; }

  bool try_charge(std::uint64_t bytes);  // false, and nothing charged, if it does not fit
  void release(std::uint64_t bytes);     // REQUIRES: charged before

 private:
  std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

// Whether a pool's pages have memory behind them. kNone: everything is counted, nothing can be read or written; a plan
// runs the real bookkeeping on such a pool.
enum class Backing { kMemory, kNone };

class PagePool {
 public:
  // Bytes of bookkeeping beside each page: a reference count and a place in the free list.
  static constexpr std::uint64_t kPageOverhead = 8;

  // Reserves address space for all pages the budget could hold; pages become resident when first used. The budget must
  // outlive the pool. Errors: kResourceExhausted.
  static Result<std::unique_ptr<PagePool>> create(const KvPageShape& shape, MemoryBudget* budget, Backing backing);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  // Allocates out.size() pages with one reference each and zeroed data, or none at all (false).
  bool try_allocate(std::span<PageId> out);
  void retain(PageId page);   // one more reference
  void release(PageId page);  // one less; the page returns to the pool with the last
  std::uint32_t references(PageId page) const { return references_[index(page)]; }

  std::byte* data(PageId page) const { return data_ + index(page) * page_bytes_; }

  const KvPageShape& shape() const { return shape_; }
  Backing backing() const { return backing_; }
  std::uint64_t page_cost() const { return page_bytes_ + kPageOverhead; }  // bytes charged per page in use
  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t in_use() const { return in_use_; }
  std::uint64_t peak() const { return peak_; }

  // KVASIR_CHECKs that free + in use = ever used, and that the free list holds each free page once.
  void check_invariants() const;

 private:
  PagePool() = default;
  static std::size_t index(PageId page) { return static_cast<std::size_t>(page); }

  KvPageShape shape_;
  Backing backing_ = Backing::kMemory;
  MemoryBudget* budget_ = nullptr;
  std::size_t page_bytes_ = 0;
  std::uint64_t capacity_ = 0;
  std::uint64_t touched_ = 0;  // pages that were ever allocated: [0, touched_)
  std::uint64_t in_use_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t free_count_ = 0;
  std::byte* data_ = nullptr;
  std::uint32_t* references_ = nullptr;  // [capacity]
  std::uint32_t* free_ = nullptr;        // [capacity], a stack
};

}  // namespace kvasir
