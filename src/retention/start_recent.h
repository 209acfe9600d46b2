// Start + Recent: the first `sinks` tokens and a window of recent ones, pruned in batches. Implements `streaming`,
// `window` (no sinks) and `full` (never prunes).
//
// After each forward pass let L be the cache length and C = sinks + window; when L - C >= every + slack, the oldest
// tokens of the window side are dropped until L = C, at most `max_drop` of them at once (StreamingLLM, Xiao et al.
// 2023, section 3.2; the trigger is Lazy Pruning's, Lin).
#pragma once

#include <cstdint>

#include "retention/policy.h"

namespace kvasir {

struct StartRecentOptions {
  std::int64_t sinks = 0;
  std::int64_t window = 1;
  std::int64_t every = 1;  // 0: never prune
  std::int64_t slack = 0;
  std::int64_t max_drop = 0;  // 0: no limit
  Realign realign = Realign::kFrames;
  PositionMode positions_as_part = PositionMode::kCompact;  // in a composition
  bool drops_thoughts = false;                              // REQUIRES: every == 0

  // Makes at least the first `tokens` sinks, at the expense of the window. REQUIRES: tokens < sinks + window.
  void protect(std::int64_t tokens);
  // Returns how many tokens a cache of `held` tokens drops now.
  std::int64_t excess(std::int64_t held) const;
  // Returns the most tokens that a step sees; nullopt: no bound.
  std::optional<std::int64_t> bound() const;
  // Returns the largest m <= n such that nothing is dropped until m tokens have come.
  std::int64_t undropped(std::int64_t n) const;
};

class StartRecentPolicy final : public RetentionPolicy, public HidesRanges, public JoinsAnother, public DropsThoughts {
 public:
  StartRecentPolicy(std::string spec, const StartRecentOptions& options);

  std::optional<std::int64_t> bound() const override { return options_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<StartRecentPolicy>(*this); }
  TokenIndex seen() const override { return state_.length + state_.dropped; }
  void retained(int table, int run, std::vector<IndexRange>& ranges) const override;
  int chunk_rows(int want) const override;
  void hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const override;
  IndexRange will_drop(const PolicyChunk& chunk) const override;
  std::int64_t exact_prefix(std::int64_t n) const override { return options_.undropped(n); }
  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override;
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const override;
  void forget(int, std::span<const IndexRange>) override {}  // never a part itself
  void drop_thoughts(IndexRange thoughts, KeepPlan& plan) override;

 private:
  struct State {
    std::int64_t length = 0;   // tokens retained
    std::int64_t dropped = 0;  // tokens dropped so far: [sinks, sinks + dropped)
  };
  // One step: a token enters, its forward pass runs, then pruning.
  State step(State state) const;
  // Returns the tokens dropped between two states.
  IndexRange dropped_between(const State& before, const State& after) const;
  Capabilities capabilities() const override {
    return Capabilities()
        .with<JoinsAnother>(this)
        .with<HidesRanges>(options_.every > 0 ? this : nullptr)
        .with<DropsThoughts>(options_.drops_thoughts ? this : nullptr);
  }
  void save_state(ByteWriter& out) const override;
  bool restore_state(ByteReader& in) override;

  StartRecentOptions options_;  // sinks: once thoughts were dropped, the tokens before them
  State state_;
};

}  // namespace kvasir
