#include "tenants/rate_limiter.h"

#include <gtest/gtest.h>

namespace kvasir::tenants {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Limit = RateLimiter::Limit;

class RateLimiterTest : public ::testing::Test {
 protected:
  void set(RateLimits limits) { limiter_.set({{1, limits}}, now_); }
  // Takes requests that end at once. Returns how many of `count` pass.
  int take(int count) {
    int passed = 0;
    for (int i = 0; i < count; ++i) {
      const RateLimiter::Answer answer = limiter_.take(1, now_);
      if (!answer.refusal)
        ++passed;
      else
        last_ = *answer.refusal;
    }
    return passed;
  }

  RateLimiter::Time now_{seconds(1000)};
  RateLimiter limiter_;
  RateLimiter::Refusal last_;
};

TEST_F(RateLimiterTest, RequestsPassAMinutesWorthAndThenEvenly) {
  set({.requests_per_minute = 60});
  EXPECT_EQ(take(100), 60);
  EXPECT_EQ(last_.limit, Limit::kRequests);
  EXPECT_EQ(last_.allowed, 60);
  EXPECT_EQ(last_.retry_after, seconds(1));
  now_ += milliseconds(900);
  EXPECT_EQ(take(1), 0);
  now_ += milliseconds(200);
  EXPECT_EQ(take(2), 1);
  now_ += seconds(10);
  EXPECT_EQ(take(100), 10);
  now_ += seconds(100000);
  EXPECT_EQ(take(100), 60);
}

TEST_F(RateLimiterTest, RetryAfterIsWhenItPasses) {
  set({.requests_per_minute = 2});
  EXPECT_EQ(take(3), 2);
  EXPECT_EQ(last_.retry_after, seconds(30));
  now_ += seconds(29);
  EXPECT_EQ(take(1), 0);
  now_ += seconds(1);
  EXPECT_EQ(take(1), 1);
}

// Over any long time the rate is what was allowed, whatever the pattern.
TEST_F(RateLimiterTest, LongRunRateHolds) {
  set({.requests_per_minute = 30});
  int passed = 0;
  for (int i = 0; i < 36000; ++i) {
    passed += take(1 + i % 3);
    now_ += milliseconds(100);
  }
  EXPECT_LE(passed, 30 * 60 + 30);
  EXPECT_GE(passed, 30 * 60);
}

TEST_F(RateLimiterTest, TokensAreChargedWhenKnownAndPaidBack) {
  set({.tokens_per_minute = 600});
  EXPECT_EQ(take(1), 1);
  limiter_.charge(1, 900, now_);
  EXPECT_EQ(take(1), 0);
  EXPECT_EQ(last_.limit, Limit::kTokens);
  EXPECT_EQ(last_.retry_after, seconds(31));  // 301 tokens at 10 a second
  now_ += seconds(30);
  EXPECT_EQ(take(1), 0);
  now_ += seconds(1);
  EXPECT_EQ(take(1), 1);
}

TEST_F(RateLimiterTest, ConcurrentRequestsCountWhileTheyAreHeld) {
  set({.concurrent = 2});
  RateLimiter::Answer first = limiter_.take(1, now_), second = limiter_.take(1, now_);
  EXPECT_NE(first.hold, nullptr);
  EXPECT_EQ(limiter_.running(1), 2);
  EXPECT_EQ(take(1), 0);
  EXPECT_EQ(last_.limit, Limit::kConcurrent);
  const RateLimiter::Hold copy = first.hold;
  first.hold.reset();
  EXPECT_EQ(take(1), 0);  // a copy still holds
  second.hold.reset();
  EXPECT_EQ(take(1), 1);
  EXPECT_EQ(limiter_.running(1), 1);
}

TEST_F(RateLimiterTest, ARefusedRequestTakesNothing) {
  set({.requests_per_minute = 10, .concurrent = 1});
  {
    const RateLimiter::Answer held = limiter_.take(1, now_);
    EXPECT_EQ(take(50), 0);
  }
  EXPECT_EQ(take(50), 9);
}

TEST_F(RateLimiterTest, TenantsDoNotShare) {
  limiter_.set({{1, {.requests_per_minute = 1}}, {2, {.requests_per_minute = 1}}}, now_);
  EXPECT_EQ(take(2), 1);
  EXPECT_FALSE(limiter_.take(2, now_).refusal.has_value());
}

TEST_F(RateLimiterTest, UnlimitedAndUnknownTenantsTakeNoMemory) {
  std::vector<std::pair<int, RateLimits>> tenants;
  for (int i = 1; i <= 1000; ++i) tenants.emplace_back(i, i == 7 ? RateLimits{.concurrent = 1} : RateLimits());
  limiter_.set(tenants, now_);
  for (int i = 0; i < 100000; ++i) {
    EXPECT_FALSE(limiter_.take(100000 + i, now_).refusal.has_value());
    limiter_.charge(100000 + i, 5, now_);
  }
  EXPECT_EQ(limiter_.entries(), 1U);
  limiter_.set({}, now_);
  EXPECT_EQ(limiter_.entries(), 0U);
}

TEST_F(RateLimiterTest, ANewFileKeepsLevels) {
  set({.requests_per_minute = 60, .concurrent = 5});
  const RateLimiter::Answer held = limiter_.take(1, now_);
  EXPECT_EQ(take(100), 59);
  set({.requests_per_minute = 60, .concurrent = 5});
  EXPECT_EQ(take(1), 0);
  set({.requests_per_minute = 600, .concurrent = 5});  // more from now on, but nothing at once
  EXPECT_EQ(take(1), 0);
  now_ += seconds(1);
  EXPECT_EQ(take(100), 10);
  set({.requests_per_minute = 0, .concurrent = 1});
  EXPECT_EQ(take(1), 0);
  EXPECT_EQ(last_.limit, Limit::kConcurrent);
}

TEST_F(RateLimiterTest, AHoldOutlivesTheLimiter) {
  RateLimiter::Hold hold;
  {
    RateLimiter limiter;
    limiter.set({{1, {.concurrent = 1}}}, now_);
    hold = limiter.take(1, now_).hold;
  }
  EXPECT_NE(hold, nullptr);
  hold.reset();
}

}  // namespace
}  // namespace kvasir::tenants
