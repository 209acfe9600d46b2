#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "backend/attention_mass.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/encode_page.h"
#include "base/check.h"

namespace kvasir {

constexpr std::size_t kMostFrames = 64;  // of a page table

void CpuAttention::begin(const Backend::Pass& pass) {
  pass_ = pass;
  store_ = static_cast<const CpuPageStore*>(pass.store);
  const Batch& batch = *pass.batch;
  tables_.clear();
  partials_.clear();
  Table next;
  for (const BatchSequence& sequence : batch.sequences) {
    KVASIR_CHECK(sequence.layers.size() == shape_.layers.size());
    const std::size_t first = tables_.size();
    for (int t = 0; t < sequence.tables; ++t) {
      next.batch = &batch.tables[sequence.first_table + static_cast<std::size_t>(t)];
      KVASIR_CHECK(next.batch->rows == sequence.rows);
      add_partials(next);
      tables_.push_back(next);
    }
    for (std::size_t l = 0; l < sequence.layers.size(); ++l) {
      const LayerLanes& lanes = sequence.layers[l];
      if (rotations_[static_cast<std::size_t>(shape_.layers[l].rotation)].floats() == 0) continue;
      for (int t = 0; t < lanes.tables; ++t)
        tables_[first + static_cast<std::size_t>(lanes.first_table + t)].rotation =
            static_cast<std::size_t>(shape_.layers[l].rotation);
    }
  }
  fill_rotations();
  layer_tables_.clear();
}

void CpuAttention::add_partials(Table& table) {
  table.first_partial = partials_.size();
  table.entries = 0;
  for (std::uint32_t f = 0; f < table.batch->frames.size(); ++f) {
    const std::span<const PageEntry> entries = table.batch->frames[f].entries;
    std::uint64_t group = 0;
    for (std::uint32_t e = 0; e < entries.size(); ++e) {
      const std::uint64_t own_group = entries[e].ordinal / kPartialEntries;
      if (e == 0 || own_group != group) partials_.push_back({f, e, e, table.entries + e});
      group = own_group;
      partials_.back().end = e + 1;
    }
    table.entries += static_cast<std::uint32_t>(entries.size());
  }
  table.partials = partials_.size() - table.first_partial;
}

void CpuAttention::fill_rotations() {
  std::size_t keys = 0, queries = 0;  // floats
  for (Table& table : tables_) {
    table.first_key = keys;
    table.first_query = queries;
    keys += table.batch->key_positions.size() * rotation_of(table).floats();
    queries += table.batch->query_positions.size() * rotation_of(table).floats();
  }
  key_rotation_.ensure(keys);
  query_rotation_.ensure(queries);
  for (const Table& table : tables_) {
    RotationTable& rotation = rotations_[table.rotation];
    // Keys are stored multiplied; what rotates them again later is a pure rotation.
    const auto magnitude = static_cast<float>(shape_.rotations[table.rotation].magnitude);
    const auto fill = [&](std::span<const Position> positions, float* at) {
      float* const begin = at;
      for (const Position position : positions) at = std::copy_n(rotation.of(position), rotation.floats(), at);
      if (magnitude == 1) return;
      for (float* value = begin; value != at; ++value) *value *= magnitude;
    };
    fill(table.batch->key_positions, key_rotation_.data() + table.first_key);
    fill(table.batch->query_positions, query_rotation_.data() + table.first_query);
  }
}

// Which tables the lanes of a layer belong to.
void CpuAttention::set_layer(int layer) {
  layer_ = layer;
  layer_tables_.clear();
  std::size_t table = 0;  // first of the sequence
  LayerTable next;
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    const LayerLanes& lanes = sequence.layers[static_cast<std::size_t>(layer)];
    next.sequence = &sequence;
    next.observed_as = lanes.observed_as;
    next.selects =
        sequence.selector != nullptr && lanes.observed_as >= 0 && sequence.selector->selects(lanes.observed_as);
    next.heads = layer_shape().kv_heads / lanes.tables;
    next.first_lane = lanes.first_lane;
    for (int part = 0; part < lanes.tables; ++part) {
      next.number = part;
      next.table = &tables_[table + static_cast<std::size_t>(lanes.first_table + part)];
      next.first_head = part * next.heads;
      layer_tables_.push_back(next);
      next.first_query += next.table->batch->query_positions.size();
      if (next.selects) next.first_read += product(next.heads, sequence.rows) * next.table->entries;
    }
    table += static_cast<std::size_t>(sequence.tables);
  }
  ensure_staged();
}

void CpuAttention::rotate_queries(const float* query) {
  const LayerShape& shape = layer_shape();
  const float scale = shape.scale != 0 ? shape.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  std::size_t total = 0;
  for (const LayerTable& table : layer_tables_) total += table.table->batch->query_positions.size();
  // A table of fewer heads leaves room between its queries and the next table's.
  const std::size_t stride = product(shape.heads, shape.head_dim);
  float* out = rotated_.ensure(total * stride);
  threads_.parallel_for(static_cast<int>(total), [&](int index) {
    const auto number = static_cast<std::size_t>(index);
    auto table = layer_tables_.begin();
    if (layer_tables_.size() > 1)
      table = std::prev(std::upper_bound(layer_tables_.begin(), layer_tables_.end(), number,
                                         [](std::size_t q, const LayerTable& t) { return q < t.first_query; }));
    const int group = layer_shape().group();
    const std::size_t own = number - table->first_query;
    const std::size_t row = own % static_cast<std::size_t>(table->sequence->rows);
    const std::size_t floats = rotation_of(*table->table).floats();
    const float* rotation = query_rotation_.data() + table->table->first_query + own * floats;
    kernels_.rope(query + (static_cast<std::size_t>(table->sequence->first_row) + row) * stride +
                      product(table->first_head * group, layer_shape().head_dim),
                  table->heads * group, layer_shape().head_dim, rotary(), rotation, rotation + floats / 2, scale,
                  out + number * stride);
    // Selectors are shown queries that are not transformed yet.
    if (table->table->batch->format.hadamard_keys && !table->selects)
      hadamard(out + number * stride, table->heads * group, layer_shape().head_dim);
  });
}

// Asks the selectors, in parallel for different lanes, and transforms the queries that they were shown.
void CpuAttention::select_slots() {
  std::size_t masks = 0;
  int lanes = 0;
  for (const LayerTable& table : layer_tables_) {
    if (!table.selects) continue;
    masks = table.first_read + product(table.heads, table.sequence->rows) * table.table->entries;
    lanes += table.heads;
  }
  if (lanes == 0) return;
  std::fill_n(read_.ensure(masks), masks, ~SlotMask{0});
  const int group = layer_shape().group();
  const std::size_t stride = product(layer_shape().heads, layer_shape().head_dim);  // of rows
  threads_.parallel_for(lanes, [&](int index) {
    auto table = layer_tables_.begin();
    for (; !table->selects || index >= table->heads; ++table)
      if (table->selects) index -= table->heads;
    const BatchTable& batch = *table->table->batch;
    const std::size_t entries = table->table->entries;
    LaneRow lane;
    lane.layer = table->observed_as;
    lane.head = table->first_head + index;
    lane.table = &batch;
    lane.lane = table->first_lane + index;
    lane.store = store_;
    lane.group = group;
    lane.head_dim = layer_shape().head_dim;
    lane.frame_stride = static_cast<std::size_t>(batch.rows) * stride;
    lane.score_segments = kernels_.score_segments;
    for (int row = 0; row < batch.rows; ++row) {
      lane.row = row;
      lane.queries = rotated_.data() + (table->first_query + static_cast<std::size_t>(row)) * stride +
                     product(index * group, layer_shape().head_dim);
      SlotMask* read =
          read_.data() + table->first_read + (product(index, batch.rows) + static_cast<std::size_t>(row)) * entries;
      table->sequence->selector->select(lane, {read, entries});
    }
    if (!batch.format.hadamard_keys) return;
    for (std::size_t q = 0; q < batch.query_positions.size(); ++q)
      hadamard(rotated_.data() + (table->first_query + q) * stride + product(index * group, layer_shape().head_dim),
               group, layer_shape().head_dim);
  });
}

void CpuAttention::attend(int layer, const float* query, float* out) {
  query_ = query;
  out_ = out;
  set_layer(layer);
  for (const BatchSequence& sequence : pass_.batch->sequences)
    if (const int number = sequence.layers[static_cast<std::size_t>(layer)].observed_as;
        sequence.offloaded != nullptr && number >= 0)
      sequence.offloaded->fetch(number);
  tell_queries(query);
  rotate_queries(query);
  select_slots();
  attend_unobserved();
  attend_observed();
}

void CpuAttention::add_tasks(const LayerTable& table, int begin_row, int end_row, int queries) {
  const int tile = std::max(1, queries / layer_shape().group());
  const std::vector<SealedColumn>& seals = table.table->batch->seals;
  for (int head = table.first_head; head < table.first_head + table.heads; ++head) {
    std::size_t seal = 0;
    for (int row = begin_row; row < end_row;) {
      // All rows of a tile read the same form of each page.
      while (seal < seals.size() && seals[seal].first_row <= row) ++seal;
      Task task;
      task.table = &table;
      task.head = head;
      task.row = row;
      task.rows = std::min({tile, end_row - row, seal < seals.size() ? seals[seal].first_row - row : tile});
      row += task.rows;
      tasks_.push_back(task);
    }
  }
}

bool CpuAttention::splits_partials() const {
  return static_cast<int>(tasks_.size()) < 4 * threads_.threads();
}

// A tile of rows passes over all partials of its lane in order. With too few tiles for the threads (decoding),
// the partials of a tile are computed by several threads and merged in the same order: the same sums either way.
void CpuAttention::run_tasks() {
  const bool splits = splits_partials();
  std::size_t queries = 0;  // in all states
  shares_.clear();
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const std::size_t partials = tasks_[t].table->table->partials;
    tasks_[t].state = queries;
    queries += product(tasks_[t].rows, layer_shape().group()) * (1 + (splits ? partials : 1));
    for (std::size_t p = 0; splits && p < partials; ++p)
      shares_.emplace_back(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(p));
  }
  state_weighted_.ensure(queries * static_cast<std::size_t>(layer_shape().head_dim));
  state_scalars_.ensure(queries * 2);

  const auto clear_total = [&](const Task& task) { clear(state(task, 0), task.rows * layer_shape().group()); };
  const auto merge = [&](const Task& task, int index) {
    kernels_.merge(state(task, 0), state(task, index), task.rows * layer_shape().group(), layer_shape().head_dim);
  };
  if (splits && shares_.size() > tasks_.size()) {
    threads_.parallel_for(static_cast<int>(shares_.size()), [&](int index) {
      const auto share = static_cast<std::size_t>(index);
      const auto [task, partial] = shares_[share];
      // Threads take turns: this one's next share is about as far away as there are threads.
      const std::size_t later = share + static_cast<std::size_t>(threads_.threads());
      const std::byte* next =
          later < shares_.size() ? first_page(tasks_[shares_[later].first], shares_[later].second) : nullptr;
      run_partial(tasks_[task], partial, 1 + static_cast<int>(partial), next);
    });
    threads_.parallel_for(static_cast<int>(tasks_.size()), [&](int index) {
      const Task& task = tasks_[static_cast<std::size_t>(index)];
      clear_total(task);
      for (int p = 0; p < static_cast<int>(task.table->table->partials); ++p) merge(task, 1 + p);
      end_task(task);
    });
    finish_recalling();
    return;
  }
  threads_.parallel_for(static_cast<int>(tasks_.size()), [&](int index) {
    const Task& task = tasks_[static_cast<std::size_t>(index)];
    clear_total(task);
    const std::size_t partials = task.table->table->partials;
    for (std::size_t p = 0; p < partials; ++p) {
      run_partial(task, p, 1, p + 1 < partials ? first_page(task, p + 1) : nullptr);
      merge(task, 1);
    }
    end_task(task);
  });
  finish_recalling();
}

// All that the task's rows read of their table is in its total.
void CpuAttention::end_task(const Task& task) {
  if (task.weights != nullptr) note_weights(task);
  if (recalls(task)) return choose_recalled(task);
  finish_task(task);
}

AttentionState CpuAttention::state(const Task& task, int index) const {
  const std::size_t queries = product(task.rows, layer_shape().group());
  const std::size_t at = task.state + static_cast<std::size_t>(index) * queries;
  float* scalars = state_scalars_.data() + at * 2;
  return {scalars, scalars + queries, state_weighted_.data() + at * static_cast<std::size_t>(layer_shape().head_dim)};
}

void CpuAttention::clear(const AttentionState& state, int queries) const {
  std::fill_n(state.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, queries, 0.0F);
  std::fill_n(state.weighted, product(queries, layer_shape().head_dim), 0.0F);
}

// What the task's rows attend to of a partial: [rows][entries of the partial]. False where that is nothing, as may be
// where rows choose.
bool CpuAttention::fill_masks(const Task& task, const Partial& part, SlotMask* masks) const {
  const BatchTable& batch = *task.table->table->batch;
  const BatchFrame& frame = batch.frames[part.frame];
  const std::uint32_t entries = part.end - part.begin;
  for (std::uint32_t e = 0; e < entries; ++e)
    masks[e] = part.begin + e >= frame.visible_from ? frame.entries[part.begin + e].live : 0;
  for (int r = 1; r < task.rows; ++r) std::copy_n(masks, entries, masks + static_cast<std::uint32_t>(r) * entries);
  for (const MaskBlock& block : batch.blocks) {
    if (block.frame != part.frame) continue;
    const std::uint32_t begin = std::max(block.begin, part.begin), end = std::min(block.end, part.end);
    if (begin >= end) continue;
    const std::size_t width = block.end - block.begin;
    for (int r = 0; r < task.rows; ++r)
      std::copy_n(
          batch.masks.data() + block.masks + static_cast<std::size_t>(task.row + r) * width + begin - block.begin,
          end - begin, masks + static_cast<std::uint32_t>(r) * entries + begin - part.begin);
  }
  for (const HiddenBlock& block : batch.hidden) {
    if (block.frame != part.frame) continue;
    const std::uint32_t begin = std::max(block.begin, part.begin), end = std::min(block.end, part.end);
    if (begin >= end) continue;
    const int end_row = std::min(block.end_row - task.row, task.rows);
    for (int r = std::max(block.first_row - task.row, 0); r < end_row; ++r)
      std::fill_n(masks + static_cast<std::uint32_t>(r) * entries + begin - part.begin, end - begin, SlotMask{0});
  }
  if (!task.table->selects) return true;
  const SlotMask* read =
      read_.data() + task.table->first_read +
      (product(task.head - task.table->first_head, batch.rows) + static_cast<std::size_t>(task.row)) *
          task.table->table->entries +
      part.first;
  SlotMask any = 0;
  for (int r = 0; r < task.rows; ++r, read += task.table->table->entries)
    for (std::uint32_t e = 0; e < entries; ++e) any |= masks[static_cast<std::uint32_t>(r) * entries + e] &= read[e];
  return any != 0;
}

// The retained tokens up to a row, whatever the window: [entries of all frames].
void CpuAttention::retained_row(const BatchTable& table, int row, SlotMask* masks) const {
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

const std::byte* CpuAttention::first_page(const Task& task, std::size_t number) const {
  const Table& table = *task.table->table;
  const Partial& part = partials_[table.first_partial + number];
  if (part.frame == 0 && part.begin < table.batch->offloaded) return nullptr;
  return store_->data(page_of(task, table.batch->frames[part.frame].entries[part.begin]));
}

PageId CpuAttention::page_of(const Task& task, const PageEntry& entry) const {
  const BatchTable& batch = *task.table->table->batch;
  const auto lane = static_cast<std::size_t>(task.table->first_lane + task.head - task.table->first_head);
  return batch.pages[std::size_t{entry.column} * static_cast<std::size_t>(batch.lanes) + lane];
}

void CpuAttention::run_partial(const Task& task, std::size_t number, int index, const std::byte* next) {
  const Table& table = *task.table->table;
  const BatchTable& batch = *table.batch;
  const Partial& part = partials_[table.first_partial + number];
  const std::byte* pages[kPartialEntries];
  const PageFormat* formats[kPartialEntries];
  SlotMask masks[kWideTile * kPartialEntries];
  const auto entries = static_cast<int>(part.end - part.begin);
  KVASIR_CHECK(entries <= kPartialEntries && task.rows <= kWideTile);
  const AttentionState into = state(task, index);
  clear(into, task.rows * layer_shape().group());
  if (!fill_masks(task, part, masks)) return;
  const int offloaded =
      part.frame == 0 ? static_cast<int>(std::clamp(batch.offloaded, part.begin, part.end) - part.begin) : 0;
  const bool gathers = offloaded > 0 && !batch.offloaded_rows.empty();
  for (int e = 0; e < entries; ++e) {
    const PageEntry& entry = batch.frames[part.frame].entries[part.begin + static_cast<std::uint32_t>(e)];
    if (e < offloaded) {
      const PageId page = batch.offloaded_pages[gathers ? 0 : part.begin + static_cast<std::uint32_t>(e)];
      pages[e] = gathers ? nullptr : store_->data(page);
      formats[e] = &store_->format(page);
      continue;
    }
    const PageId page = page_of(task, entry);
    pages[e] = store_->data(page);
    formats[e] = &store_->format(page);
  }
  const PageFormat open = batch.format.open();
  use_open_pages(task, part, &open, pages, formats);
  const int group = layer_shape().group();
  const std::size_t stride = product(layer_shape().heads, layer_shape().head_dim);
  AttentionPartial run;
  run.head_dim = layer_shape().head_dim;
  run.slots = store_->slots();
  run.rows = task.rows;
  run.group = group;
  run.q = rotated_.data() +
          (task.table->first_query + product(static_cast<int>(part.frame), batch.rows) +
           static_cast<std::size_t>(task.row)) *
              stride +
          product((task.head - task.table->first_head) * group, layer_shape().head_dim);
  run.q_row_stride = stride;
  run.entries = entries;
  run.pages = pages;
  run.next_page = next;
  run.formats = formats;
  run.masks = masks;
  run.mask_row_stride = static_cast<std::size_t>(entries);
  if (task.weights != nullptr) {
    const auto slots = static_cast<std::size_t>(store_->slots());
    run.weights = task.weights + part.first * slots;
    run.weight_stride = table.entries * slots;
    run.weight_maxima = task.weight_maxima + part.first;
    run.weight_maximum_stride = table.entries;
  }
  if (gathers) return attend_gathered(batch, part, offloaded, run, into);
  if (!batch.biases.empty()) return attend_weighed(task, part, run, into);
  kernels_.attend(run, into);
}

void CpuAttention::finish_task(const Task& task) {
  const Table& table = *task.table->table;
  const int group = layer_shape().group();
  const int dim = layer_shape().head_dim;
  const AttentionState total = state(task, 0);
  const std::size_t stride = product(layer_shape().heads, dim);
  const int first_query = task.head * group;  // among the model's query heads
  for (int r = 0; r < task.rows; ++r) {
    const AttentionState of_row{total.maximum + r * group, total.sum + r * group,
                                total.weighted + product(r * group, dim)};
    float* out = out_ + static_cast<std::size_t>(task.table->sequence->first_row + task.row + r) * stride +
                 product(first_query, dim);
    kernels_.finish(of_row, group, dim, out);
    if (table.batch->format.hadamard_values) hadamard(out, group, dim);
  }
}

// Sets the softmax weights of a task, over what its rows attended to in their table.
void CpuAttention::note_weights(const Task& task) {
  const Table& table = *task.table->table;
  const int group = layer_shape().group();
  const AttentionState total = state(task, 0);
  const int first_query = task.head * group;
  const auto slots = static_cast<std::size_t>(store_->slots());
  for (int query = 0; query < task.rows * group; ++query) {
    if (query % group == 0) retained_row(*table.batch, task.row + query / group, task.retained);
    const std::size_t at = static_cast<std::size_t>(query) * table.entries;
    ObservedQuery observed;
    observed.entries = static_cast<int>(table.entries);
    observed.slots = static_cast<int>(slots);
    observed.masks = task.retained;
    observed.weights = task.weights + at * slots;
    observed.weight_maxima = task.weight_maxima + at;
    // Where a selector left everything unread, all weights are zero.
    const bool saw = total.sum[query] != 0;
    observed.maximum = saw ? total.maximum[query] : 0;
    observed.sum = saw ? total.sum[query] : 1;
    const int count = kernels_.observe_weights(observed);
    observed_[task.observed + product(query / group, layer_shape().heads) +
              static_cast<std::size_t>(first_query + query % group)] = {observed.weights,
                                                                        static_cast<std::size_t>(count)};
  }
}

}  // namespace kvasir
