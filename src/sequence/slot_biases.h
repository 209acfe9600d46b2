// Lays out the biases of a policy that weighs slots (WeighsSlots, retention/capabilities.h) as a batch has them: by
// entry, lane and slot. Holds no memory between passes, nor where all biases are 0.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_cache.h"
#include "retention/policy.h"

namespace kvasir {

class SlotBiases {
 public:
  // The policy must outlive the object.
  explicit SlotBiases(const RetentionPolicy& policy) : policy_(policy.as<WeighsSlots>()) {}

  // Returns the most bytes of a pass over tables of `entries` entries each.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t entries);
  // As above, for the passes of a sequence's next chunk, of `rows` rows.
  std::uint64_t bytes_for(const KvCacheShape& shape, const KvSequence& tables, int rows) const;

  // Sets BatchTable::biases of governed table `t`, which was described for a pass. `first`: the first token of the
  // chunk under way. Valid until clear().
  void describe(const KvSequence& tables, int t, TokenIndex first, BatchTable* out);
  // Frees all memory. Call it when the pass has run.
  void clear() { tables_ = std::vector<Table>(); }

 private:
  struct Table {
    std::vector<float> floats;           // [entries][lanes][slots]
    std::vector<const float*> of_entry;  // [entries]: null where all are 0
  };

  const WeighsSlots* policy_;  // null: the policy does not weigh slots
  std::vector<Table> tables_;
};

}  // namespace kvasir
