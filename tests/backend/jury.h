// Whether a policy's decisions are near ties: a policy beside which copies of it decide from masses that are off by a
// little. Where all agree, another backend's rounding cannot change what is kept.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "retention/policy.h"

namespace kvasir::test {

// What became of a sequence under a jury.
struct Verdicts {
  std::vector<std::vector<double>> masses;  // [table]: all that were observed, in order
  int decisions = 0;                        // plans that were not empty
  int disagreements = 0;                    // jurors who decided otherwise, each counted once
};

class Jury final : public RetentionPolicy, public ObservesMasses {
 public:
  static constexpr int kJurors = 6;

  // Each juror sees every mass `distance` higher or lower, at random; zeros (beyond a window) stay, as no rounding
  // changes them. `verdicts` outlives the policy.
  Jury(std::unique_ptr<RetentionPolicy> policy, double distance, Verdicts* verdicts)
      : RetentionPolicy(policy->traits()),
        ObservesMasses(reductions_of(*policy)),
        policy_(std::move(policy)),
        distance_(distance),
        verdicts_(*verdicts) {}

  std::optional<std::int64_t> bound() const override { return policy_->bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return policy_->clone(); }
  TokenIndex seen() const override { return policy_->seen(); }
  void retained(int table, int run, std::vector<IndexRange>& ranges) const override {
    policy_->retained(table, run, ranges);
  }
  std::int64_t exact_prefix(std::int64_t n) const override { return policy_->exact_prefix(n); }
  bool wants(const PolicyChunk& chunk, int row, int reduction) const override {
    return policy_->as<ObservesMasses>()->wants(chunk, row, reduction);
  }
  std::uint64_t state_bytes() const override { return policy_->state_bytes(); }
  std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const override {
    return policy_->most_state_bytes(layout, tokens, chunk);
  }

  void begin(const TableLayout& layout) override {
    for (int j = 0; j < kJurors; ++j) jurors_.push_back(policy_->clone());
    verdicts_.masses.resize(static_cast<std::size_t>(layout.tables()));
    policy_->begin(layout);
    for (const auto& juror : jurors_) juror->begin(layout);
  }

  void observe(const PolicyChunk& chunk, int table, int row, std::span<const std::span<const double>> masses) override {
    policy_->as<ObservesMasses>()->observe(chunk, table, row, masses);
    std::vector<double>& seen = verdicts_.masses.at(static_cast<std::size_t>(table));
    for (const auto& mass : masses) seen.insert(seen.end(), mass.begin(), mass.end());
    for (const auto& juror : jurors_) {
      std::vector<std::vector<double>> off;
      for (const auto& mass : masses) {
        off.emplace_back(mass.begin(), mass.end());
        for (double& value : off.back())
          if (value != 0) value = std::max(0.0, value + (next_bit() ? distance_ : -distance_));
      }
      const std::vector<std::span<const double>> spans(off.begin(), off.end());
      juror->as<ObservesMasses>()->observe(chunk, table, row, spans);
    }
  }

  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    decide(plan, [&](RetentionPolicy& policy, KeepPlan& own) { policy.end_chunk(chunk, table, own); });
  }
  void finish_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    decide(plan, [&](RetentionPolicy& policy, KeepPlan& own) { policy.finish_chunk(chunk, table, own); });
  }

 private:
  Capabilities capabilities() const override {
    return Capabilities()
        .with<ObservesMasses>(reductions().empty() ? nullptr : this)
        .with<HidesRanges>(std::as_const(*policy_).as<HidesRanges>())
        .with<LeavesUnread>(std::as_const(*policy_).as<LeavesUnread>());
  }
  void save_state(ByteWriter& out) const override { policy_->save(out); }
  bool restore_state(ByteReader&) override { return false; }

  // A juror who disagrees holds other tokens from then on, and leaves.
  template <class Ask>
  void decide(KeepPlan& plan, const Ask& ask) {
    ask(*policy_, plan);
    verdicts_.decisions += plan.empty() ? 0 : 1;
    const auto gone = std::erase_if(jurors_, [&](const auto& juror) {
      KeepPlan own;
      ask(*juror, own);
      return own.drop != plan.drop || own.realign != plan.realign ||
             !std::ranges::equal(own.moves, plan.moves, [](const KeepPlan::Move& a, const KeepPlan::Move& b) {
               return a.index == b.index && a.run == b.run;
             });
    });
    verdicts_.disagreements += static_cast<int>(gone);
  }

  // Steele, Lea and Flood 2014 (SplitMix).
  bool next_bit() {
    std::uint64_t x = random_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x >> 63) != 0;
  }

  std::unique_ptr<RetentionPolicy> policy_;
  double distance_;
  Verdicts& verdicts_;
  std::vector<std::unique_ptr<RetentionPolicy>> jurors_;
  std::uint64_t random_ = 1;
};

}  // namespace kvasir::test
