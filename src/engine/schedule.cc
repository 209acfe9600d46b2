#include "engine/schedule.h"

#include <algorithm>

namespace kvasir {

std::vector<int> share_rows(std::span<const RowDemand> tasks, int prompt_rows) {
  std::vector<int> rows;
  rows.reserve(tasks.size());
  for (const RowDemand& task : tasks) {
    rows.push_back(task.reads ? std::min(task.rows, prompt_rows) : task.rows);
    if (task.reads) prompt_rows -= rows.back();
  }
  return rows;
}

std::vector<Decision> schedule(std::span<const ScheduleTask> tasks, std::uint64_t available, int running) {
  std::vector<Decision> decisions(tasks.size(), Decision::kWait);
  auto holding = std::ranges::count(tasks, true, &ScheduleTask::holds);
  bool others_hold = holding > (tasks.empty() || !tasks.front().holds ? 0 : 1);
  bool blocked = false;  // an older task waits to start
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const ScheduleTask& task = tasks[i];
    if (decisions[i] == Decision::kPreempt) continue;
    if (task.rows == 0 || (!task.holds && (blocked || holding >= running))) {
      blocked = blocked || !task.holds;
      continue;
    }
    // The fewest of the youngest whose pages are enough.
    std::uint64_t found = available;
    std::size_t from = tasks.size();
    while (task.bytes > found && from > i + 1) {
      --from;
      if (tasks[from].holds && decisions[from] != Decision::kPreempt) found += tasks[from].held;
    }
    if (task.bytes <= found || i == 0) {
      for (std::size_t j = from; j < tasks.size(); ++j) {
        if (!tasks[j].holds || decisions[j] == Decision::kPreempt) continue;
        decisions[j] = Decision::kPreempt;
        --holding;
      }
      available = found;
    }
    if (task.bytes <= available) {
      decisions[i] = Decision::kRun;
      available -= task.bytes;
      if (!task.holds) ++holding;
    } else {
      blocked = true;
      if (i == 0 && !others_hold) decisions[i] = Decision::kReject;
    }
  }
  return decisions;
}

}  // namespace kvasir
