#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace kvasir {
namespace {

TEST(ThreadPool, EveryIndexExactlyOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int count : {0, 1, 2, 3, 1000, 1, 0, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](int i) { calls.at(static_cast<std::size_t>(i)).fetch_add(1); });
      for (const std::atomic<int>& c : calls) ASSERT_EQ(c.load(), 1) << threads << " threads, " << count << " indices";
    }
  }
}

// What tasks wrote must be visible to the caller without more ado, and to the next region.
TEST(ThreadPool, ManyTinyRegions) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<long> sums(7, 0);
    const int regions = threads == 1 ? 100000 : threads == 2 ? 30000 : 2000;
    for (int region = 0; region < regions; ++region)
      pool.parallel_for(7, [&](int i) { sums[static_cast<std::size_t>((i + region) % 7)] += region; });
    for (const long sum : sums) ASSERT_EQ(sum, static_cast<long>(regions) * (regions - 1) / 2);
  }
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> calls = 0;
    pool.parallel_for(50, [&](int) { ++calls; });
    ASSERT_EQ(calls.load(), 50);
  }
}

TEST(ThreadPool, EndsWhetherItsWorkersSleepSpinOrNeverRan) {
  for (int repeat = 0; repeat < 50; ++repeat) ThreadPool pool(4);
  {
    ThreadPool pool(4);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  for (int repeat = 0; repeat < 50; ++repeat) {
    ThreadPool pool(4);
    pool.parallel_for(8, [](int) {});
  }
}

TEST(ThreadPool, TakesTasksByReferenceAndConst) {
  ThreadPool pool(2);
  std::atomic<int> total = 0;
  const auto task = [&](int i) { total += i; };
  pool.parallel_for(10, task);
  struct Counter {
    std::atomic<int> calls = 0;
    void operator()(int) { ++calls; }
  } counter;
  pool.parallel_for(10, counter);
  EXPECT_EQ(total.load(), 45);
  EXPECT_EQ(counter.calls.load(), 10);
}

TEST(ThreadPoolDeathTest, NeedsAThread) {
  EXPECT_DEATH(ThreadPool(0), "internal error");
}

TEST(UsableCores, IsAtLeastOne) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), 65536);
}

}  // namespace
}  // namespace kvasir
