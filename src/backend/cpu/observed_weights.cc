#include "backend/cpu/observed_weights.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "backend/attention_mass.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostFrames = 64;  // of a page table

// Sets the tokens that are retained up to a row, whatever its window: [entries of all frames].
void set_retained(const BatchTable& table, int row, SlotMask* masks) {
  std::size_t first[kMostFrames];
  std::size_t at = 0;
  for (std::size_t f = 0; f < table.frames.size(); ++f) {
    first[f] = at;
    for (const PageEntry& entry : table.frames[f].entries) masks[at++] = entry.live;
  }
  const std::vector<SlotMask>& own = table.retained_masks.empty() ? table.masks : table.retained_masks;
  for (const MaskBlock& block : table.blocks) {
    const std::size_t width = block.end - block.begin;
    std::copy_n(own.data() + block.masks + static_cast<std::size_t>(row) * width, width,
                masks + first[block.frame] + block.begin);
  }
  for (const HiddenBlock& block : table.hidden)
    if (row >= block.first_row && row < block.end_row)
      std::fill_n(masks + first[block.frame] + block.begin, block.end - block.begin, SlotMask{0});
}

}  // namespace

void ObservedWeights::make_room(std::span<AttentionTask> tasks, std::size_t rows) {
  const LayerShape& layer = tables_.layer();
  const auto slots = static_cast<std::size_t>(tables_.store().slots());
  const auto entries_of = [&](const AttentionTask& task) {  // for all of its queries
    return product(task.rows, layer.group()) * task.table->table->entries;
  };
  std::size_t maxima = 0, masks = 0;
  bool narrowed = layer.windowed;
  for (const AttentionTask& task : tasks) {
    maxima += entries_of(task);
    masks += task.table->table->entries;
    narrowed = narrowed || task.table->selects || !task.table->batch().retained_masks.empty();
  }
  float* weight = weights_.ensure(maxima * slots);
  float* maximum = weight_maxima_.ensure(maxima);
  SlotMask* retained = retained_.ensure(masks);
  if (narrowed) {
    // Tokens that are retained but not read are observed with weight zero, which no kernel writes.
    std::fill_n(weight, maxima * slots, 0.0F);
    std::fill_n(maximum, maxima, -std::numeric_limits<float>::infinity());
  }
  for (AttentionTask& task : tasks) {
    const std::size_t entries = entries_of(task);
    task.weights = std::exchange(weight, weight + entries * slots);
    task.weight_maxima = std::exchange(maximum, maximum + entries);
    task.retained = std::exchange(retained, retained + task.table->table->entries);
  }
  observed_.assign(rows * static_cast<std::size_t>(layer.heads), {});
}

void ObservedWeights::collect(const AttentionTask& task, const AttentionState& total) {
  const std::uint32_t entries = task.table->table->entries;
  const int group = tables_.layer().group();
  const int first_query = task.head * group;
  const auto slots = static_cast<std::size_t>(tables_.store().slots());
  for (int query = 0; query < task.rows * group; ++query) {
    if (query % group == 0) set_retained(task.table->batch(), task.row + query / group, task.retained);
    const std::size_t at = static_cast<std::size_t>(query) * entries;
    float* const weights = task.weights + at * slots;
    // Where a selector left everything unread, all weights are zero.
    const bool saw = total.sum[query] != 0;
    const int count = kernels_.observe_weights({.entries = static_cast<int>(entries),
                                                .slots = static_cast<int>(slots),
                                                .masks = task.retained,
                                                .weights = weights,
                                                .weight_maxima = task.weight_maxima + at,
                                                .maximum = saw ? total.maximum[query] : 0,
                                                .sum = saw ? total.sum[query] : 1});
    observed_[task.observed + product(query / group, tables_.layer().heads) +
              static_cast<std::size_t>(first_query + query % group)] = {weights, static_cast<std::size_t>(count)};
  }
}

void ObservedWeights::report(const ObservedRows& unit, std::size_t observed) {
  AttentionListener& listener = *unit.sequence->listener;
  const int heads = tables_.layer().heads;
  if (listener.wants_weights())
    listener.hear_weights({tables_.of_layer()[unit.first_table].observed_as, unit.begin, unit.rows(), heads,
                           std::span(observed_).subspan(observed, product(unit.rows(), heads))});
  if (!listener.reductions().empty()) report_masses(unit, observed);
}

void ObservedWeights::report_masses(const ObservedRows& unit, std::size_t observed) {
  AttentionListener& listener = *unit.sequence->listener;
  const std::span<const MassReduction> reductions = listener.reductions();
  const auto tables = static_cast<int>(unit.last_table - unit.first_table);
  const LayerTable& first = tables_.of_layer()[unit.first_table];
  const int heads = first.heads * tables_.layer().group();
  std::size_t most = 0;
  for (std::size_t i = 0; i < product(unit.rows(), tables_.layer().heads); ++i)
    most = std::max(most, observed_[observed + i].size());
  const std::size_t count = product(unit.rows(), tables) * reductions.size() * most;
  double* all = masses_.ensure(count);
  const auto weights_of = [&](int row, int table, int head) {
    return observed_[observed + product(row, tables_.layer().heads) +
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

std::uint64_t ObservedWeights::allocated_bytes() const {
  return weights_.bytes() + weight_maxima_.bytes() + retained_.bytes() + masses_.bytes() +
         observed_.capacity() * sizeof(observed_.front());
}

}  // namespace kvasir
