#include "sequence/sequence_selector.h"

#include "sequence/quest_selector.h"

namespace kvasir {

std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape) {
  const RanksSegments* segments = policy.as<RanksSegments>();
  if (segments == nullptr) return nullptr;
  return std::make_unique<QuestSelector>(segments->segment_budget(), shape);
}

}  // namespace kvasir
