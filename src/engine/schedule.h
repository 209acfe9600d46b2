// Who runs in the next pass, and how many rows each: pure functions of plain numbers. Neither knows a sequence, a
// model, or a clock. Tasks come in order of arrival, the oldest first. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

struct ScheduleLimits {
  int prompt_rows = 256;  // of all prompts together in one pass
  int running = 64;       // tasks that hold pages, unless a prompt's samples are more
  int ahead = 64;         // tokens beyond its own that a task must find room for before it starts, so that it does not
                          // have to give up its pages again at once
};

// The rows that a task could use in the next pass.
struct RowDemand {
  bool reads = false;  // a prompt, whose rows are bounded; otherwise one token that was generated
  int rows = 1;
};

// Returns the rows that each task gets: all tasks that generate get theirs, and prompts share `prompt_rows`, the oldest
// first.
std::vector<int> share_rows(std::span<const RowDemand> tasks, int prompt_rows);

struct ScheduleTask {
  bool holds = false;       // it holds pages, or is about to because it is the oldest
  int rows = 0;             // that it gets; 0: none in this pass
  std::uint64_t bytes = 0;  // holds: that its rows may take. Otherwise: that all its text so far would take
  std::uint64_t held = 0;   // bytes that are available, at least, once it has given up its pages
};

enum class Decision {
  kRun,      // its rows are part of the pass; it starts if it holds nothing yet
  kWait,     // it keeps what it holds
  kPreempt,  // it gives up its pages, and waits
  kReject,   // it cannot go on although no other task holds pages: the memory is too small for it alone, or sessions
             // hold the rest
};

// Decides for each task, given the bytes that the cache has available. The bytes of all that run together are
// available, once those preempted have given up theirs. A task that finds no room takes the pages of younger ones,
// the youngest first, if theirs are enough; the oldest takes all. Where a task waits to start, no younger one starts.
//
// Of the oldest task (which must get rows) one of these holds: it runs; others are preempted, and the next call decides
// again; or it is rejected, and no other task holds anything (sessions may, and they give nothing up). So repeated
// calls come to an end with every task. `running`: as in ScheduleLimits.
std::vector<Decision> schedule(std::span<const ScheduleTask> tasks, std::uint64_t available, int running);

}  // namespace kvasir
