// The KV cache of one model: a budget, a pool, and the sequences that live in it. The façade of this folder.
//
// Thread-safety: none; one thread plans, appends and drops. Kernels read and write page data from many threads between
// those calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kv/attention_view.h"
#include "kv/lane_group.h"
#include "kv/page_pool.h"

namespace kvasir {

struct KvCacheShape {
  int layers = 0;
  int kv_heads = 0;
  KvPageShape page;

  int lanes() const { return layers * kv_heads; }
};

// One sequence's lanes. All lanes agree on what they keep, so one group holds them all; lane = layer * kv_heads + head.
// Move-only; releases its pages with the last reference.
class KvSequence {
 public:
  LaneGroup& group() { return group_; }
  const LaneGroup& group() const { return group_; }

 private:
  friend class KvCache;
  explicit KvSequence(LaneGroup group) : group_(std::move(group)) {}
  LaneGroup group_;
};

class KvCache {
 public:
  // `budget_bytes` bounds pages and tables together. Errors: kResourceExhausted.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheShape& shape, std::uint64_t budget_bytes,
                                                 Backing backing = Backing::kMemory);

  KvSequence new_sequence() { return KvSequence(LaneGroup(shape_.lanes(), pool_.get(), &budget_)); }
  Result<KvSequence> fork(const KvSequence& sequence);

  // Bytes that one column of a sequence costs: a page of every lane, its bookkeeping and the column's table.
  std::uint64_t column_cost() const;
  // The least budget that holds `columns` columns of one sequence.
  static std::uint64_t column_cost(const KvCacheShape& shape);

  const KvCacheShape& shape() const { return shape_; }
  const MemoryBudget& budget() const { return budget_; }
  PagePool& pool() { return *pool_; }
  const PagePool& pool() const { return *pool_; }

  // KVASIR_CHECKs pool and tables: references = appearances in the sequences given (which must be all that live), bytes
  // charged = pages in use + tables.
  void check_invariants(std::span<const KvSequence* const> sequences) const;

 private:
  KvCache(const KvCacheShape& shape, std::uint64_t budget_bytes) : shape_(shape), budget_(budget_bytes) {}
  KvCacheShape shape_;
  MemoryBudget budget_;
  std::unique_ptr<PagePool> pool_;
};

}  // namespace kvasir
