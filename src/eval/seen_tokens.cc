#include "eval/seen_tokens.h"

#include <algorithm>
#include <bit>

namespace kvasir {

void retained_ids(const PageTable& table, std::vector<TokenIndex>& ids) {
  ids.clear();
  // Frames are in order of their tokens.
  for (const PageTable::Frame& frame : table.frames())
    for (const PageEntry& entry : table.entries_of(frame))
      for (SlotMask live = entry.live; live != 0; live &= live - 1)
        ids.push_back(table.columns().index(entry.column, std::countr_zero(live)));
}

std::vector<std::vector<std::vector<TokenIndex>>> retained_by_layer(const KvSequence& sequence, int layers) {
  const int per_layer = std::max(1, sequence.governed_tables() / layers);
  std::vector<std::vector<std::vector<TokenIndex>>> result(static_cast<std::size_t>(layers));
  for (int layer = 0; layer < layers; ++layer)
    for (int i = 0; i < per_layer; ++i)
      retained_ids(sequence.table(sequence.scope() == PolicyScope::kSequence ? 0 : layer * per_layer + i),
                   result[static_cast<std::size_t>(layer)].emplace_back());
  return result;
}

SeenTokens::SeenTokens(const SequenceRunner* runner, const LoadedModel& model) : runner_(*runner) {
  const RetentionPolicy& policy = runner->policy();
  const PolicyScope scope = policy.traits().scope;
  per_layer_ = scope == PolicyScope::kSequence ? 0
               : scope == PolicyScope::kLayer  ? 1
                                               : model.config.governed().kv_heads;
  heads_ = model.config.governed().heads / std::max(1, per_layer_);
  if (policy.as<HidesRanges>() != nullptr) shadow_ = policy.clone();
  ids_.resize(shadow_ != nullptr ? 1 : static_cast<std::size_t>(runner->sequence().governed_tables()));
  held_.resize(ids_.size());
  next_pass();
}

void SeenTokens::next_pass() {
  const TokenIndex next = runner_.sequence().next_index();
  if (shadow_ != nullptr) {
    const PolicyChunk chunk{.first = shadow_->seen(), .rows = static_cast<int>(next - shadow_->seen())};
    plan_.clear();
    if (chunk.rows > 0) shadow_->end_chunk(chunk, 0, plan_);
    hidden_.clear();
    row_ = -1;
  } else {
    for (std::size_t t = 0; t < ids_.size(); ++t) {
      retained_ids(runner_.sequence().table(static_cast<int>(t)), ids_[t]);
      held_[t] = ids_[t].size();
    }
  }
  first_ = next;
}

int SeenTokens::table(int layer, int query_head) const {
  return per_layer_ == 0 ? 0 : layer * per_layer_ + query_head / heads_;
}

// Sets the tokens a row sees: those retained before the pass, plus the pass's up to the row, minus hidden ones.
void SeenTokens::set_row(int row) {
  if (row == row_) return;
  row_ = row;
  if (hidden_.empty()) {
    const PolicyChunk chunk{.first = first_, .rows = static_cast<int>(runner_.sequence().next_index() - first_)};
    hidden_.resize(static_cast<std::size_t>(chunk.rows));
    find_hidden(*shadow_, chunk, hidden_);
    before_.clear();
    shadow_->retained(0, 0, before_);
    before_.push_back({first_, chunk.end()});
  }
  const IndexRange hidden = hidden_[static_cast<std::size_t>(row)];
  std::vector<TokenIndex>& ids = ids_.front();
  ids.clear();
  for (const IndexRange& range : before_)
    for (TokenIndex id = range.begin; id < std::min(range.end, first_ + row + 1); ++id)
      if (id < hidden.begin || id >= hidden.end) ids.push_back(id);
}

std::span<const TokenIndex> SeenTokens::of(int layer, int query_head, int row) {
  if (shadow_ != nullptr) {
    set_row(row);
    return ids_.front();
  }
  const auto t = static_cast<std::size_t>(table(layer, query_head));
  std::vector<TokenIndex>& ids = ids_[t];
  const std::size_t count = held_[t] + static_cast<std::size_t>(row) + 1;
  while (ids.size() < count) ids.push_back(first_ + static_cast<TokenIndex>(ids.size() - held_[t]));
  return std::span(ids).first(count);
}

}  // namespace kvasir
