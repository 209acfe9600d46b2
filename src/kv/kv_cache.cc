#include "kv/kv_cache.h"

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

Result<KvSequence> KvCache::fork(const KvSequence& sequence) {
  KVASIR_ASSIGN_OR_RETURN(LaneGroup group, sequence.group().fork());
  return KvSequence(std::move(group));
}

std::uint64_t KvCache::column_cost(const KvCacheShape& shape) {
  const auto lanes = static_cast<std::uint64_t>(shape.lanes());
  return lanes * (shape.page.page_bytes() + PagePool::kPageOverhead + sizeof(PageId)) + sizeof(LaneGroup::Column);
}

std::uint64_t KvCache::column_cost() const {
  return column_cost(shape_);
}

void KvCache::check_invariants(std::span<const KvSequence* const> sequences) const {
  pool_->check_invariants();
  std::vector<std::uint32_t> references(pool_->capacity(), 0);
  std::uint64_t tables = 0;
  for (const KvSequence* sequence : sequences) {
    sequence->group().check_invariants(references);
    tables += sequence->group().table_bytes();
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
