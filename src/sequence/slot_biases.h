// Lays out the biases of a policy that weighs slots (WeighsSlots, retention/capabilities.h) as a batch has them: by
// entry, lane and slot. Nothing is allocated between passes, and nothing where all biases are 0.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_cache.h"
#include "retention/policy.h"

namespace kvasir {

class SlotBiases {
 public:
  // The policy outlives the object.
  explicit SlotBiases(const RetentionPolicy& policy) : policy_(policy.as<WeighsSlots>()) {}

  // The most bytes that tables of so many entries take in a pass.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t entries);
  // The same of a sequence, while a chunk of `rows` rows that comes next is run.
  std::uint64_t bytes_for(const KvCacheShape& shape, const KvSequence& tables, int rows) const;

  // Before a pass: sets BatchTable::biases of governed table `t`, which was described. `first`: the first token of the
  // chunk under way. Valid until clear().
  void describe(const KvSequence& tables, int t, TokenIndex first, BatchTable* out);
  // The pass has run: gives all memory back.
  void clear() { tables_ = std::vector<Table>(); }

 private:
  struct Table {
    std::vector<float> floats;           // [entries][lanes][slots]
    std::vector<const float*> of_entry;  // [entries]: null where all are 0
  };

  const WeighsSlots* policy_;  // null: it does not weigh slots
  std::vector<Table> tables_;
};

}  // namespace kvasir
