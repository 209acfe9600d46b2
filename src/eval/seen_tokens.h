// Determines which tokens each row of a pass sees: the token indices of the weights that an AttentionObserver receives.
// Thread-safety: none.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/page_table.h"
#include "retention/policy.h"
#include "sequence/sequence_runner.h"

namespace kvasir {

// Appends the token indices that a table holds, ascending.
void retained_ids(const PageTable& table, std::vector<TokenIndex>& ids);

// Returns the retained tokens of all tables of a sequence, as [layer][KV head]; one list for a layer whose heads agree.
std::vector<std::vector<std::vector<TokenIndex>>> retained_by_layer(const KvSequence& sequence, int layers);

class SeenTokens {
 public:
  // Starts at the runner's current state. REQUIRES: the runner outlives the object.
  SeenTokens(const SequenceRunner* runner, const LoadedModel& model);

  // Moves on to the next pass. REQUIRES: called after each pass has run and pruned.
  void next_pass();

  TokenIndex first() const { return first_; }  // token index of row 0 of the pass

  // Returns the tokens that a row of the pass sees in a layer and query head, ascending, its own token last. Valid
  // until the next call.
  std::span<const TokenIndex> of(int layer, int query_head, int row);

 private:
  void set_row(int row);
  int table(int layer, int query_head) const;

  const SequenceRunner& runner_;
  int per_layer_ = 1;  // tables of a layer; 0: one for all layers
  int heads_ = 1;      // query heads of a table
  TokenIndex first_ = 0;
  // By table: the tokens held before the pass, then those of the pass.
  std::vector<std::vector<TokenIndex>> ids_;
  std::vector<std::size_t> held_;
  // For a policy that drops ranges: a copy one pass behind, to compute what each row sees.
  std::unique_ptr<RetentionPolicy> shadow_;
  KeepPlan plan_;
  std::vector<IndexRange> before_;  // retained before the pass
  std::vector<IndexRange> hidden_;  // [rows of the pass]; empty: not yet computed
  int row_ = -1;
};

}  // namespace kvasir
