#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

Result<std::unique_ptr<KvCache>> KvCache::create(const KvCacheShape& shape, std::uint64_t budget_bytes,
                                                 Backing backing) {
  if (budget_bytes < column_cost(shape))
    return exhausted(
        "a KV memory of {} bytes holds not even one page of each of the model's {} lanes ({} bytes); raise "
        "--kv-memory",
        budget_bytes, shape.lanes(), column_cost(shape));
  std::unique_ptr<KvCache> cache(new KvCache(shape, budget_bytes));
  KVASIR_ASSIGN_OR_RETURN(cache->pool_, PagePool::create(shape.page, &cache->budget_, backing));
  return cache;
}

KvSequence KvCache::new_sequence(const SequenceLayout& layout) {
  std::vector<LaneGroup> tables;
  for (int table = 0; table < shape_.tables(layout.scope); ++table)
    tables.emplace_back(shape_.lanes_per_table(layout.scope), pool_.get(), &budget_, layout.table);
  return KvSequence(layout.scope, std::move(tables));
}

Result<KvSequence> KvCache::fork(const KvSequence& sequence) {
  std::vector<LaneGroup> tables;
  for (const LaneGroup& table : sequence.tables_) {
    KVASIR_ASSIGN_OR_RETURN(LaneGroup copy, table.fork());
    tables.push_back(std::move(copy));
  }
  return KvSequence(sequence.scope_, std::move(tables));
}

std::int64_t KvSequence::longest() const {
  std::int64_t most = 0;
  for (const LaneGroup& table : tables_) most = std::max(most, table.length());
  return most;
}

std::int64_t KvSequence::shortest() const {
  std::int64_t least = next_id();
  for (const LaneGroup& table : tables_) least = std::min(least, table.length());
  return least;
}

double KvSequence::mean_length() const {
  double sum = 0;
  for (const LaneGroup& table : tables_) sum += static_cast<double>(table.length());
  return sum / static_cast<double>(tables_.size());
}

double KvSequence::dead_share() const {
  std::int64_t dead = 0, written = 0;
  for (const LaneGroup& table : tables_) {
    const std::int64_t of_table = table.dead_slots();
    dead += of_table;
    written += of_table + table.length();
  }
  return written > 0 ? static_cast<double>(dead) / static_cast<double>(written) : 0;
}

Status KvSequence::check_room(int tokens, bool own_pages) const {
  std::uint64_t needed = 0;
  for (const LaneGroup& table : tables_) needed += table.plan_append(tokens, own_pages).bytes;
  if (const MemoryBudget& budget = tables_.front().budget(); needed > budget.available())
    return exhausted(
        "the KV memory of {} bytes is full: {} bytes in use, {} more needed; raise --kv-memory or choose a "
        "policy that forgets (kvasir policies)",
        budget.capacity(), budget.used(), needed);
  return {};
}

Status KvSequence::append(int tokens) {
  KVASIR_RETURN_IF_ERROR(check_room(tokens));
  for (LaneGroup& table : tables_) KVASIR_RETURN_IF_ERROR(table.append(tokens));
  return {};
}

std::uint64_t KvCache::column_cost(const KvCacheShape& shape, const SequenceLayout& layout) {
  const int lanes = shape.lanes_per_table(layout.scope);
  return static_cast<std::uint64_t>(lanes) * (shape.page.page_bytes() + PagePool::kPageOverhead) +
         LaneGroup::column_bytes(lanes, shape.page.slots, layout.table.dropping);
}

void KvCache::check_invariants(std::span<const KvSequence* const> sequences) const {
  pool_->check_invariants();
  std::vector<std::uint32_t> references(pool_->capacity(), 0);
  std::uint64_t tables = 0;
  for (const KvSequence* sequence : sequences) {
    for (const LaneGroup& table : sequence->tables_) {
      table.check_invariants(references);
      tables += table.table_bytes();
    }
  }
  std::uint64_t in_use = 0;
  for (std::uint64_t page = 0; page < pool_->capacity(); ++page) {
    in_use += references[page] > 0 ? 1 : 0;
    if (references[page] > 0) KVASIR_CHECK(references[page] == pool_->references(static_cast<PageId>(page)));
  }
  KVASIR_CHECK(in_use == pool_->in_use());
  KVASIR_CHECK(budget_.used() == in_use * pool_->page_cost() + tables);
}

}  // namespace kvasir
