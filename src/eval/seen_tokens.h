// Which tokens the rows of a pass see: the ids behind the weights that an AttentionObserver is handed.
// Thread-safety: none.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/sequence_runner.h"
#include "kv/page_table.h"
#include "retention/policy.h"

namespace kvasir {

// The ids that a table holds, ascending.
void retained_ids(const PageTable& table, std::vector<TokenIndex>& ids);

// The same of all tables of a sequence, as lists by layer and then KV head: one list for a layer whose heads agree.
std::vector<std::vector<std::vector<TokenIndex>>> retained_by_layer(const KvSequence& sequence, int layers);

class SeenTokens {
 public:
  // REQUIRES: the runner outlives the object, and stands where it does now when next_pass is called for the first time.
  SeenTokens(const SequenceRunner* runner, const LoadedModel& model);

  // A pass has run and pruned, and another may follow.
  void next_pass();

  TokenIndex first() const { return first_; }  // id of row 0 of the pass

  // What a row of the pass sees in a layer and query head, ascending, its own token last. Valid until the next call.
  std::span<const TokenIndex> of(int layer, int query_head, int row);

 private:
  void set_row(int row);
  int table(int layer, int query_head) const;

  const SequenceRunner& runner_;
  int per_layer_ = 1;  // tables of a layer; 0: one for all layers
  int heads_ = 1;      // query heads of a table
  TokenIndex first_ = 0;
  // By table: what each held before the pass, then ids that follow.
  std::vector<std::vector<TokenIndex>> ids_;
  std::vector<std::size_t> held_;
  // Of a policy that drops ranges: the policy once more, one pass behind; what the row asked for last sees.
  std::unique_ptr<RetentionPolicy> shadow_;
  KeepPlan plan_;
  std::vector<IndexRange> before_;  // retained before the pass
  std::vector<IndexRange> hidden_;  // [rows of the pass]; empty: not yet asked for
  int row_ = -1;
};

}  // namespace kvasir
