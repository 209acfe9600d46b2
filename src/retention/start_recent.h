// Start + Recent: the first `sinks` tokens and a window of recent ones, pruned in batches. The whole of `streaming`,
// and of `window` with no sinks.
//
// After each forward pass let L be the cache length and C = sinks + window; when L - C >= every + slack, the oldest
// tokens of the window side are dropped until L = C, at most `max_drop` of them at once (StreamingLLM, Xiao et al.
// 2023, section 3.2; the trigger is Lazy Pruning's, Lin).
#pragma once

#include <cstdint>

#include "kv/policy.h"

namespace kvasir {

struct StartRecentOptions {
  std::int64_t sinks = 0;
  std::int64_t window = 1;
  std::int64_t every = 1;  // 0: never prune
  std::int64_t slack = 0;
  std::int64_t max_drop = 0;  // 0: no limit
  Realign realign = Realign::kFrames;
};

// How many tokens a cache of `held` tokens drops now; 0: none. And the most that a step sees; nullopt: without bound.
std::int64_t start_recent_excess(const StartRecentOptions& options, std::int64_t held);
std::optional<std::int64_t> start_recent_bound(const StartRecentOptions& options);

class StartRecentPolicy final : public RetentionPolicy {
 public:
  StartRecentPolicy(std::string spec, const StartRecentOptions& options) : spec_(std::move(spec)), options_(options) {}

  std::string spec() const override { return spec_; }
  Realign realign() const override { return options_.realign; }
  std::optional<std::int64_t> bound() const override { return start_recent_bound(options_); }
  const StartRecentOptions& options() const { return options_; }
  int rows_together(int want) const override;
  IndexRange advance() override;
  IndexRange dropped() const override { return {options_.sinks, options_.sinks + state_.dropped}; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<StartRecentPolicy>(*this); }

 private:
  struct State {
    std::int64_t length = 0;   // tokens retained
    std::int64_t dropped = 0;  // tokens dropped so far: ids [sinks, sinks + dropped)
  };
  // One step: a token enters, its forward pass runs, then pruning.
  State step(State state) const;

  std::string spec_;
  StartRecentOptions options_;
  State state_;
};

}  // namespace kvasir
