// Attention of a sequence's last row to pages that its table no longer has: chosen once the row has read its table,
// fetched, and added to its total.
#include <algorithm>
#include <limits>
#include <utility>

#include "backend/cpu/cpu_attention.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "base/check.h"

namespace kvasir {

void CpuAttention::choose_recalled(const AttentionTask& task) {
  const LayerTable& table = *task.table;
  const int last = task.rows - 1;
  LaneRow lane = tables_.lane_row(table, task.head);
  lane.row = task.row + last;
  lane.queries = rotated(table, task.head, table.batch().frames.size() - 1, lane.row);
  if (table.batch().format.hadamard_keys) {
    // The matrix is its own inverse. Partials are merged, so their states are free.
    float* plain = state(task, 1).weighted;
    std::copy_n(lane.queries, product(lane.group, lane.head_dim), plain);
    hadamard(plain, lane.group, lane.head_dim);
    lane.queries = plain;
  }
  const AttentionState row = of_row(state(task, 0), last, lane.group, lane.head_dim);
  table.sequence->offloaded->choose(lane, {row.maximum, static_cast<std::size_t>(lane.group)});
}

// Adds the pages that a sequence's last row recalls to its total.
void CpuAttention::add_recalled(const AttentionTask& task) {
  const LayerTable& table = *task.table;
  const std::span<const RecalledPage> recalled = table.sequence->offloaded->chosen(task.head);
  if (recalled.empty()) return;
  KVASIR_CHECK(recalled.size() <= kMostRecalled);
  const int group = layer().group();
  const int dim = layer().head_dim;
  const CpuPageStore& store = tables_.store();
  const std::byte* pages[kMostRecalled];
  const PageFormat* formats[kMostRecalled];
  SlotMask masks[kMostRecalled];
  for (std::size_t i = 0; i < recalled.size(); ++i) {
    pages[i] = store.data(recalled[i].page);
    formats[i] = &store.format(recalled[i].page);
    masks[i] = recalled[i].live;
  }
  const AttentionPartial run{.head_dim = dim,
                             .slots = store.slots(),
                             .rows = 1,
                             .group = group,
                             .q = rotated(table, task.head, table.batch().frames.size() - 1, task.row + task.rows - 1),
                             .q_row_stride = row_stride(),
                             .entries = static_cast<int>(recalled.size()),
                             .pages = pages,
                             .formats = formats,
                             .masks = masks,
                             .mask_row_stride = recalled.size(),
                             .softcap = layer().softcap};
  const AttentionState one = state(task, 1);
  reset_states(one, group, dim);
  attend_entries(run, one);
  kernels_.merge(of_row(state(task, 0), task.rows - 1, group, dim), one, group, dim);
}

// Finishes the tasks whose last rows recall pages, once those of all sequences are fetched.
void CpuAttention::finish_recalling() {
  recalling_.clear();
  const OffloadedPages* asked = nullptr;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    if (!tasks_[t].recalls()) continue;
    recalling_.push_back(static_cast<std::uint32_t>(t));
    OffloadedPages* const pages = tasks_[t].table->sequence->offloaded;
    if (std::exchange(asked, pages) != pages) pages->fetch_chosen(tasks_[t].table->observed_as);
  }
  if (recalling_.empty()) return;
  threads_.parallel_for(static_cast<int>(recalling_.size()), [&](int index) {
    const AttentionTask& task = tasks_[recalling_[static_cast<std::size_t>(index)]];
    add_recalled(task);
    finish_task(task);
  });
}

}  // namespace kvasir
