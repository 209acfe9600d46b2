// The KV cache of one model: a budget, a pool, and the sequences that live in it. The façade of this folder.
//
// Thread-safety: none; one thread plans, appends and drops. Kernels read and write page data from many threads between
// those calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv/attention_view.h"
#include "kv/lane_group.h"
#include "kv/page_pool.h"

namespace kvasir {

// What one decision of a policy, and so one table, holds for.
enum class PolicyScope { kSequence, kLayer, kHead };

struct KvCacheShape {
  int layers = 0;
  int kv_heads = 0;
  KvPageShape page;

  int lanes() const { return layers * kv_heads; }
  int tables(PolicyScope scope) const {
    return scope == PolicyScope::kSequence ? 1 : scope == PolicyScope::kLayer ? layers : lanes();
  }
  int lanes_per_table(PolicyScope scope) const { return lanes() / tables(scope); }
};

// One sequence's lanes, in tables of those that agree on what they keep: one table for all, one a layer, or one a lane.
// Move-only; releases its pages with the last reference.
class KvSequence {
 public:
  PolicyScope scope() const { return scope_; }
  int tables() const { return static_cast<int>(tables_.size()); }
  LaneGroup& table(int index) { return tables_[static_cast<std::size_t>(index)]; }
  const LaneGroup& table(int index) const { return tables_[static_cast<std::size_t>(index)]; }
  // The only table. REQUIRES: PolicyScope::kSequence.
  LaneGroup& group() { return tables_.front(); }
  const LaneGroup& group() const { return tables_.front(); }

  TokenIndex next_id() const { return tables_.front().next_id(); }  // tokens seen so far
  std::int64_t longest() const;                                     // tokens retained by the table that retains most
  std::int64_t shortest() const;                                    // by the one that retains least
  double mean_length() const;                                       // over lanes
  double dead_share() const;  // of the slots written, those whose token was dropped and that are not reused yet

  // Whether append would succeed; with `own_pages`, after a copy of all shared pages. Errors: kResourceExhausted.
  Status check_room(int tokens, bool own_pages = false) const;

  // Room for `tokens` tokens in every table. Succeeds whole or leaves no trace. Errors: kResourceExhausted.
  Status append(int tokens);

 private:
  friend class KvCache;
  KvSequence(PolicyScope scope, std::vector<LaneGroup> tables) : scope_(scope), tables_(std::move(tables)) {}
  PolicyScope scope_;
  std::vector<LaneGroup> tables_;
};

// How a sequence is to be held.
struct SequenceLayout {
  PolicyScope scope = PolicyScope::kSequence;
  LaneGroup::Layout table;
};

class KvCache {
 public:
  // `budget_bytes` bounds pages and tables together. Errors: kResourceExhausted.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheShape& shape, std::uint64_t budget_bytes,
                                                 Backing backing = Backing::kMemory);

  KvSequence new_sequence(const SequenceLayout& layout = {});
  Result<KvSequence> fork(const KvSequence& sequence);

  // Bytes that one column of one table costs: a page of each of its lanes, their bookkeeping and the column's table.
  static std::uint64_t column_cost(const KvCacheShape& shape, const SequenceLayout& layout = {});

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
