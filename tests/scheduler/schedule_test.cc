// Who runs in a pass, decided from plain numbers.
#include "scheduler/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace kvasir::test {
namespace {

TEST(Schedule, PromptsShareTheRowsAndGeneratingTasksAlwaysGetTheirs) {
  const auto share_rows = [](const std::vector<std::pair<bool, int>>& demands, int prompt_rows) {
    std::vector<ScheduleTask> tasks;
    for (const auto& [reads, rows] : demands) tasks.push_back({.holds = true, .rows = rows, .reads = reads});
    std::vector<int> rows;
    for (const Verdict& verdict : schedule(tasks, {}, {}, {.prompt_rows = prompt_rows})) {
      EXPECT_EQ(verdict.decision, verdict.rows > 0 ? Decision::kRun : Decision::kWait);
      rows.push_back(verdict.rows);
    }
    return rows;
  };
  const std::vector<std::pair<bool, int>> tasks = {{true, 100}, {false, 1}, {true, 200}, {true, 50}, {false, 1}};
  EXPECT_EQ(share_rows(tasks, 256), (std::vector<int>{100, 1, 156, 0, 1}));
  EXPECT_EQ(share_rows(tasks, 1), (std::vector<int>{1, 1, 0, 0, 1}));
  EXPECT_TRUE(share_rows({}, 256).empty());
}

TEST(Schedule, AShortPromptPassesALongOne) {
  struct Reader {
    std::int64_t left;
    int priority = 0;
    bool holds = true;
    std::uint64_t bytes = 0;
  };
  const auto rows_of = [](const std::vector<Reader>& readers, int prompt_rows = 256) {
    std::vector<ScheduleTask> tasks;
    for (const Reader& reader : readers) {
      ScheduleTask& task = tasks.emplace_back();
      task.holds = reader.holds;
      task.used = reader.holds ? 50 : 0;
      task.rows = static_cast<int>(std::min<std::int64_t>(reader.left, prompt_rows));
      task.bytes = reader.bytes;
      task.reads = true;
      task.priority = reader.priority;
      task.left = reader.left;
    }
    std::vector<int> rows;
    for (const Verdict& verdict : schedule(tasks, {}, {1000, 100}, {.prompt_rows = prompt_rows}))
      rows.push_back(verdict.decision == Decision::kRun ? verdict.rows : 0);
    return rows;
  };
  // Half the rows at most; the rest go by rank, and none is left over.
  EXPECT_EQ(rows_of({{100000}, {5000}, {300}, {700}}), (std::vector{128, 0, 128, 0}));
  EXPECT_EQ(rows_of({{100000}, {5000}, {20}, {700}}), (std::vector{236, 0, 20, 0}));
  EXPECT_EQ(rows_of({{40}, {5000}, {20}, {700}}), (std::vector{40, 196, 20, 0}));
  EXPECT_EQ(rows_of({{100000}, {300}}, 9), (std::vector{5, 4}));
  EXPECT_EQ(rows_of({{100000}, {300}}, 1), (std::vector{1, 0}));
  // One that has not begun passes those that have not begun either, for want of rows.
  EXPECT_EQ(rows_of({{.left = 100000}, {.left = 5000, .holds = false}, {.left = 300, .holds = false}}),
            (std::vector{128, 0, 128}));
  const Reader too_large{.left = 5000, .holds = false, .bytes = 101};
  // It does not pass one that waits for memory, and its rows are not lost.
  EXPECT_EQ(rows_of({{.left = 40}, too_large, {.left = 20, .holds = false, .bytes = 50}, {.left = 700}}),
            (std::vector{40, 0, 0, 216}));
  EXPECT_EQ(rows_of({{.left = 40}, too_large, {.left = 20, .holds = false, .bytes = 15}, {.left = 700}}),
            (std::vector{40, 0, 20, 196}))
      << "small";
  // Nor a better priority.
  EXPECT_EQ(rows_of({{.left = 100000}, {.left = 300, .priority = 1}}), (std::vector{256, 0}));
  EXPECT_EQ(rows_of({{.left = 100, .priority = -1}, {.left = 100000}, {.left = 300}}), (std::vector{100, 156, 0}));
}

using D = Decision;

std::vector<Decision> decide(const std::vector<ScheduleTask>& tasks, std::uint64_t available, int running) {
  std::uint64_t capacity = available;
  for (const ScheduleTask& task : tasks) capacity += task.holds ? task.held : 0;
  std::vector<Decision> decisions;
  for (const Verdict& verdict : schedule(tasks, {}, {capacity, available}, {.running = running}))
    decisions.push_back(verdict.decision);
  return decisions;
}

// A task that holds pages: its next row takes `bytes`, and it holds `held`.
ScheduleTask grows(std::uint64_t bytes, std::uint64_t held) {
  return {.holds = true, .rows = 1, .bytes = bytes, .held = held};
}
// A task that has not begun and takes `bytes`.
ScheduleTask starts(std::uint64_t bytes, int rows = 8) {
  return {.holds = false, .rows = rows, .bytes = bytes};
}

TEST(Schedule, TheYoungestGiveWay) {
  // All fit.
  EXPECT_EQ(decide({grows(10, 50), grows(10, 50)}, 20, 64), (std::vector{D::kRun, D::kRun}));
  // The youngest whose pages are enough, and no more of them.
  EXPECT_EQ(decide({grows(10, 50), grows(10, 50), grows(10, 50)}, 15, 64),
            (std::vector{D::kRun, D::kRun, D::kPreempt}));
  // Nobody is preempted for a task that would not fit even then; younger ones that hold pages go on.
  EXPECT_EQ(decide({grows(5, 50), grows(90, 50), grows(5, 20)}, 15, 64), (std::vector{D::kRun, D::kWait, D::kRun}));
  // But the oldest takes all that there is, and is asked again.
  EXPECT_EQ(decide({grows(90, 50), grows(5, 20), grows(5, 20)}, 15, 64),
            (std::vector{D::kWait, D::kPreempt, D::kPreempt}));
  EXPECT_EQ(decide({grows(90, 50), starts(25), starts(25)}, 50, 64), (std::vector{D::kReject, D::kWait, D::kWait}));
  EXPECT_EQ(decide({grows(90, 50), starts(25)}, 90, 64), (std::vector{D::kRun, D::kWait}));
}

TEST(Schedule, TasksStartInOrder) {
  // No younger one starts before one that waits for memory, for a place, or for rows.
  EXPECT_EQ(decide({grows(10, 50), starts(60), starts(5)}, 40, 64), (std::vector{D::kRun, D::kWait, D::kWait}));
  EXPECT_EQ(decide({grows(10, 50), starts(5), starts(5)}, 40, 2), (std::vector{D::kRun, D::kRun, D::kWait}));
  EXPECT_EQ(decide({grows(10, 50), starts(5, 0), starts(5), grows(5, 9)}, 40, 64),
            (std::vector{D::kRun, D::kWait, D::kWait, D::kRun}));
  EXPECT_TRUE(decide({}, 40, 64).empty());
}

// Tasks that read, generate, and hold a unit of memory for each token, over a memory that some of them outgrow.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  struct Imagined {
    std::uint64_t prompt = 0, total = 0;
    std::uint64_t done = 0, known = 0;  // tokens in memory; tokens read or generated
    bool holds = false;
    bool reads() const { return done < known || known < prompt; }
  };

  void run(int tasks, std::uint64_t memory) {
    memory_ = memory;
    int left = tasks;
    for (int round = 0; left > 0 || !tasks_.empty(); ++round) {
      ASSERT_LT(round, 200 * tasks) << "no progress";
      for (; left > 0 && draw(0, 2) == 0; --left) {
        const std::uint64_t prompt = draw(1, 60);
        tasks_.push_back({prompt, prompt + draw(0, 50), 0, prompt, false});
      }
      if (!tasks_.empty()) {
        ASSERT_NO_FATAL_FAILURE(step());
      }
    }
    EXPECT_EQ(used_, 0u);
    EXPECT_EQ(finished_ + rejected_, tasks);
  }

  int finished_ = 0, rejected_ = 0, preempted_ = 0;

 private:
  std::uint64_t draw(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  void step() {
    tasks_.front().holds = true;
    std::vector<ScheduleTask> asked;
    for (const Imagined& task : tasks_) {
      const int rows = task.reads() ? static_cast<int>(std::min<std::uint64_t>(task.known - task.done, 32)) : 1;
      // What comes back is only known to be at least so much.
      asked.push_back({.holds = task.holds,
                       .rows = rows,
                       .bytes = task.holds ? static_cast<std::uint64_t>(rows) : task.known + 4,
                       .held = draw(0, 3) == 0 ? 0 : task.done,
                       .reads = task.reads()});
    }
    std::vector<Decision> decisions;
    std::vector<int> rows;
    for (const Verdict& verdict : schedule(asked, {}, {memory_, memory_ - used_}, {.prompt_rows = 32, .running = 8})) {
      decisions.push_back(verdict.decision);
      rows.push_back(verdict.rows);
    }
    bool changed = false;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      changed = changed || decisions[i] != Decision::kWait;
      if (decisions[i] != Decision::kPreempt) continue;
      ASSERT_GT(i, 0u) << "the oldest";
      ASSERT_TRUE(tasks_[i].holds);
      used_ -= tasks_[i].done;
      tasks_[i].done = 0;
      tasks_[i].holds = false;
      ++preempted_;
    }
    ASSERT_TRUE(changed);
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      Imagined& task = tasks_[i];
      if (decisions[i] == Decision::kReject) {
        ASSERT_EQ(i, 0u);
        ASSERT_EQ(used_, task.done) << "others hold memory";
        ASSERT_GT(task.total, memory_);
        ++rejected_;
        task.total = 0;
      } else if (decisions[i] == Decision::kRun) {
        ASSERT_GT(rows[i], 0);
        task.holds = true;
        used_ += static_cast<std::uint64_t>(rows[i]);
        ASSERT_LE(used_, memory_);
        task.done += static_cast<std::uint64_t>(rows[i]);
        task.known = std::max(task.known, task.done);
      }
      if (task.done >= task.total) {
        finished_ += task.total > 0 ? 1 : 0;
        used_ -= task.done;
        task.total = 0;
        task.prompt = 0;
      }
    }
    std::erase_if(tasks_, [](const Imagined& task) { return task.total == 0; });
  }

  std::mt19937_64 random_;
  std::uint64_t memory_ = 0;
  std::uint64_t used_ = 0;
  std::vector<Imagined> tasks_;
};

TEST(Schedule, EveryTaskComesToItsEnd) {
  int preempted = 0;
  int rejected = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    World world(seed);
    world.run(200, seed % 2 == 0 ? 120 : 90);
    if (HasFatalFailure()) return;
    preempted += world.preempted_;
    rejected += world.rejected_;
    if (seed % 2 == 0) {
      EXPECT_EQ(world.rejected_, 0) << "the largest takes 110";
    }
  }
  EXPECT_GT(preempted, 500);
  EXPECT_GT(rejected, 20);
}

}  // namespace
}  // namespace kvasir::test
