#include "eval/seen_tokens.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"

namespace kvasir {

void retained_ids(const LaneGroup& table, std::vector<TokenIndex>& ids) {
  ids.clear();
  for (int run = 0; run < table.runs(); ++run)
    for (const LaneGroup::Column* column = table.first_column(run); column != nullptr; column = column->next)
      for (SlotMask live = LaneGroup::live_slots(*column); live != 0; live &= live - 1)
        ids.push_back(column->id(std::countr_zero(live)));
  if (!std::ranges::is_sorted(ids)) std::ranges::sort(ids);
}

std::vector<std::vector<std::vector<TokenIndex>>> retained_by_layer(const KvSequence& sequence, int layers) {
  const int per_layer = std::max(1, sequence.tables() / layers);
  std::vector<std::vector<std::vector<TokenIndex>>> result(static_cast<std::size_t>(layers));
  for (int layer = 0; layer < layers; ++layer)
    for (int i = 0; i < per_layer; ++i)
      retained_ids(sequence.table(sequence.scope() == PolicyScope::kSequence ? 0 : layer * per_layer + i),
                   result[static_cast<std::size_t>(layer)].emplace_back());
  return result;
}

SeenTokens::SeenTokens(const SequenceRunner* runner, const LoadedModel& model) : runner_(*runner) {
  const RetentionPolicy& policy = runner->policy();
  const PolicyScope scope = policy.scope();
  per_layer_ = scope == PolicyScope::kSequence ? 0 : scope == PolicyScope::kLayer ? 1 : model.config.kv_heads;
  heads_ = model.config.heads / std::max(1, per_layer_);
  if (!policy.by_table()) shadow_ = policy.clone();
  ids_.resize(shadow_ != nullptr ? 1 : static_cast<std::size_t>(runner->sequence().tables()));
  held_.resize(ids_.size());
  next_pass();
}

void SeenTokens::next_pass() {
  const TokenIndex next = runner_.sequence().next_id();
  if (shadow_ != nullptr) {
    for (TokenIndex taken = first_ + static_cast<TokenIndex>(hidden_.size()); taken < next; ++taken) shadow_->advance();
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

// All that came up to the row, less what is hidden from it: the range that the policy had dropped by then.
void SeenTokens::set_row(int row) {
  if (row == row_) return;
  row_ = row;
  while (hidden_.size() <= static_cast<std::size_t>(row)) hidden_.push_back(shadow_->advance());
  const IndexRange hidden = hidden_[static_cast<std::size_t>(row)];
  const TokenIndex end = first_ + row + 1;
  const TokenIndex before = hidden.empty() ? 0 : hidden.begin;
  const TokenIndex behind = hidden.empty() ? 0 : hidden.end;
  KVASIR_CHECK(behind < end);
  std::vector<TokenIndex>& ids = ids_.front();
  ids.resize(static_cast<std::size_t>(before + end - behind));
  std::iota(ids.begin(), ids.begin() + before, TokenIndex{0});
  std::iota(ids.begin() + before, ids.end(), behind);
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
