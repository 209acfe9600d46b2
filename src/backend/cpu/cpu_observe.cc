// Attention that somebody listens to: weights are kept for some rows at a time, reduced to masses, and told.
#include <algorithm>
#include <limits>

#include "backend/attention_mass.h"
#include "backend/cpu/cpu_backend_impl.h"

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
    for (const LayerTable& table : layer_tables_)
      for_each_range(*table.sequence, table.observed_as, false,
                     [&](int begin, int end) { add_tasks(table, begin, end, queries); });
  };
  add_all(kWideTile);
  if (splits_partials()) add_all(kNarrowTile);
  if (!tasks_.empty()) run_tasks();
}

// Some rows at a time, so that the weights of a whole pass never exist at once; those of several sequences together.
void CpuAttention::attend_observed() {
  const int most_rows = most_unit_rows(layer_shape(), threads_.threads());
  std::vector<Unit> units;
  std::size_t weights = 0;
  const auto flush = [&] {
    if (!units.empty()) observe_units(units);
    units.clear();
    weights = 0;
  };
  for (std::size_t first = 0; first < layer_tables_.size();) {
    const BatchSequence& sequence = *layer_tables_[first].sequence;
    std::size_t last = first;
    while (last < layer_tables_.size() && layer_tables_[last].sequence == &sequence) ++last;
    const auto add_units = [&](std::size_t first_table, std::size_t last_table, int begin, int end) {
      const std::size_t per_row = weights_of_row(first_table, last_table);
      const auto rows = static_cast<int>(
          std::clamp<std::size_t>(kMostWeights / std::max<std::size_t>(per_row, 1), 1, std::size_t(most_rows)));
      for (int row = begin; row < end; row += rows) {
        const Unit unit{&sequence, first_table, last_table, row, std::min(end, row + rows)};
        const std::size_t own = per_row * static_cast<std::size_t>(unit.rows());
        if (weights + own > kMostWeights) flush();
        weights += own;
        units.push_back(unit);
      }
    };
    // A row of all tables may be too much; raw weights are told for all heads at once.
    const bool whole = (sequence.listener != nullptr && sequence.listener->wants_weights()) ||
                       weights_of_row(first, last) <= kMostWeights;
    for_each_range(sequence, layer_tables_[first].observed_as, true, [&](int begin, int end) {
      if (whole) return add_units(first, last, begin, end);
      for (std::size_t table = first; table < last; ++table) add_units(table, table + 1, begin, end);
    });
    first = last;
  }
  flush();
}

std::size_t CpuAttention::weights_of_row(std::size_t first, std::size_t last) const {
  std::size_t weights = 0;
  for (std::size_t t = first; t < last; ++t)
    weights += product(layer_tables_[t].heads, layer_shape().group()) * layer_tables_[t].table->entries *
               static_cast<std::size_t>(store_->slots());
  return weights;
}

void CpuAttention::observe_units(std::span<const Unit> units) {
  const auto slots = static_cast<std::size_t>(store_->slots());
  const auto group = static_cast<std::size_t>(layer_shape().group());
  tasks_.clear();
  std::size_t rows = 0, maxima = 0, masks = 0;
  for (const Unit& unit : units) {
    for (std::size_t t = unit.first_table; t < unit.last_table; ++t) {
      const std::size_t begin = tasks_.size();
      add_tasks(layer_tables_[t], unit.begin, unit.end, kNarrowTile);
      for (std::size_t task = begin; task < tasks_.size(); ++task)
        tasks_[task].observed = (rows + static_cast<std::size_t>(tasks_[task].row - unit.begin)) *
                                static_cast<std::size_t>(layer_shape().heads);
    }
    rows += static_cast<std::size_t>(unit.rows());
  }
  for (const Task& task : tasks_) {
    maxima += static_cast<std::size_t>(task.rows) * group * task.table->table->entries;
    masks += task.table->table->entries;
  }
  float* weight = weights_.ensure(maxima * slots);
  float* maximum = weight_maxima_.ensure(maxima);
  SlotMask* retained = retained_.ensure(masks);
  const bool narrowed = std::ranges::any_of(tasks_, [](const Task& task) {
    return task.table->selects || !task.table->table->batch->retained_masks.empty();
  });
  if (layer_shape().windowed || narrowed) {
    // Tokens that are retained but not read are observed too: nobody computes their weight, it is zero.
    std::fill_n(weight, maxima * slots, 0.0F);
    std::fill_n(maximum, maxima, -std::numeric_limits<float>::infinity());
  }
  for (Task& task : tasks_) {
    const std::size_t entries = static_cast<std::size_t>(task.rows) * group * task.table->table->entries;
    task.weights = std::exchange(weight, weight + entries * slots);
    task.weight_maxima = std::exchange(maximum, maximum + entries);
    task.retained = std::exchange(retained, retained + task.table->table->entries);
  }
  observed_.assign(rows * static_cast<std::size_t>(layer_shape().heads), {});
  run_tasks();
  std::size_t observed = 0;
  for (const Unit& unit : units) {
    tell(unit, observed);
    observed += static_cast<std::size_t>(unit.rows() * layer_shape().heads);
  }
}

void CpuAttention::tell(const Unit& unit, std::size_t observed) {
  AttentionListener& listener = *unit.sequence->listener;
  if (listener.wants_weights())
    listener.hear_weights({layer_tables_[unit.first_table].observed_as, unit.begin, unit.rows(), layer_shape().heads,
                           std::span(observed_).subspan(observed, product(unit.rows(), layer_shape().heads))});
  if (!listener.reductions().empty()) tell_masses(unit, observed);
}

void CpuAttention::tell_masses(const Unit& unit, std::size_t observed) {
  AttentionListener& listener = *unit.sequence->listener;
  const std::span<const MassReduction> reductions = listener.reductions();
  const auto tables = static_cast<int>(unit.last_table - unit.first_table);
  const LayerTable& first = layer_tables_[unit.first_table];
  const int heads = first.heads * layer_shape().group();
  std::size_t most = 0;
  for (std::size_t i = 0; i < product(unit.rows(), layer_shape().heads); ++i)
    most = std::max(most, observed_[observed + i].size());
  const std::size_t count = product(unit.rows(), tables) * reductions.size() * most;
  double* all = masses_.ensure(count);
  const auto weights_of = [&](int row, int table, int head) {
    return observed_[observed + product(row, layer_shape().heads) +
                     static_cast<std::size_t>((first.number + table) * heads + head)];
  };
  const auto mass_of = [&](int row, int table, std::size_t reduction) {
    const std::size_t at = (product(row, tables) + static_cast<std::size_t>(table)) * reductions.size() + reduction;
    return std::span(all, count).subspan(at * most, weights_of(row, table, 0).size());
  };
  threads_.parallel_for(unit.rows() * tables, [&](int index) {
    const int row = index / tables;
    const int table = index % tables;
    if (!listener.wants_row(unit.begin + row)) return;
    const float* of_heads[kMaxHeads];
    for (int h = 0; h < heads; ++h) of_heads[h] = weights_of(row, table, h).data();
    for (std::size_t r = 0; r < reductions.size(); ++r) {
      const std::span<double> mass = mass_of(row, table, r);
      reduce_mass({of_heads, static_cast<std::size_t>(heads)}, static_cast<int>(mass.size()), reductions[r], mass,
                  {kernels_.sum_weights, kernels_.add_weights});
    }
  });
  std::vector<std::span<const double>> masses(reductions.size());
  for (int table = 0; table < tables; ++table)
    for (int row = 0; row < unit.rows(); ++row) {
      if (!listener.wants_row(unit.begin + row)) continue;
      for (std::size_t r = 0; r < reductions.size(); ++r) masses[r] = mass_of(row, table, r);
      listener.hear_masses({first.observed_as, first.number + table, unit.begin + row, masses});
    }
}

}  // namespace kvasir
