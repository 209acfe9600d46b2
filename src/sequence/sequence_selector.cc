#include "sequence/sequence_selector.h"

#include "sequence/quest_selector.h"

namespace kvasir {

std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape) {
  const std::optional<Budget>& budget = policy.traits().chunk_reads;
  if (!budget) return nullptr;
  return std::make_unique<QuestSelector>(*budget, shape);
}

}  // namespace kvasir
