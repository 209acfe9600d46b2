// The transformer's attention over paged lanes, table by table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "model/transformer_workspace.h"

namespace kvasir {
namespace {

constexpr int kTileQueries = 32;

// In double: a float angle is off by 0.03 at a million.
void fill_rotation(const std::vector<double>& inverse_frequencies, Position position, float* out) {
  const std::size_t pairs = inverse_frequencies.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * inverse_frequencies[i];
    out[i] = static_cast<float>(std::cos(angle));
    out[pairs + i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace

const float* Transformer::rotation_of(Position position) {
  Workspace& w = *work_;
  const std::size_t floats = floats_per_rotation(config_);
  if (w.cached_position.empty()) {
    w.cached_position.assign(kRotationCacheEntries, std::numeric_limits<Position>::min());
    w.cached_rotation.ensure(kRotationCacheEntries * floats);
  }
  const auto at = static_cast<std::size_t>(position & (kRotationCacheEntries - 1));
  float* rotation = w.cached_rotation.data() + at * floats;
  if (w.cached_position[at] != position) {
    fill_rotation(config_.rope.inverse_frequencies, position, rotation);
    w.cached_position[at] = position;
  }
  return rotation;
}

// The tables of a layer, and the rotations of their keys and queries. Tables that hold for all layers are laid out
// once.
void Transformer::set_tables(std::span<const ForwardItem> items, int layer) {
  std::vector<LayerTable>& tables = work_->tables;
  const bool same = std::all_of(items.begin(), items.end(), [](const ForwardItem& i) { return i.views.size() == 1; });
  const int heads = config_.kv_heads;
  if (same && layer > 0) {
    for (LayerTable& table : tables) table.first_lane = layer * heads;
    return;
  }
  tables.clear();
  LayerTable next;
  for (const ForwardItem& item : items) {
    next.item = &item;
    const auto views = static_cast<int>(item.views.size());
    KVASIR_CHECK(views == 1 || views == config_.layers || views == config_.layers * heads);
    const int parts = views > config_.layers || (views > 1 && config_.layers == 1) ? heads : 1;
    next.heads = heads / parts;
    for (int part = 0; part < parts; ++part) {
      next.view = &item.views[static_cast<std::size_t>(views == 1 ? 0 : layer * parts + part)];
      next.first_head = part * next.heads;
      next.first_lane = views == 1 ? layer * heads : 0;
      tables.push_back(next);
      next.first_key += static_cast<std::size_t>(item.rows());
      next.first_query += product(next.view->frames, item.rows());
    }
    next.first_row += item.rows();
  }
  fill_rotations();
}

void Transformer::fill_rotations() {
  const std::size_t floats = floats_per_rotation(config_);
  std::size_t keys = 0, queries = 0;
  for (const LayerTable& table : work_->tables) {
    keys += table.view->key_positions.size();
    queries += table.view->query_positions.size();
  }
  float* key = work_->key_rotation.ensure(keys * floats);
  float* query = work_->query_rotation.ensure(queries * floats);
  for (const LayerTable& table : work_->tables) {
    for (const Position position : table.view->key_positions) key = std::copy_n(rotation_of(position), floats, key);
    for (const Position position : table.view->query_positions)
      query = std::copy_n(rotation_of(position), floats, query);
  }
  // Keys are stored multiplied; what rotates them again later is a pure rotation.
  const auto magnitude = static_cast<float>(config_.rope.magnitude);
  if (magnitude == 1) return;
  for (float* at = work_->key_rotation.data(); at != key; ++at) *at *= magnitude;
  for (float* at = work_->query_rotation.data(); at != query; ++at) *at *= magnitude;
}

void Transformer::store_keys_and_values(PagePool& pool) {
  const int dim = config_.head_dim;
  const std::size_t floats = floats_per_rotation(config_);
  // By head: tokens of one page share cache lines, heads do not.
  threads_.parallel_for(config_.kv_heads, [&](int head) {
    alignas(64) float key[kMaxHeadDim];
    for (const LayerTable& table : work_->tables) {
      if (head < table.first_head || head >= table.first_head + table.heads) continue;
      const auto lane = static_cast<std::size_t>(table.first_lane + head - table.first_head);
      const float* rotation = work_->key_rotation.data() + table.first_key * floats;
      std::size_t at = product(table.first_row, config_.kv_heads * dim) + product(head, dim);
      for (const AttentionView::RowSlot& place : table.view->slots) {
        kernels_.rope(work_->key.data() + at, 1, dim, config_.rope.dims, rotation, rotation + floats / 2, 1.0F, key);
        kernels_.store_kv(pool.shape(), pool.data(place.column->pages[lane]), place.slot, key,
                          work_->value.data() + at);
        rotation += floats;
        at += product(config_.kv_heads, dim);
      }
    }
  });
}

void Transformer::rotate_queries() {
  const std::size_t floats = floats_per_rotation(config_);
  const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  const std::vector<LayerTable>& tables = work_->tables;
  std::size_t total = 0;
  for (const LayerTable& table : tables) total += product(table.view->frames, table.view->rows);
  // A table of fewer heads leaves room between its queries and the next table's.
  const std::size_t stride = product(config_.heads, config_.head_dim);
  float* out = work_->rotated.ensure(total * stride);
  threads_.parallel_for(static_cast<int>(total), [&](int index) {
    const auto query = static_cast<std::size_t>(index);
    auto table = tables.begin();
    if (tables.size() > 1)
      table = std::prev(std::upper_bound(tables.begin(), tables.end(), query,
                                         [](std::size_t q, const LayerTable& t) { return q < t.first_query; }));
    const int group = config_.group();
    const auto row = (query - table->first_query) % static_cast<std::size_t>(table->view->rows);
    const float* rotation = work_->query_rotation.data() + query * floats;
    kernels_.rope(work_->query.data() + (static_cast<std::size_t>(table->first_row) + row) * stride +
                      product(table->first_head * group, config_.head_dim),
                  table->heads * group, config_.head_dim, config_.rope.dims, rotation, rotation + floats / 2, scale,
                  out + query * stride);
  });
}

void Transformer::attend(PagePool& pool, int layer) {
  std::vector<AttentionTask>& tasks = work_->tasks;
  tasks.clear();
  const std::vector<LayerTable>& tables = work_->tables;
  for (const LayerTable& table : tables)
    if (table.item->observer == nullptr) add_tasks(table, 0, table.view->rows);
  if (!tasks.empty()) run_tasks(pool);
  for (std::size_t begin = 0; begin < tables.size();) {
    std::size_t end = begin + 1;
    while (end < tables.size() && tables[end].item == tables[begin].item) ++end;
    if (tables[begin].item->observer != nullptr)
      attend_observed(pool, std::span(tables).subspan(begin, end - begin), layer);
    begin = end;
  }
}

// Some rows at a time, so that the weights of a whole pass never exist at once.
void Transformer::attend_observed(PagePool& pool, std::span<const LayerTable> tables, int layer) {
  const ForwardItem& item = *tables.front().item;
  const int group = config_.group();
  const int tile = std::max(1, kTileQueries / group);
  const int tiles = std::max(1, 4 * threads_.threads() / config_.kv_heads);
  std::vector<AttentionTask>& tasks = work_->tasks;
  for (int begin = 0; begin < item.rows(); begin += tile * tiles) {
    const int end = std::min(item.rows(), begin + tile * tiles);
    tasks.clear();
    std::size_t weights = 0, maxima = 0;
    for (const LayerTable& table : tables) {
      add_tasks(table, begin, end);
      const std::size_t queries = product(end - begin, table.heads * group);
      weights += queries * table.view->entries() * static_cast<std::size_t>(pool.shape().slots);
      maxima += queries * table.view->entries();
    }
    float* weight = work_->weights.ensure(weights);
    float* maximum = work_->weight_maxima.ensure(maxima);
    if (config_.sliding_window > 0) {
      // Tokens outside the window are observed too: nobody computes their weight, it is zero.
      std::fill_n(weight, weights, 0.0F);
      std::fill_n(maximum, maxima, -std::numeric_limits<float>::infinity());
    }
    for (AttentionTask& task : tasks) {
      const std::size_t entries = product(task.rows, group) * task.table->view->entries();
      task.weights = std::exchange(weight, weight + entries * static_cast<std::size_t>(pool.shape().slots));
      task.weight_maxima = std::exchange(maximum, maximum + entries);
    }
    work_->observed.assign(product(end - begin, config_.heads), {});
    run_tasks(pool);
    item.observer->observe({layer, begin, end - begin, work_->observed});
  }
}

void Transformer::add_tasks(const LayerTable& table, int begin_row, int end_row) {
  const int tile = std::max(1, kTileQueries / config_.group());
  for (int head = table.first_head; head < table.first_head + table.heads; ++head)
    for (int row = begin_row; row < end_row; row += tile)
      work_->tasks.push_back({&table, head, row, std::min(tile, end_row - row), 0, nullptr, nullptr});
}

// A tile of rows passes over all partials of its lane in order. With too few tiles for the threads (decoding), the
// partials of a tile are computed apart and merged in the same order: the same sums either way.
void Transformer::run_tasks(PagePool& pool) {
  std::vector<AttentionTask>& tasks = work_->tasks;
  const bool apart = static_cast<int>(tasks.size()) < 4 * threads_.threads();
  std::size_t states = 0;
  work_->partials.clear();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const auto partials = static_cast<int>(tasks[t].table->view->partials.size());
    tasks[t].state = states;
    states += 1 + static_cast<std::size_t>(apart ? partials : 1);
    for (int p = 0; apart && p < partials; ++p) work_->partials.emplace_back(static_cast<int>(t), p);
  }
  const int queries = std::max(kTileQueries, config_.group());
  work_->state_weighted.ensure(states * product(queries, config_.head_dim));
  work_->state_scalars.ensure(states * product(queries, 2));

  const auto state_of = [&](const AttentionTask& task, int index) { return state(task, index); };
  const auto clear_total = [&](const AttentionTask& task) { clear(state_of(task, 0), task.rows * config_.group()); };
  const auto merge = [&](const AttentionTask& task, int index) {
    kernels_.merge(state_of(task, 0), state_of(task, index), task.rows * config_.group(), config_.head_dim);
  };
  if (apart && work_->partials.size() > tasks.size()) {
    threads_.parallel_for(static_cast<int>(work_->partials.size()), [&](int index) {
      const auto [task, partial] = work_->partials[static_cast<std::size_t>(index)];
      run_partial(pool, tasks[static_cast<std::size_t>(task)], partial, 1 + partial);
    });
    threads_.parallel_for(static_cast<int>(tasks.size()), [&](int index) {
      const AttentionTask& task = tasks[static_cast<std::size_t>(index)];
      clear_total(task);
      for (int p = 0; p < static_cast<int>(task.table->view->partials.size()); ++p) merge(task, 1 + p);
      finish_task(pool, task);
    });
    return;
  }
  threads_.parallel_for(static_cast<int>(tasks.size()), [&](int index) {
    const AttentionTask& task = tasks[static_cast<std::size_t>(index)];
    clear_total(task);
    for (int p = 0; p < static_cast<int>(task.table->view->partials.size()); ++p) {
      run_partial(pool, task, p, 1);
      merge(task, 1);
    }
    finish_task(pool, task);
  });
}

AttentionState Transformer::state(const AttentionTask& task, int index) const {
  const int queries = std::max(kTileQueries, config_.group());
  const std::size_t at = task.state + static_cast<std::size_t>(index);
  float* scalars = work_->state_scalars.data() + at * product(queries, 2);
  return {scalars, scalars + queries, work_->state_weighted.data() + at * product(queries, config_.head_dim)};
}

void Transformer::clear(const AttentionState& state, int queries) const {
  std::fill_n(state.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, queries, 0.0F);
  std::fill_n(state.weighted, product(queries, config_.head_dim), 0.0F);
}

void Transformer::run_partial(PagePool& pool, const AttentionTask& task, int partial, int index) {
  const LayerTable& table = *task.table;
  const AttentionView& view = *table.view;
  const AttentionView::Partial& part = view.partials[static_cast<std::size_t>(partial)];
  const auto begin = static_cast<std::size_t>(part.begin);
  const auto lane = static_cast<std::size_t>(table.first_lane + task.head - table.first_head);
  const std::byte* pages[kPartialEntries];
  KVASIR_CHECK(part.end - part.begin <= kPartialEntries);
  for (int e = part.begin; e < part.end; ++e)
    pages[e - part.begin] = pool.data(view.columns[static_cast<std::size_t>(e)]->pages[lane]);
  const std::size_t stride = product(config_.heads, config_.head_dim);
  AttentionPartial run;
  run.shape = pool.shape();
  run.rows = task.rows;
  run.group = config_.group();
  run.q = work_->rotated.data() +
          (table.first_query + product(part.frame, view.rows) + static_cast<std::size_t>(task.row)) * stride +
          product((task.head - table.first_head) * config_.group(), config_.head_dim);
  run.q_row_stride = stride;
  run.entries = part.end - part.begin;
  run.pages = pages;
  run.masks = view.masks.data() + static_cast<std::size_t>(task.row) * view.entries() + begin;
  run.mask_row_stride = view.entries();
  if (task.weights != nullptr) {
    run.weights = task.weights + begin * static_cast<std::size_t>(pool.shape().slots);
    run.weight_stride = view.entries() * static_cast<std::size_t>(pool.shape().slots);
    run.weight_maxima = task.weight_maxima + begin;
    run.weight_maximum_stride = view.entries();
  }
  const AttentionState into = state(task, index);
  clear(into, task.rows * run.group);
  kernels_.attend(run, into);
}

void Transformer::finish_task(const PagePool& pool, const AttentionTask& task) {
  const AttentionView& view = *task.table->view;
  const int group = config_.group();
  const int dim = config_.head_dim;
  const AttentionState total = state(task, 0);
  const std::size_t stride = product(config_.heads, dim);
  const int first_query = task.head * group;  // among the model's query heads
  for (int r = 0; r < task.rows; ++r) {
    const AttentionState of_row{total.maximum + r * group, total.sum + r * group,
                                total.weighted + product(r * group, dim)};
    kernels_.finish(of_row, group, dim,
                    work_->attention.data() + static_cast<std::size_t>(task.table->first_row + task.row + r) * stride +
                        product(first_query, dim));
  }
  if (task.weights == nullptr) return;
  const int slots = pool.shape().slots;
  const int block_row = task.row - work_->tasks.front().row;
  for (int query = 0; query < task.rows * group; ++query) {
    const int row = query / group;
    const std::size_t at = static_cast<std::size_t>(query) * view.entries();
    ObservedQuery observed;
    observed.entries = static_cast<int>(view.entries());
    observed.slots = slots;
    const std::vector<SlotMask>& seen = view.unwindowed_masks.empty() ? view.masks : view.unwindowed_masks;
    observed.masks = seen.data() + static_cast<std::size_t>(task.row + row) * view.entries();
    observed.weights = task.weights + at * static_cast<std::size_t>(slots);
    observed.weight_maxima = task.weight_maxima + at;
    observed.maximum = total.maximum[query];
    observed.sum = total.sum[query];
    const int count = kernels_.observe_weights(observed);
    work_->observed[product(block_row + row, config_.heads) + static_cast<std::size_t>(first_query + query % group)] = {
        observed.weights, static_cast<std::size_t>(count)};
  }
}

void Transformer::move_slots(PagePool& pool, int lanes, std::span<const LaneGroup::SlotCopy> copies) {
  const std::size_t half = floats_per_rotation(config_) / 2;
  std::vector<const float*> rotations;
  work_->key_rotation.ensure(copies.size() * half * 2);
  float* rotation = work_->key_rotation.data();
  for (const LaneGroup::SlotCopy& copy : copies) {
    rotations.push_back(copy.shift != 0 ? rotation : nullptr);
    if (copy.shift != 0) rotation = std::copy_n(rotation_of(copy.shift), 2 * half, rotation);
  }
  const auto move = [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    for (std::size_t c = 0; c < copies.size(); ++c) {
      const LaneGroup::SlotCopy& copy = copies[c];
      kernels_.move_slots(pool.shape(), pool.data(copy.from->pages[l]), copy.slots, pool.data(copy.to->pages[l]),
                          copy.to_slot, config_.rope.dims, rotations[c],
                          rotations[c] != nullptr ? rotations[c] + half : nullptr);
    }
  };
  // One token's move is done sooner than other threads wake.
  if (copies.size() < 4) {
    for (int lane = 0; lane < lanes; ++lane) move(lane);
  } else {
    threads_.parallel_for(lanes, move);
  }
}

void Transformer::rotate_keys_behind(PagePool& pool, LaneGroup& group, TokenIndex id, Position shift) {
  const std::size_t half = floats_per_rotation(config_) / 2;
  const float* rotation = rotation_of(shift);
  std::vector<const LaneGroup::Column*> columns;
  for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next)
    if (LaneGroup::live_behind(*column, id) != 0) columns.push_back(column);
  threads_.parallel_for(group.lanes(), [&](int lane) {
    for (const LaneGroup::Column* column : columns)
      kernels_.rotate_keys(pool.shape(), pool.data(column->pages[static_cast<std::size_t>(lane)]),
                           LaneGroup::live_behind(*column, id), config_.rope.dims, rotation, rotation + half);
  });
}

}  // namespace kvasir
