#include "sequence/sequence_selector.h"

#include "sequence/quest_selector.h"

namespace kvasir {

std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape) {
  const RanksChunks* chunks = policy.ranks_chunks();
  if (chunks == nullptr) return nullptr;
  return std::make_unique<QuestSelector>(chunks->chunk_budget(), shape);
}

}  // namespace kvasir
