// The estimate of the time left, on clocks that are computed.
#include "cli/time_left.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvasir::cli {
namespace {

constexpr std::int64_t kAll = 50000;
constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

// Reads kAll tokens in passes of 64, each of which takes `per_token` and `per_attended` times what it reads and attends
// to, give or take a tenth. Returns the worst ratio of an estimate to the truth once a share of `from` was read.
double worst(const ReadingWork& truth, const ReadingWork& told, double per_token, double per_attended, double from) {
  std::mt19937_64 random(3);
  std::vector<double> at = {0};
  for (std::int64_t done = 0; done < kAll; done += 64) {
    const auto begin = static_cast<double>(done), end = static_cast<double>(std::min(done + 64, kAll));
    const double cost = per_token * (end - begin) + per_attended * (truth.attended(end) - truth.attended(begin));
    at.push_back(at.back() + cost * (0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000));
  }
  TimeLeft left(told);
  EXPECT_EQ(left.seconds(), 0);
  double worst = 1;
  for (std::size_t pass = 1; pass + 1 < at.size(); ++pass) {
    const auto done = std::min(static_cast<std::int64_t>(pass) * 64, kAll);
    left.add(at[pass], done, kAll);
    if (static_cast<double>(done) < from * static_cast<double>(kAll)) continue;
    const double ratio = left.seconds() / (at.back() - at[pass]);
    worst = std::max(worst, std::max(ratio, 1 / ratio));
  }
  left.add(at.back(), kAll, kAll);
  EXPECT_EQ(left.seconds(), 0);
  return worst;
}

TEST(TimeLeft, KnowsThatTheWorkGrows) {
  const ReadingWork full{kEndless, kEndless};
  // Six times as dear at the end as at the start: a guess from the mean so far falls short by three.
  EXPECT_GT(worst(full, {}, 1, 1e-4, 0.05), 2.5);
  EXPECT_LT(worst(full, full, 1, 1e-4, 0.05), 1.35);
  EXPECT_LT(worst(full, full, 1, 1e-4, 0.2), 1.15);
  EXPECT_LT(worst(full, full, 1, 0, 0.05), 1.5) << "not every text is dear";
}

TEST(TimeLeft, KnowsWhereItCeasesToGrow) {
  for (const ReadingWork& work : {ReadingWork{5000, kEndless}, ReadingWork{kEndless, 2048}, ReadingWork{500, 2048}})
    EXPECT_LT(worst(work, work, 1, 1e-3, 0.1), 1.3) << work.most_kept << ' ' << work.window;
  EXPECT_LT(worst({}, {}, 1, 0, 0.05), 1.1);
}

TEST(TimeLeft, AttendedIsTheSum) {
  for (const ReadingWork& work : {ReadingWork{7, kEndless}, ReadingWork{kEndless, 10}, ReadingWork{4, 10}}) {
    double sum = 0;
    for (std::int64_t token = 0; token < 57; ++token) {
      EXPECT_NEAR(work.attended(static_cast<double>(token)), sum, 1e-9);
      sum += std::min(static_cast<double>(token % work.window) + 0.5, static_cast<double>(work.most_kept));
    }
  }
}

TEST(LineTimes, ComeEverMoreRarely) {
  LineTimes lines;
  std::vector<int> due;
  for (int second = 0; second < 300; ++second)
    if (lines.due(second)) due.push_back(second);
  EXPECT_EQ(due, (std::vector<int>{5, 10, 20, 40, 80, 140, 200, 260}));
}

}  // namespace
}  // namespace kvasir::cli
