// Attention of rows that listeners observe, some rows at a time, and of all others.
#include <algorithm>

#include "backend/cpu/cpu_attention.h"

namespace kvasir {

namespace {

// `layer`: LayerLanes::observed_as.
bool is_observed(const BatchSequence& sequence, int layer, int row) {
  const AttentionListener* listener = sequence.listener;
  if (listener == nullptr || layer < 0) return false;
  return listener->wants_weights() || (!listener->reductions().empty() && listener->wants_row(row));
}

// Calls visit(begin, end) for each range of rows that are observed, or that are not.
template <class Visit>
void for_each_range(const BatchSequence& sequence, int layer, bool observed, Visit&& visit) {
  for (int begin = 0; begin < sequence.rows;) {
    int end = begin;
    while (end < sequence.rows && is_observed(sequence, layer, end) == observed) ++end;
    if (end > begin) visit(begin, end);
    begin = std::max(end, begin + 1);
  }
}

}  // namespace

void CpuAttention::attend_unobserved() {
  const auto add_all = [&](int queries) {
    tasks_.clear();
    for (const LayerTable& table : tables_.of_layer())
      for_each_range(*table.sequence, table.observed_as, false,
                     [&](int begin, int end) { add_tasks(table, begin, end, queries); });
  };
  add_all(kWideTile);
  if (splits_partials()) add_all(kNarrowTile);
  if (!tasks_.empty()) run_tasks();
}

// Runs some rows of one or several sequences at a time, so that the weights of a whole pass never exist at once.
void CpuAttention::attend_observed() {
  const std::span<const LayerTable> tables = tables_.of_layer();
  const int most_rows = most_observed_rows(layer(), threads_.threads());
  std::vector<ObservedRows> units;
  std::size_t weights = 0;
  // Floats for the weights of one row in tables [first, last).
  const auto weights_of_row = [&](std::size_t first, std::size_t last) {
    std::size_t entries = 0;
    for (std::size_t t = first; t < last; ++t)
      entries += product(tables[t].heads, layer().group()) * tables[t].table->entries;
    return entries * static_cast<std::size_t>(tables_.store().slots());
  };
  const auto flush = [&] {
    if (!units.empty()) observe_units(units);
    units.clear();
    weights = 0;
  };
  for (std::size_t first = 0; first < tables.size();) {
    const BatchSequence& sequence = *tables[first].sequence;
    std::size_t last = first;
    while (last < tables.size() && tables[last].sequence == &sequence) ++last;
    const auto add_units = [&](std::size_t first_table, std::size_t last_table, int begin, int end) {
      const std::size_t per_row = weights_of_row(first_table, last_table);
      const auto rows = static_cast<int>(std::clamp<std::size_t>(
          ObservedWeights::kMost / std::max<std::size_t>(per_row, 1), 1, std::size_t(most_rows)));
      for (int row = begin; row < end; row += rows) {
        const ObservedRows unit{&sequence, first_table, last_table, row, std::min(end, row + rows)};
        const std::size_t own = per_row * static_cast<std::size_t>(unit.rows());
        if (weights + own > ObservedWeights::kMost) flush();
        weights += own;
        units.push_back(unit);
      }
    };
    // Tables go one by one where a row of all takes too much memory. Raw weights are reported for all heads at once.
    const bool whole = (sequence.listener != nullptr && sequence.listener->wants_weights()) ||
                       weights_of_row(first, last) <= ObservedWeights::kMost;
    for_each_range(sequence, tables[first].observed_as, true, [&](int begin, int end) {
      if (whole) return add_units(first, last, begin, end);
      for (std::size_t table = first; table < last; ++table) add_units(table, table + 1, begin, end);
    });
    first = last;
  }
  flush();
}

void CpuAttention::observe_units(std::span<const ObservedRows> units) {
  const auto heads = static_cast<std::size_t>(layer().heads);
  tasks_.clear();
  std::size_t rows = 0;
  for (const ObservedRows& unit : units) {
    for (std::size_t t = unit.first_table; t < unit.last_table; ++t) {
      const std::size_t begin = tasks_.size();
      add_tasks(tables_.of_layer()[t], unit.begin, unit.end, kNarrowTile);
      for (std::size_t task = begin; task < tasks_.size(); ++task)
        tasks_[task].observed = (rows + static_cast<std::size_t>(tasks_[task].row - unit.begin)) * heads;
    }
    rows += static_cast<std::size_t>(unit.rows());
  }
  observed_.make_room(tasks_, rows);
  run_tasks();
  std::size_t observed = 0;
  for (const ObservedRows& unit : units) {
    observed_.report(unit, observed);
    observed += static_cast<std::size_t>(unit.rows()) * heads;
  }
}

}  // namespace kvasir
