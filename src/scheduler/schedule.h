// Who runs in the next pass, and with how many rows: a pure function of plain numbers. It knows no sequence, no model
// and no clock, so that the engine and bench/serve_simulator.cc decide with the same code. Bytes are those of the KV
// cache. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kvasir/options.h"

namespace kvasir {

struct ScheduleLimits {
  int prompt_rows = 256;  // of all prompts together in one pass
  int running = 64;       // tasks that hold pages, unless a prompt's samples are more
  int ahead = 64;         // tokens beyond its own that a task must find room for before it starts, so that it does not
                          // have to give up its pages again at once
  // Shares of the cache, and of a tenant's ceiling. Where a start would bring usage and the task's whole estimate to
  // the stop mark, it waits; infinity: a start needs no more than ScheduleTask::bytes. The preempt mark is the usage up
  // to which tasks grow; beyond it one of them gives up its pages.
  double stop_mark = std::numeric_limits<double>::infinity();
  double preempt_mark = 1;
  Admission admission = Admission::kUse;
  int side_by_side = 16;  // see SchedulerOptions; for whoever makes estimates
  // Shares of the cache. A task is small if its estimate is at most `small`; it passes others only if all small tasks
  // together, itself included, come to no more than `small_together`.
  double small = 1.0 / 64;
  double small_together = 1.0 / 16;
};

// What a tenant's tasks may hold together; see Engine::set_quota. ceiling 0: no limit.
struct ScheduleQuota {
  std::uint64_t floor = 0;
  std::uint64_t ceiling = 0;
};

struct ScheduleMemory {
  std::uint64_t capacity = 0;   // of the cache
  std::uint64_t available = 0;  // bytes that nobody holds, and those of prefix cache entries that can be evicted
};

struct ScheduleTask {
  bool holds = false;       // it holds pages
  int rows = 0;             // that it could use in this pass
  std::uint64_t bytes = 0;  // holds: that its rows take. Otherwise: that all its text so far takes, and what is ahead
  std::uint64_t held = 0;   // bytes that are available, at least, once it has given up its pages
  bool reads = false;       // its rows are a prompt's, and share ScheduleLimits::prompt_rows
  // It gave up its pages and has produced no token since: it is not preempted again, and the bytes it still needs until
  // then (`due`) are kept for it.
  bool spared = false;
  bool leaves = false;     // it needs no rows any more and gives up its pages by itself, some time: it is waited for
  int priority = 0;        // less runs earlier
  int tenant = -1;         // index of its quota; -1: none
  std::uint64_t used = 0;  // bytes held that count as its tenant's: a shared page once, in parts
  std::uint64_t due = 0;   // bytes still to come, `bytes` included, until it holds all its text so far
  std::uint64_t estimate = 0;  // bytes of its whole peak
  double cost = 0;             // seconds to bring it back, once it has given up its pages
  std::int64_t left = 0;       // reads: rows until its prompt is read, those of this pass included
};

enum class Decision {
  kRun,      // its rows are part of the pass; it starts if it holds nothing yet
  kWait,     // it keeps what it holds
  kPreempt,  // it gives up its pages, and waits
  kReject,   // it cannot go on although no other task holds pages: the memory is too small for it alone, or sessions
             // hold the rest
  kOverCeiling,  // it cannot go on although no other task of its tenant holds pages: the ceiling is too low for it
};

struct Verdict {
  Decision decision = Decision::kWait;
  int rows = 0;  // kRun: at most ScheduleTask::rows

  bool operator==(const Verdict&) const = default;
};

// Whether the whole task, as it stands, is small: see ScheduleLimits.
bool is_small(const ScheduleTask& task, std::uint64_t capacity, const ScheduleLimits& limits);

// Decides for each task. REQUIRES: tasks in order of priority, those of equal priority in order of arrival; the first
// can use rows; prompt_rows > 0.
//
// Rank. What a tenant holds up to its floor is its own, the rest is borrowed. A task within its tenant's floor ranks
// before one that straddles it, and that before one which only borrows; then the order of `tasks` decides. But of one
// priority, a spared task that waits comes before those that have not begun. For the rank, tasks that have not begun
// claim their part of the floor too, in the order of `tasks`; what a tenant's tasks hold is protected as if none were
// waiting.
//
// Growth. A task that holds pages and finds no room under the preempt mark takes the pages of tasks that rank behind
// it, if those are enough: of what borrows most first, then of the worst priority, then of the least cost. Spared tasks
// and other tenants' floors are not taken. If they are not enough it waits. The best-ranked task, and tasks within
// their floor, may also use what lies beyond the preempt mark.
//
// Start. A task starts if usage and its estimate stay below the stop mark (kUse), or if the estimates of all tasks that
// hold pages, and the unused floors of other tenants, fit the cache (kReserve). Under kUse it may take the pages of
// tasks that only borrow more than it does or have a worse priority; the best-ranked takes any, and it and tasks within
// their floor need no more room than `bytes`. Where a task waits to start for memory or for a place, none behind it
// starts but small ones (see below); one that waits for its tenant's ceiling holds back that tenant alone.
//
// Small tasks. Under kUse a task of which the whole estimate is small starts also beyond the stop mark, and passes
// tasks of its floor and priority that wait to start, as long as usage and its estimate stay below the preempt mark,
// small tasks together hold little, no task that holds pages waits for room, and no task waits for all of the memory.
// What they hold can be taken when the task that they passed has become the best-ranked. So a short question need not
// wait until a text that fills the memory has come to its end.
//
// Rows. Tasks that read share prompt_rows in the order of rank, but for one half of them: that is for the task with the
// least left among those that rank as the first that reads does, in floor and priority. So a short prompt need not wait
// until a long one is read, which still gets half the rows. Rows that this leaves over go by rank again.
//
// Progress. Of the best-ranked task one of these holds: it runs; others are preempted; it is rejected, and no other
// task holds anything; or it waits while others run: spared ones, those within their floor, or (kReserve) any. Some
// task has another decision than kWait, so repeated calls come to an end with every task. A tenant that waits for its
// ceiling comes to its end whatever runs beside it: what spared tasks are due is kept below the ceiling, too, and where
// all its tasks that hold pages wait for the ceiling, the best-ranked of them gets the pages of the others.
//
// The work is linear in the number of tasks, unless many that hold pages find no room.
std::vector<Verdict> schedule(std::span<const ScheduleTask> tasks, std::span<const ScheduleQuota> quotas,
                              const ScheduleMemory& memory, const ScheduleLimits& limits);

}  // namespace kvasir
