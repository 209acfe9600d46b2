// How many requests and tokens each tenant may still use: token buckets, on a clock that the caller gives.
//
// A bucket holds what a minute allows, is full at first, and fills evenly: a tenant may use a minute's worth at once,
// and then as much as comes in. Tokens are charged when a request has ended, since nobody knows before how many it will
// generate: a bucket may fall below zero, and no request passes until it is above again. So a tenant's rate holds over
// time, and exceeds it for a moment by what its running requests use.
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
    std::int64_t allowed = 0;             // a minute, or at a time
    std::chrono::seconds retry_after{1};  // at least 1; for kConcurrent a guess
  };
  struct Answer {
    std::optional<Refusal> refusal;
    Hold hold;  // of a request that may run; null for a tenant without limits
  };

  // Sets the limits of tenants by number. Tenants that are not among them lose theirs. A bucket whose limit did not
  // change keeps its level.
  void set(const std::vector<std::pair<int, RateLimits>>& tenants, Time now);

  // Takes one request from a tenant's buckets, unless one limit forbids it: then nothing is taken.
  Answer take(int tenant, Time now);

  // Charges tokens that a request used.
  void charge(int tenant, std::int64_t tokens, Time now);

  // Requests of a tenant that run now.
  std::int64_t running(int tenant) const;
  std::size_t entries() const { return tenants_.size(); }

 private:
  struct Bucket {
    std::int64_t allowed = 0;  // a minute; 0: no limit
    double level = 0;
    Time filled{};

    void set(std::int64_t limit, Time now);
    void fill(Time now);
    // Returns when the bucket will hold 1; 0 if it does.
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
