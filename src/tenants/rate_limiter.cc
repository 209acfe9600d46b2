#include "tenants/rate_limiter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir::tenants {

void RateLimiter::Bucket::set(std::int64_t limit, Time now) {
  if (limit == allowed) return;
  fill(now);
  level = allowed == 0 ? static_cast<double>(limit) : std::min(level, static_cast<double>(limit));
  allowed = limit;
  filled = now;
}

void RateLimiter::Bucket::fill(Time now) {
  const double seconds = std::chrono::duration<double>(now - filled).count();
  if (seconds <= 0) return;
  level = std::min(static_cast<double>(allowed), level + seconds * static_cast<double>(allowed) / 60);
  filled = now;
}

std::chrono::seconds RateLimiter::Bucket::wait() const {
  if (allowed == 0 || level >= 1) return std::chrono::seconds(0);
  const double seconds = std::ceil((1 - level) * 60 / static_cast<double>(allowed));
  return std::chrono::seconds(static_cast<std::int64_t>(std::clamp(seconds, 1.0, 1e9)));
}

void RateLimiter::set(const std::vector<std::pair<int, RateLimits>>& tenants, Time now) {
  std::map<int, Entry> kept;
  for (const auto& [tenant, limits] : tenants) {
    if (limits == RateLimits()) continue;
    Entry& entry = kept[tenant];
    if (const auto old = tenants_.find(tenant); old != tenants_.end()) entry = old->second;
    entry.requests.set(limits.requests_per_minute, now);
    entry.tokens.set(limits.tokens_per_minute, now);
    entry.concurrent = limits.concurrent;
  }
  tenants_ = std::move(kept);
}

RateLimiter::Answer RateLimiter::take(int tenant, Time now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  Entry& entry = found->second;
  entry.requests.fill(now);
  entry.tokens.fill(now);
  if (entry.concurrent > 0 && *entry.running >= entry.concurrent)
    return {Refusal{Limit::kConcurrent, entry.concurrent, std::chrono::seconds(1)}, nullptr};
  if (const auto wait = entry.requests.wait(); wait.count() > 0)
    return {Refusal{Limit::kRequests, entry.requests.allowed, wait}, nullptr};
  if (const auto wait = entry.tokens.wait(); wait.count() > 0)
    return {Refusal{Limit::kTokens, entry.tokens.allowed, wait}, nullptr};
  if (entry.requests.allowed > 0) entry.requests.level -= 1;
  ++*entry.running;
  const auto release = [running = entry.running](const void*) { --*running; };
  return {std::nullopt, Hold(entry.running.get(), release)};
}

void RateLimiter::charge(int tenant, std::int64_t tokens, Time now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || found->second.tokens.allowed == 0 || tokens <= 0) return;
  found->second.tokens.fill(now);
  found->second.tokens.level -= static_cast<double>(tokens);
}

std::int64_t RateLimiter::running(int tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.running->load();
}

}  // namespace kvasir::tenants
