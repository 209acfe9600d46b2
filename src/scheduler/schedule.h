// Decides who runs in the next pass, and with how many rows: a pure function of plain numbers. It knows no sequence,
// model or clock, so that the engine and bench/serve_simulator.cc decide with the same code. Bytes are those of the KV
// cache. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kvasir/options.h"

namespace kvasir {

struct ScheduleLimits {
  int prompt_rows = 256;  // prompt rows of one pass, over all tasks
  int running = 64;       // tasks that hold pages, unless a prompt's samples are more
  int ahead = 64;         // tokens beyond its own that a task must find room for before it starts, so that it is not
                          // preempted again at once
  // Shares of the cache, and of a tenant's ceiling. A task waits to start if usage plus its whole estimate would reach
  // the stop mark; infinity: a start needs only ScheduleTask::bytes. Running tasks grow up to the preempt mark; beyond
  // it one of them is preempted.
  double stop_mark = std::numeric_limits<double>::infinity();
  double preempt_mark = 1;
  Admission admission = Admission::kUse;
  int side_by_side = 16;  // see SchedulerOptions; used for estimates
  // Shares of the cache. A task is small if its estimate is at most `small`. It passes others only if all small tasks
  // together, itself included, take at most `small_together`.
  double small = 1.0 / 64;
  double small_together = 1.0 / 16;
};

// What a tenant's tasks may hold together; see Engine::set_quota. Ceiling 0: no limit.
struct ScheduleQuota {
  std::uint64_t floor = 0;
  std::uint64_t ceiling = 0;
};

struct ScheduleMemory {
  std::uint64_t capacity = 0;   // of the cache
  std::uint64_t available = 0;  // bytes that are free, or held by evictable prefix cache entries
};

struct ScheduleTask {
  bool holds = false;       // it holds pages
  int rows = 0;             // most rows that it could use in this pass
  std::uint64_t bytes = 0;  // holds: for its rows. Otherwise: for all its text so far and the tokens ahead
  std::uint64_t held = 0;   // least bytes that preempting it makes available
  bool reads = false;       // its rows are a prompt's, and share ScheduleLimits::prompt_rows
  // It was preempted and has produced no token since: it is not preempted again, and the bytes it needs until then
  // (`due`) are kept for it.
  bool spared = false;
  bool leaves = false;         // it needs no rows and will free its pages by itself: others wait for that
  int priority = 0;            // lower runs earlier
  int tenant = -1;             // index of its quota; -1: none
  std::uint64_t used = 0;      // held bytes charged to its tenant: a shared page once, in parts
  std::uint64_t due = 0;       // bytes still to come, `bytes` included, until it holds all its text so far
  std::uint64_t estimate = 0;  // bytes of its whole peak
  double cost = 0;             // seconds to bring it back after a preemption
  std::int64_t left = 0;       // reads: rows until its prompt is read, this pass included
};

enum class Decision {
  kRun,      // its rows are part of the pass; it starts if it holds nothing yet
  kWait,     // it keeps what it holds
  kPreempt,  // it is preempted, and waits
  kReject,   // it cannot go on although no other task holds pages: the memory is too small for it alone, or sessions
             // hold the rest
  kOverCeiling,  // it cannot go on although no other task of its tenant holds pages: the ceiling is too low for it
};

struct Verdict {
  Decision decision = Decision::kWait;
  int rows = 0;  // kRun: at most ScheduleTask::rows

  bool operator==(const Verdict&) const = default;
};

// Returns whether the whole task is small: see ScheduleLimits.
bool is_small(const ScheduleTask& task, std::uint64_t capacity, const ScheduleLimits& limits);

// Decides for each task. REQUIRES: tasks in order of priority, then of arrival; the first can use rows;
// prompt_rows > 0.
//
// Rank. A tenant owns what it holds up to its floor; the rest is borrowed. A task within its tenant's floor ranks
// before one that straddles it, and that before one that only borrows; then the order of `tasks` decides. Within one
// priority, a spared task that waits ranks before tasks that have not begun. For the rank, tasks that have not begun
// claim their part of the floor too, in the order of `tasks`; the protection of what a tenant's tasks hold ignores
// these claims.
//
// Growth. A task that holds pages and finds no room under the preempt mark takes the pages of tasks ranked behind it,
// if those suffice: first of those that borrow most, then of the worst priority, then of the least cost. Spared tasks
// and other tenants' floors are not taken. If they do not suffice, it waits. The best-ranked task, and tasks within
// their floor, may also use the memory beyond the preempt mark.
//
// Start. A task starts if usage and its estimate stay below the stop mark (kUse), or if the estimates of all tasks that
// hold pages, and the unused floors of other tenants, fit the cache (kReserve). Under kUse it may take the pages of
// tasks that only borrow more than it does or have a worse priority. The best-ranked may take any; it and tasks within
// their floor need no more room than `bytes`. While a task waits to start for memory or for a place, no task behind it
// starts except small ones; a task that waits for its tenant's ceiling holds back only that tenant.
//
// Small tasks. Under kUse a small task also starts beyond the stop mark, and passes waiting tasks of its floor and
// priority, if: usage and its estimate stay below the preempt mark, small tasks together hold little, no task that
// holds pages waits for room, and no task waits for all of the memory. The passed task can take their pages once it is
// the best-ranked. So a short question need not wait for the end of a text that fills the memory.
//
// Rows. Tasks that read share prompt_rows in order of rank, except for one half. That goes to the task with the least
// left among those of the same floor and priority as the first that reads. So a short prompt need not wait for a long
// one, which still gets half the rows. Rows left over are given by rank.
//
// Progress. One of these holds for the best-ranked task: it runs; others are preempted; it is rejected, and no other
// task holds anything; or it waits while others run: spared ones, those within their floor, or (kReserve) any. Some
// task has another decision than kWait, so repeated calls end every task. A tenant that waits for its ceiling makes
// progress whatever runs beside it: bytes due to spared tasks are kept below the ceiling, too, and if all its tasks
// that hold pages wait for the ceiling, the best-ranked of them gets the pages of the others.
//
// The work is linear in the number of tasks, unless many that hold pages find no room.
std::vector<Verdict> schedule(std::span<const ScheduleTask> tasks, std::span<const ScheduleQuota> quotas,
                              const ScheduleMemory& memory, const ScheduleLimits& limits);

}  // namespace kvasir
