// Token buckets: how many requests and tokens each tenant may still use, on the caller's clock.
//
// A bucket holds a minute's allowance, starts full and fills evenly. Tokens are charged when a request has ended, since
// their number is not known before. So a bucket may fall below zero, and no request passes until it is above zero
// again: a tenant's rate holds over time, and may be exceeded briefly by what its running requests use.
//
// Memory: one entry for each tenant that has limits, and none for unknown callers.
// Thread-safety: one thread at a time; a Hold may be dropped on any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace kvasir::tenants {

// 0: no limit.
struct RateLimits {
  std::int64_t requests_per_minute = 0;
  std::int64_t tokens_per_minute = 0;
  std::int64_t concurrent = 0;
  bool operator==(const RateLimits&) const = default;
};

class RateLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Counts a request as running while it lives. May outlive the limiter.
  using Hold = std::shared_ptr<const void>;

  enum class Limit { kRequests, kTokens, kConcurrent };
  struct Refusal {
    Limit limit{};
    std::int64_t allowed = 0;             // per minute, or at a time
    std::chrono::seconds retry_after{1};  // at least 1; for kConcurrent an estimate
  };
  struct Answer {
    std::optional<Refusal> refusal;
    Hold hold;  // for a request that may run; null for a tenant without limits
  };

  // Sets the limits of tenants by number; all other tenants lose theirs. A bucket whose limit did not change keeps its
  // level.
  void set(const std::vector<std::pair<int, RateLimits>>& tenants, Time now);

  // Takes one request from a tenant's buckets; nothing if a limit forbids it.
  Answer take(int tenant, Time now);

  // Charges tokens that a request used.
  void charge(int tenant, std::int64_t tokens, Time now);

  // Returns the number of a tenant's requests that run now.
  std::int64_t running(int tenant) const;
  std::size_t entries() const { return tenants_.size(); }

 private:
  struct Bucket {
    std::int64_t allowed = 0;  // a minute; 0: no limit
    double level = 0;
    Time filled{};

    void set(std::int64_t limit, Time now);
    void fill(Time now);
    // Returns the time until the bucket holds 1; 0 if it does.
    std::chrono::seconds wait() const;
  };
  struct Entry {
    Bucket requests;
    Bucket tokens;
    std::int64_t concurrent = 0;
    std::shared_ptr<std::atomic<std::int64_t>> running = std::make_shared<std::atomic<std::int64_t>>(0);
  };

  std::map<int, Entry> tenants_;
};

}  // namespace kvasir::tenants
