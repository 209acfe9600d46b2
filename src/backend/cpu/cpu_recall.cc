// Attention of a sequence's last row to pages that its table no longer has: chosen and fetched while others compute,
// and added to its total at the end.
#include <algorithm>
#include <limits>
#include <utility>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/kernels/encode_page.h"
#include "base/check.h"

namespace kvasir {

const float* CpuAttention::newest_query(const Task& task) const {
  const LayerTable& table = *task.table;
  const BatchTable& batch = *table.table->batch;
  const std::size_t row = table.first_query + product(static_cast<int>(batch.frames.size()) - 1, batch.rows) +
                          static_cast<std::size_t>(task.row + task.rows - 1);
  return rotated_.data() + row * product(layer_shape().heads, layer_shape().head_dim) +
         product((task.head - table.first_head) * layer_shape().group(), layer_shape().head_dim);
}

void CpuAttention::choose_recalled(const Task& task) {
  const LayerTable& table = *task.table;
  const BatchTable& batch = *table.table->batch;
  const int group = layer_shape().group();
  const int row = task.row + task.rows - 1;
  const AttentionState total = state(task, 0);
  LaneRow lane;
  lane.layer = table.observed_as;
  lane.head = task.head;
  lane.row = row;
  lane.table = &batch;
  lane.lane = table.first_lane + task.head - table.first_head;
  lane.store = store_;
  lane.group = group;
  lane.head_dim = layer_shape().head_dim;
  lane.queries = newest_query(task);
  if (batch.format.rotated_keys) {
    // The matrix is its own inverse. Partials are merged, so their states are free.
    float* plain = state(task, 1).weighted;
    std::copy_n(lane.queries, product(group, layer_shape().head_dim), plain);
    hadamard(plain, group, layer_shape().head_dim);
    lane.queries = plain;
  }
  table.sequence->offloaded->choose(lane,
                                    {total.maximum + product(task.rows - 1, group), static_cast<std::size_t>(group)});
}

// Adds the pages that a sequence's last row recalls to its total.
void CpuAttention::add_recalled(const Task& task) {
  const LayerTable& table = *task.table;
  const std::span<const RecalledPage> recalled = table.sequence->offloaded->chosen(task.head);
  if (recalled.empty()) return;
  KVASIR_CHECK(recalled.size() <= kMostRecalled);
  const int group = layer_shape().group();
  const std::byte* pages[kMostRecalled];
  const PageFormat* formats[kMostRecalled];
  SlotMask masks[kMostRecalled];
  for (std::size_t i = 0; i < recalled.size(); ++i) {
    pages[i] = store_->data(recalled[i].page);
    formats[i] = &store_->format(recalled[i].page);
    masks[i] = recalled[i].live;
  }
  AttentionPartial run;
  run.head_dim = layer_shape().head_dim;
  run.slots = store_->slots();
  run.rows = 1;
  run.group = group;
  run.q = newest_query(task);
  run.q_row_stride = product(layer_shape().heads, layer_shape().head_dim);
  run.entries = static_cast<int>(recalled.size());
  run.pages = pages;
  run.formats = formats;
  run.masks = masks;
  run.mask_row_stride = recalled.size();
  const AttentionState total = state(task, 0);
  const std::size_t first = product(task.rows - 1, group);
  const AttentionState of_row{total.maximum + first, total.sum + first,
                              total.weighted + first * static_cast<std::size_t>(layer_shape().head_dim)};
  const AttentionState one = state(task, 1);
  clear(one, group);
  kernels_.attend(run, one);
  kernels_.merge(of_row, one, group, layer_shape().head_dim);
}

// Finishes the tasks whose last rows attend to other pages too. All of them are asked for before any is waited for.
void CpuAttention::finish_recalling() {
  recalling_.clear();
  const OffloadedPages* asked = nullptr;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    if (!recalls(tasks_[t])) continue;
    recalling_.push_back(static_cast<std::uint32_t>(t));
    OffloadedPages* const pages = tasks_[t].table->sequence->offloaded;
    if (std::exchange(asked, pages) != pages) pages->fetch_chosen(tasks_[t].table->observed_as);
  }
  if (recalling_.empty()) return;
  threads_.parallel_for(static_cast<int>(recalling_.size()), [&](int index) {
    const Task& task = tasks_[recalling_[static_cast<std::size_t>(index)]];
    add_recalled(task);
    finish_task(task);
  });
}

}  // namespace kvasir
