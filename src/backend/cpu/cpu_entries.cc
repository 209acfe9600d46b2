// Attention to entries that the kernel table's attend does not take: gathered ones, and those with biases.
#include <bit>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/kernels/attend_runs.h"

namespace kvasir {

void CpuAttention::attend_weighed(const Task& task, const Partial& part, AttentionPartial run,
                                  const AttentionState& into) const {
  const BatchTable& batch = *task.table->table->batch;
  const auto lane = static_cast<std::size_t>(task.table->first_lane + task.head - task.table->first_head);
  const float* biases[kPartialEntries];
  for (int e = 0; e < run.entries; ++e) {
    const float* of_lanes = batch.biases[part.first + static_cast<std::uint32_t>(e)];
    biases[e] = of_lanes != nullptr ? of_lanes + lane * static_cast<std::size_t>(run.slots) : nullptr;
  }
  for (int e = 0; e < run.entries;) {
    int end = e + 1;
    while (end < run.entries && (biases[end] == nullptr) == (biases[e] == nullptr)) ++end;
    AttentionPartial some = entries_of_partial(run, e, end - e);
    if (biases[e] != nullptr) some.biases = biases + e;
    (biases[e] != nullptr ? generic_kernels() : kernels_).attend(some, into);
    e = end;
  }
}

// Attends to entries whose rows are gathered first, then to the others: a state is added to entry by entry, in order.
void CpuAttention::attend_gathered(const BatchTable& batch, const Partial& part, int gathered,
                                   const AttentionPartial& run, const AttentionState& into) const {
  const std::byte* rows[kPartialEntries * 64];
  GatheredEntry entries[kPartialEntries];
  const PageFormat& format = *run.formats[0];
  const auto slots = static_cast<std::uint32_t>(format.slots);
  int count = 0;
  for (int e = 0; e < gathered; ++e) {
    const std::uint32_t entry = part.begin + static_cast<std::uint32_t>(e);
    const SlotMask live = batch.frames[part.frame].entries[entry].live;
    entries[e] = {live, rows + count};
    const std::uint32_t* row = batch.offloaded_rows.data() + batch.offloaded_first[entry];
    for (int i = std::popcount(live); i > 0; --i, ++row)
      rows[count++] =
          store_->data(batch.offloaded_pages[*row / slots]) + std::size_t{*row % slots} * format.row_bytes();
  }
  kernels_.attend_gathered(entries_of_partial(run, 0, gathered), entries, into);
  if (gathered < run.entries) kernels_.attend(entries_of_partial(run, gathered, run.entries - gathered), into);
}

}  // namespace kvasir
