// Random sequences of tasks with priorities and tenants, over a memory that they outgrow: all of them end, no floor,
// ceiling or mark is passed, and no task is preempted twice for one token.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "scheduler/schedule.h"

namespace kvasir::test {
namespace {

// A unit of memory for each token.
struct Job {
  std::uint64_t number = 0;  // of its arrival
  int priority = 0;
  int tenant = -1;
  std::uint64_t prompt = 0, total = 0;
  std::uint64_t done = 0;   // tokens in memory
  std::uint64_t known = 0;  // tokens read or generated
  bool holds = false;
  bool spared = false;
  bool told_total = true;  // its estimate is its peak; otherwise the most there is
  bool repeats = false;    // tokens that it generated, one in a pass

  std::uint64_t in_chunks() const { return repeats ? prompt : known; }  // of its tokens, when they are run again
  bool reads() const { return done < in_chunks(); }
};

struct Setting {
  std::uint64_t memory = 100;
  ScheduleLimits limits;
  std::vector<ScheduleQuota> quotas;
  int priorities = 1;
  std::uint64_t most = 100;  // tokens of a task
  bool sessions = false;     // others take memory, and give it back
  bool beside = false;       // a task without a tenant runs in every pass, and never ends
};

class World {
 public:
  World(Setting setting, std::uint64_t seed) : setting_(std::move(setting)), random_(seed) {}

  void run(int jobs) {
    int left = jobs;
    for (int round = 0; left > 0 || !jobs_.empty(); ++round) {
      ASSERT_LT(round, 500 * jobs) << "no progress";
      for (; left > 0 && draw(0, 2) == 0; --left) arrive(static_cast<std::uint64_t>(left));
      if (setting_.sessions && draw(0, 9) == 0)
        others_ = draw(0, std::min(setting_.memory / 2, setting_.memory - used_));
      if (!jobs_.empty()) {
        ASSERT_NO_FATAL_FAILURE(pass());
      }
    }
    EXPECT_EQ(used_, 0u);
    EXPECT_EQ(finished_ + rejected_ + over_ceiling_, jobs);
  }

  int finished_ = 0, rejected_ = 0, over_ceiling_ = 0, preempted_ = 0, twice_ = 0;

 private:
  std::uint64_t draw(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  void arrive(std::uint64_t number) {
    Job job;
    job.number = number;
    job.priority = static_cast<int>(draw(0, static_cast<std::uint64_t>(setting_.priorities - 1)));
    job.tenant = static_cast<int>(draw(0, setting_.quotas.size())) - 1;
    job.total = draw(1, setting_.most);
    job.prompt = job.known = draw(1, job.total);
    if (setting_.beside) job.repeats = draw(0, 1) == 0;
    job.told_total = setting_.limits.admission == Admission::kReserve || draw(0, 3) > 0;
    const auto behind = std::ranges::upper_bound(jobs_, job.priority, {}, &Job::priority);
    jobs_.insert(behind, job);
  }

  std::vector<ScheduleTask> tasks() {
    std::vector<ScheduleTask> tasks;
    for (const Job& job : jobs_) {
      ScheduleTask task;
      task.holds = job.holds;
      task.reads = job.reads();
      task.rows = task.reads ? static_cast<int>(std::min<std::uint64_t>(job.in_chunks() - job.done, 32)) : 1;
      const std::uint64_t whole = std::min(job.known + 4, job.total);
      task.bytes = job.holds ? static_cast<std::uint64_t>(task.rows) : whole;
      task.held = task.used = job.done;
      task.due = job.holds ? std::max<std::uint64_t>(std::min(job.known + 1, job.total) - job.done, task.bytes) : 0;
      task.estimate = job.told_total ? job.total : std::max(setting_.most, job.total);
      task.spared = job.spared;
      task.priority = job.priority;
      task.tenant = job.tenant;
      task.cost = static_cast<double>(job.known);
      task.left = task.reads ? static_cast<std::int64_t>(job.in_chunks() - job.done) : 0;
      tasks.push_back(task);
    }
    return tasks;
  }

  std::uint64_t used_by(int tenant) const {
    std::uint64_t used = 0;
    for (const Job& job : jobs_) used += job.tenant == tenant ? job.done : 0;
    return used;
  }

  // Tokens that this one and those of its tenant ahead of it hold.
  std::uint64_t used_up_to(std::size_t i) const {
    std::uint64_t used = 0;
    for (std::size_t k = 0; k <= i; ++k) used += jobs_[k].tenant == jobs_[i].tenant ? jobs_[k].done : 0;
    return used;
  }

  // As schedule(), with a task that needs nothing more behind all others.
  std::vector<Verdict> decide(std::vector<ScheduleTask> asked, const ScheduleMemory& memory) const {
    if (setting_.beside) asked.push_back({.holds = true, .rows = 1, .priority = setting_.priorities});
    std::vector<Verdict> verdicts = schedule(asked, setting_.quotas, memory, setting_.limits);
    if (setting_.beside) verdicts.pop_back();
    return verdicts;
  }

  void pass() {
    const std::vector<ScheduleTask> asked = tasks();
    const ScheduleMemory memory{setting_.memory, setting_.memory - used_ - others_};
    const std::vector<Verdict> verdicts = decide(asked, memory);
    ASSERT_EQ(verdicts, decide(asked, memory)) << "not a function";
    if (!setting_.beside) {
      ASSERT_TRUE(std::ranges::any_of(verdicts, [](const Verdict& v) { return v.decision != Decision::kWait; }));
    }
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (verdicts[i].decision != Decision::kPreempt) continue;
      Job& job = jobs_[i];
      ASSERT_TRUE(job.holds);
      ++preempted_;
      twice_ += job.spared ? 1 : 0;
      used_ -= job.done;
      job.done = 0;
      job.holds = false;
      job.spared = true;
    }
    int prompt_rows = 0;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      Job& job = jobs_[i];
      if (verdicts[i].decision == Decision::kReject) {
        ASSERT_EQ(used_, job.done) << "others hold memory";
        ASSERT_GT(job.done + asked[i].bytes, setting_.memory - others_);
        ++rejected_;
        job.total = 0;
      } else if (verdicts[i].decision == Decision::kOverCeiling) {
        ASSERT_GT(job.done + asked[i].bytes, setting_.quotas[static_cast<std::size_t>(job.tenant)].ceiling);
        ++over_ceiling_;
        job.total = 0;
      } else if (verdicts[i].decision == Decision::kRun) {
        ASSERT_GT(verdicts[i].rows, 0);
        ASSERT_LE(verdicts[i].rows, asked[i].rows);
        run(job, static_cast<std::uint64_t>(verdicts[i].rows), &prompt_rows);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (job.done < job.total) continue;
      finished_ += job.total > 0 ? 1 : 0;
      used_ -= job.done;
      job.done = job.total = 0;
    }
    EXPECT_LE(prompt_rows, setting_.limits.prompt_rows);
    std::erase_if(jobs_, [](const Job& job) { return job.total == 0; });
    for (std::size_t t = 0; t < setting_.quotas.size(); ++t)
      if (setting_.quotas[t].ceiling > 0) {
        ASSERT_LE(used_by(static_cast<int>(t)), setting_.quotas[t].ceiling);
      }
  }

  void run(Job& job, std::uint64_t rows, int* prompt_rows) {
    *prompt_rows += job.reads() ? static_cast<int>(rows) : 0;
    // A start of one that is alone may have less room than it asked for.
    if (!job.holds) rows = std::min(rows, setting_.memory - used_ - others_);
    job.holds = true;
    used_ += rows;
    ASSERT_LE(used_ + others_, setting_.memory);
    job.done += rows;
    if (job.done <= job.known) return;
    job.known = job.done;
    job.spared = false;
  }

  Setting setting_;
  std::mt19937_64 random_;
  std::uint64_t used_ = 0;
  std::uint64_t others_ = 0;
  std::vector<Job> jobs_;
};

constexpr ScheduleLimits kSmall{
    .prompt_rows = 32, .running = 8, .stop_mark = 0.9, .preempt_mark = 0.98, .small = 0.1, .small_together = 0.3};

ScheduleLimits reserving() {
  ScheduleLimits limits = kSmall;
  limits.admission = Admission::kReserve;
  return limits;
}

const std::vector<ScheduleQuota> kQuotas = {{30, 60}, {20, 0}, {50, 50}, {0, 40}};

struct Sums {
  int preempted = 0, rejected = 0, over_ceiling = 0, twice = 0;
};

Sums run_all(const Setting& setting, int jobs = 200) {
  Sums sums;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    World world(setting, seed);
    world.run(jobs);
    if (::testing::Test::HasFatalFailure()) return sums;
    sums.preempted += world.preempted_;
    sums.rejected += world.rejected_;
    sums.over_ceiling += world.over_ceiling_;
    sums.twice += world.twice_;
  }
  return sums;
}

TEST(ScheduleProperty, PrioritiesEnd) {
  const Sums sums = run_all({.limits = kSmall, .priorities = 3, .most = 98});
  EXPECT_GT(sums.preempted, 300);
  EXPECT_EQ(sums.rejected, 0);
  EXPECT_EQ(sums.twice, 0) << "before a token came";
}

TEST(ScheduleProperty, WhatOutgrowsTheMemoryIsRejected) {
  const Sums sums = run_all({.limits = kSmall, .priorities = 2, .most = 140});
  EXPECT_GT(sums.rejected, 500);
  EXPECT_EQ(sums.twice, 0);
}

TEST(ScheduleProperty, TenantsEnd) {
  const Sums sums = run_all({.limits = kSmall, .quotas = kQuotas, .priorities = 3, .most = 80});
  EXPECT_GT(sums.preempted, 500);
  EXPECT_GT(sums.over_ceiling, 500);
  EXPECT_EQ(sums.rejected, 0);
  EXPECT_EQ(sums.twice, 0);
}

// All end although others run all the time, so that nothing but their own tenant's tasks can make room for them.
TEST(ScheduleProperty, TenantsEndBesideOthersThatNeverDo) {
  Setting setting{.limits = kSmall, .quotas = kQuotas, .priorities = 3, .most = 80, .beside = true};
  const Sums sums = run_all(setting);
  EXPECT_GT(sums.preempted, 500);
  EXPECT_GT(sums.over_ceiling, 500);
  // Much memory, and ceilings that all of it is about.
  setting.memory = 1000;
  setting.quotas = {{0, 100}, {0, 90}, {20, 60}};
  setting.limits.running = 30;
  EXPECT_GT(run_all(setting).preempted, 100);
  EXPECT_EQ(run_all(setting).twice, 0);
}

// Sessions take what was promised; everything ends all the same.
TEST(ScheduleProperty, OthersMayTakeMemoryAtAnyTime) {
  const Sums sums = run_all({.limits = kSmall, .quotas = kQuotas, .priorities = 3, .most = 80, .sessions = true});
  EXPECT_GT(sums.preempted, 500);
  run_all({.limits = reserving(), .quotas = kQuotas, .priorities = 3, .most = 80, .sessions = true});
}

TEST(ScheduleProperty, ReservationsPreemptNobody) {
  for (const std::vector<ScheduleQuota>& quotas : {std::vector<ScheduleQuota>{}, kQuotas}) {
    const Sums sums = run_all({.limits = reserving(), .quotas = quotas, .priorities = 3, .most = 40});
    EXPECT_EQ(sums.preempted, 0);
    EXPECT_EQ(sums.rejected, 0);
    EXPECT_EQ(sums.over_ceiling, 0);
  }
}

}  // namespace
}  // namespace kvasir::test
