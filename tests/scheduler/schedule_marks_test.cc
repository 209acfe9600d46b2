// Marks, priorities, costs, quotas and reservations, each decided from a few numbers.
#include <gtest/gtest.h>

#include "scheduler/schedule.h"

namespace kvasir::test {
namespace {

using D = Decision;

// A task that generates: holds `held` bytes and needs `bytes` more.
ScheduleTask running(std::uint64_t held, std::uint64_t bytes) {
  return {.holds = true, .rows = 1, .bytes = bytes, .held = held, .used = held, .due = bytes, .estimate = held + bytes};
}

ScheduleTask waiting(std::uint64_t bytes, std::uint64_t estimate) {
  return {.rows = 8, .bytes = bytes, .reads = true, .estimate = estimate};
}

template <class Change>
ScheduleTask with(ScheduleTask task, const Change& change) {
  change(task);
  return task;
}

ScheduleTask ranked(ScheduleTask task, int priority, double cost = 0) {
  return with(task, [&](ScheduleTask& t) { t.priority = priority, t.cost = cost; });
}

ScheduleTask of_tenant(ScheduleTask task, int tenant) {
  return with(task, [&](ScheduleTask& t) { t.tenant = tenant; });
}

constexpr ScheduleLimits kMarks{.stop_mark = 0.90, .preempt_mark = 0.98};
constexpr ScheduleLimits kReserves{.stop_mark = 0.90, .preempt_mark = 0.98, .admission = Admission::kReserve};

// In a cache of 1,000 bytes of which the tasks hold what they say, and others `others`.
std::vector<Decision> decide(const std::vector<ScheduleTask>& tasks, const ScheduleLimits& limits = kMarks,
                             const std::vector<ScheduleQuota>& quotas = {}, std::uint64_t others = 0) {
  ScheduleMemory memory{1000, 1000 - others};
  for (const ScheduleTask& task : tasks) memory.available -= task.holds ? task.used : 0;
  std::vector<Decision> decisions;
  for (const Verdict& verdict : schedule(tasks, quotas, memory, limits)) decisions.push_back(verdict.decision);
  return decisions;
}

TEST(ScheduleMarks, ATaskStartsBelowTheStopMarkOnly) {
  EXPECT_EQ(decide({running(500, 1), waiting(10, 398)}), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({running(500, 1), waiting(10, 399)}), (std::vector{D::kRun, D::kWait}));
  // What others hold counts, and what is still due to those that read.
  EXPECT_EQ(decide({running(500, 1), waiting(10, 298)}, kMarks, {}, 100), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({running(500, 1), waiting(10, 299)}, kMarks, {}, 100), (std::vector{D::kRun, D::kWait}));
  const ScheduleTask reads = with(running(500, 1), [](ScheduleTask& task) { task.due = 101; });
  EXPECT_EQ(decide({reads, waiting(10, 298)}), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({reads, waiting(10, 299)}), (std::vector{D::kRun, D::kWait}));
  // Alone it may have all.
  EXPECT_EQ(decide({waiting(1000, 5000)}), (std::vector{D::kRun}));
  EXPECT_EQ(decide({waiting(10, 950), waiting(10, 20)}), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({waiting(10, 20), waiting(10, 950)}), (std::vector{D::kRun, D::kWait}));
}

TEST(ScheduleMarks, SmallTasksPassOneThatWaitsToStart) {
  const ScheduleTask most = running(600, 0);
  const ScheduleTask waits = waiting(10, 400);
  EXPECT_EQ(decide({most, waits, waiting(10, 16)}), (std::vector{D::kRun, D::kWait, D::kRun}));
  EXPECT_EQ(decide({most, waits, waiting(10, 17)}), (std::vector{D::kRun, D::kWait, D::kWait})) << "a 64th is small";
  EXPECT_EQ(decide({most, waits, waiting(17, 10)}), (std::vector{D::kRun, D::kWait, D::kWait}));
  EXPECT_EQ(decide({most, waits, ranked(waiting(10, 16), 1)}), (std::vector{D::kRun, D::kWait, D::kWait}));
  EXPECT_EQ(decide({most, waiting(10, 401), waiting(10, 16)}, kReserves), (std::vector{D::kRun, D::kWait, D::kWait}));
  // A sixteenth in all, those that run already included.
  const ScheduleTask small = waiting(1, 16);
  EXPECT_EQ(decide({most, waits, small, small, small, small}),
            (std::vector{D::kRun, D::kWait, D::kRun, D::kRun, D::kRun, D::kWait}));
  EXPECT_EQ(decide({most, running(15, 1), running(15, 1), waits, small, small}),
            (std::vector{D::kRun, D::kRun, D::kRun, D::kWait, D::kRun, D::kWait}));
  // Up to the preempt mark, and not while a task that runs waits for room.
  EXPECT_EQ(decide({running(963, 1), waits, small}), (std::vector{D::kRun, D::kWait, D::kRun}));
  EXPECT_EQ(decide({running(964, 1), waits, small}), (std::vector{D::kRun, D::kWait, D::kWait}));
  EXPECT_EQ(decide({running(500, 11), running(450, 20), small}), (std::vector{D::kRun, D::kWait, D::kWait}));
  // A tenant's ceiling holds, and another's claim on its floor is not passed.
  EXPECT_EQ(decide({most, waits, of_tenant(small, 0)}, kMarks, {{0, 16}}), (std::vector{D::kRun, D::kWait, D::kRun}));
  EXPECT_EQ(decide({most, waits, of_tenant(small, 0)}, kMarks, {{0, 15}}), (std::vector{D::kRun, D::kWait, D::kWait}));
  EXPECT_EQ(decide({of_tenant(running(950, 0), 0), of_tenant(waiting(60, 90), 0), small}, kMarks, {{995, 0}}),
            (std::vector{D::kRun, D::kWait, D::kWait}));
  // The first that waits may do so itself, and one that gave up its pages, before others that have not begun.
  EXPECT_EQ(decide({running(920, 1), small, small}), (std::vector{D::kRun, D::kRun, D::kRun}));
  const ScheduleTask spared = with(waiting(10, 15), [](ScheduleTask& task) { task.spared = true; });
  EXPECT_EQ(decide({running(955, 1), waiting(10, 15), spared}), (std::vector{D::kRun, D::kWait, D::kRun}));
  // Nothing passes one that has to be alone: others would come for ever.
  EXPECT_EQ(decide({waiting(1014, 970), running(10, 1), waiting(5, 10)}),
            (std::vector{D::kWait, D::kPreempt, D::kWait}));
  EXPECT_EQ(decide({running(10, 1), waiting(1014, 970), waiting(5, 10)}), (std::vector{D::kRun, D::kWait, D::kWait}));
  // What passed gives way once the task that it passed ranks first.
  EXPECT_EQ(decide({waiting(990, 995), running(15, 1)}), (std::vector{D::kRun, D::kPreempt}));
}

TEST(ScheduleMarks, TasksGrowUpToThePreemptMark) {
  EXPECT_EQ(decide({running(500, 10), running(460, 10)}), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({running(500, 11), running(460, 10)}), (std::vector{D::kRun, D::kWait})) << "nobody is behind it";
  EXPECT_EQ(decide({running(500, 21), running(460, 10)}), (std::vector{D::kRun, D::kPreempt}));
  // Alone it may have all.
  EXPECT_EQ(decide({running(970, 30)}), (std::vector{D::kRun}));
  EXPECT_EQ(decide({running(970, 31)}), (std::vector{D::kReject}));
}

TEST(ScheduleMarks, VictimsAreOfTheWorstPriorityThenOfTheLeastCost) {
  const std::vector<ScheduleTask> tasks = {ranked(running(240, 30), 0), ranked(running(240, 0), 0, 1),
                                           ranked(running(240, 0), 5, 9), ranked(running(240, 0), 5, 8)};
  EXPECT_EQ(decide(tasks), (std::vector{D::kRun, D::kRun, D::kRun, D::kPreempt}));
  std::vector<ScheduleTask> equal = tasks;
  for (ScheduleTask& task : equal) task.priority = 0;
  EXPECT_EQ(decide(equal), (std::vector{D::kRun, D::kPreempt, D::kRun, D::kRun}));
  // No more of them than it takes, though a cheaper one comes first.
  equal[1].held = equal[1].used = 5, equal[2].cost = 20;
  equal[0].used = equal[0].held = 480;
  EXPECT_EQ(decide(equal), (std::vector{D::kRun, D::kRun, D::kRun, D::kPreempt}));
}

TEST(ScheduleMarks, ABetterPriorityTakesThePagesOfAWorseOneToStart) {
  EXPECT_EQ(decide({ranked(running(300, 0), 0), ranked(waiting(50, 200), 1), ranked(running(450, 0), 2)}),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
  EXPECT_EQ(decide({ranked(running(300, 0), 0), ranked(waiting(50, 200), 2), ranked(running(450, 0), 2)}),
            (std::vector{D::kRun, D::kWait, D::kRun}))
      << "of equals none gives way, or they would take turns";
  // The best-ranked never waits for those behind it, and asks for no more than it needs to begin.
  EXPECT_EQ(decide({waiting(50, 900), running(500, 0), running(400, 0)}), (std::vector{D::kRun, D::kRun, D::kRun}));
  EXPECT_EQ(decide({waiting(150, 900), running(500, 0), running(400, 0)}),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
  // Nor for a place.
  ScheduleLimits limits = kMarks;
  limits.running = 2;
  EXPECT_EQ(decide({waiting(50, 90), running(50, 0), running(40, 0)}, limits),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
}

TEST(ScheduleMarks, ASparedTaskKeepsItsPagesAndWhatItIsDue) {
  const ScheduleTask spared = with(running(300, 1), [](ScheduleTask& task) { task.spared = true, task.due = 100; });
  // The one behind it goes, though it costs more.
  EXPECT_EQ(decide({running(500, 90), spared, ranked(running(100, 0), 0, 9)}),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
  // Nobody else goes, so the first waits for it.
  EXPECT_EQ(decide({running(600, 10), spared}), (std::vector{D::kWait, D::kRun}));
  EXPECT_EQ(decide({running(590, 10), spared}), (std::vector{D::kRun, D::kRun}));
  // Where others have taken what it was due, it gives way in the end.
  EXPECT_EQ(decide({running(600, 10), spared}, kMarks, {}, 100), (std::vector{D::kWait, D::kPreempt}));
}

// It may have arrived later than others that wait, and begun before them as the one with the shortest prompt.
TEST(ScheduleMarks, APreemptedTaskGoesOnBeforeOthersBegin) {
  const ScheduleTask spared = with(waiting(30, 45), [](ScheduleTask& task) { task.spared = true; });
  EXPECT_EQ(decide({running(850, 0), waiting(30, 45), spared}), (std::vector{D::kRun, D::kWait, D::kRun}));
  EXPECT_EQ(decide({running(850, 0), waiting(30, 45), running(2, 0), waiting(30, 45), spared}),
            (std::vector{D::kRun, D::kWait, D::kRun, D::kWait, D::kRun}));
  // Not before those of a better priority.
  EXPECT_EQ(decide({running(850, 0), waiting(30, 45), ranked(spared, 1)}), (std::vector{D::kRun, D::kRun, D::kWait}));
}

TEST(ScheduleQuotas, BorrowedPagesGoFirst) {
  const std::vector<ScheduleQuota> quotas = {{300, 0}, {300, 0}};
  const ScheduleTask within = of_tenant(running(290, 5), 0);
  // Arrived last, but within its floor.
  EXPECT_EQ(decide({of_tenant(running(290, 5), 1), of_tenant(running(420, 5), 1), of_tenant(waiting(290, 290), 0)},
                   kMarks, quotas),
            (std::vector{D::kRun, D::kPreempt, D::kRun}));
  // Of what borrows, that without any floor first, whatever its priority.
  EXPECT_EQ(decide({ranked(running(100, 0), -5), within, of_tenant(ranked(running(600, 40), 3), 1)}, kMarks, quotas),
            (std::vector{D::kPreempt, D::kRun, D::kRun}));
  // A worse priority of its own tenant, but no other tenant's floor.
  EXPECT_EQ(decide({of_tenant(running(280, 15), 0), of_tenant(ranked(running(290, 5), 7), 1), running(415, 0)}, kMarks,
                   quotas),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
}

TEST(ScheduleQuotas, AFloorIsThereAboveTheMarks) {
  EXPECT_EQ(decide({of_tenant(running(490, 0), 0), of_tenant(running(400, 0), 1), of_tenant(waiting(100, 100), 1)},
                   kMarks, {{500, 0}, {500, 0}}),
            (std::vector{D::kRun, D::kRun, D::kRun}));
}

TEST(ScheduleQuotas, ACeilingHoldsBackItsTenantAlone) {
  const std::vector<ScheduleQuota> quotas = {{0, 300}};
  EXPECT_EQ(decide({of_tenant(running(250, 0), 0), of_tenant(waiting(20, 60), 0), of_tenant(waiting(20, 20), 0),
                    waiting(20, 20)},
                   kMarks, quotas),
            (std::vector{D::kRun, D::kWait, D::kWait, D::kRun}));
  // It grows on the pages of its own tenant.
  EXPECT_EQ(decide({of_tenant(running(200, 10), 0), running(100, 0), of_tenant(running(95, 0), 0)}, kMarks, quotas),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
  EXPECT_EQ(decide({running(100, 0), of_tenant(running(295, 10), 0)}, kMarks, quotas),
            (std::vector{D::kRun, D::kOverCeiling}));
}

// What a tenant holds within its floor stays, though a better-ranked task of its own waits that would take it up.
TEST(ScheduleQuotas, AFloorIsNotLentToAnotherTenantForATaskThatWaits) {
  const std::vector<ScheduleQuota> quotas = {{100, 0}};
  const ScheduleTask within = of_tenant(ranked(running(90, 5), 5), 0);
  const ScheduleTask grows = with(running(880, 20), [](ScheduleTask& task) { task.spared = true; });
  EXPECT_EQ(decide({grows, within}, kMarks, quotas), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({grows, of_tenant(waiting(150, 150), 0), within}, kMarks, quotas),
            (std::vector{D::kRun, D::kWait, D::kRun}));
  // It grows on the pages of one that waits in front of it.
  EXPECT_EQ(
      decide({of_tenant(running(905, 10), 1), of_tenant(waiting(150, 150), 0), of_tenant(ranked(running(95, 5), 5), 0)},
             kMarks, {{100, 0}, {50, 0}}),
      (std::vector{D::kPreempt, D::kWait, D::kRun}));
  // A better priority of its own tenant still takes its place.
  EXPECT_EQ(decide({grows, of_tenant(waiting(50, 50), 0), within}, kMarks, quotas),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
}

// A spared task can grow up to what it is due under its tenant's ceiling, so that two of a tenant never wait for each
// other while others run.
TEST(ScheduleQuotas, TwoOfATenantDoNotWaitForEachOtherAtTheCeiling) {
  const std::vector<ScheduleQuota> quotas = {{0, 100}};
  const auto spared = [](std::uint64_t held, std::uint64_t bytes, std::uint64_t due) {
    return with(of_tenant(running(held, bytes), 0), [&](ScheduleTask& t) { t.spared = true, t.due = due; });
  };
  // 25 are due to the second.
  EXPECT_EQ(decide({of_tenant(running(60, 1), 0), spared(15, 1, 25), running(50, 1)}, kMarks, quotas),
            (std::vector{D::kWait, D::kRun, D::kRun}));
  EXPECT_EQ(decide({of_tenant(running(59, 1), 0), spared(15, 1, 25), running(50, 1)}, kMarks, quotas),
            (std::vector{D::kRun, D::kRun, D::kRun}));
  // It has come to be due more than there is below the ceiling: the first gets its pages, whoever runs beside.
  EXPECT_EQ(decide({of_tenant(running(75, 1), 0), spared(25, 1, 15), running(50, 1)}, kMarks, quotas),
            (std::vector{D::kWait, D::kPreempt, D::kRun}));
}

TEST(ScheduleReserve, StartsWhereAllPeaksFit) {
  const ScheduleTask grows = with(running(100, 5), [](ScheduleTask& task) { task.estimate = 600; });
  EXPECT_EQ(decide({grows, waiting(10, 400)}, kReserves), (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({grows, waiting(10, 401)}, kReserves), (std::vector{D::kRun, D::kWait}));
  EXPECT_EQ(decide({grows, waiting(10, 391)}, kReserves, {}, 10), (std::vector{D::kRun, D::kWait}));
  EXPECT_EQ(decide({waiting(10, 401), grows}, kReserves), (std::vector{D::kWait, D::kRun})) << "nobody gives way";
  EXPECT_EQ(decide({waiting(10, 5000)}, kReserves), (std::vector{D::kRun})) << "alone";
}

TEST(ScheduleReserve, LeavesTheFloorsOfOthersAlone) {
  const std::vector<ScheduleQuota> quotas = {{300, 0}, {0, 0}};
  EXPECT_EQ(decide({running(100, 0), of_tenant(waiting(10, 600), 1)}, kReserves, quotas),
            (std::vector{D::kRun, D::kRun}));
  EXPECT_EQ(decide({running(100, 0), of_tenant(waiting(10, 601), 1)}, kReserves, quotas),
            (std::vector{D::kRun, D::kWait}));
  EXPECT_EQ(decide({running(700, 0), of_tenant(waiting(10, 300), 0)}, kReserves, quotas),
            (std::vector{D::kRun, D::kRun}));
}

TEST(ScheduleRows, PromptsThatWaitTakeNoRows) {
  const std::vector<ScheduleQuota> quotas = {{0, 300}};
  std::vector<ScheduleTask> tasks = {of_tenant(running(250, 0), 0), of_tenant(waiting(20, 60), 0), waiting(20, 20),
                                     waiting(20, 20)};
  ScheduleLimits limits = kMarks;
  limits.prompt_rows = 10;
  const std::vector<Verdict> verdicts = schedule(tasks, quotas, {1000, 750}, limits);
  EXPECT_EQ(verdicts, (std::vector<Verdict>{{D::kRun, 1}, {D::kWait, 0}, {D::kRun, 8}, {D::kRun, 2}}));
}

}  // namespace
}  // namespace kvasir::test
