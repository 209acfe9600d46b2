#include "retention/composed.h"

#include <fmt/core.h>

#include "base/status.h"
#include "retention/scored.h"
#include "retention/start_recent.h"

namespace kvasir {
namespace {

using Acts = ScoredPolicy::Acts;

// full, window and streaming for tables that are no ranges: the first and the last of what a table holds.
class TableStartRecent final : public ScoredPolicy {
 public:
  TableStartRecent(Traits traits, const StartRecentOptions& options)
      : ScoredPolicy(std::move(traits)), options_(options) {}

  std::optional<std::int64_t> bound() const override { return start_recent_bound(options_); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<TableStartRecent>(*this); }

 private:
  void prune(TokenTable& table, const Step&) override {
    const std::int64_t drop = start_recent_excess(options_, table.size());
    if (drop > 0) table.drop_range(options_.sinks, options_.sinks + drop);
  }

  StartRecentOptions options_;
};

class ComposedPolicy final : public RetentionPolicy {
 public:
  ComposedPolicy(std::unique_ptr<ScoredPolicy> first, std::unique_ptr<ScoredPolicy> second, PositionMode positions)
      : first_(std::move(first)), second_(std::move(second)), positions_(positions) {
    first_->act_only(Acts::kAtPromptEnd);
    second_->act_only(Acts::kWhileGenerating);
  }

  std::string spec() const override { return first_->spec() + "+" + second_->spec(); }
  // A prompt is held whole until its end.
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  PositionMode positions() const override { return positions_; }
  int default_chunk() const override { return first_->default_chunk(); }
  PolicyScope scope() const override { return std::max(first_->scope(), second_->scope()); }
  MassReduction reduction() const override {
    return first_->reduction() != MassReduction::kNone ? first_->reduction() : second_->reduction();
  }
  std::unique_ptr<RetentionPolicy> clone() const override;

  bool wants_row(const PolicyPass& pass, int row) const override {
    const auto wants = [&](const ScoredPolicy& part) {
      return part.reduction() != MassReduction::kNone && part.wants_row(pass, row);
    };
    return wants(*first_) || wants(*second_);
  }

  void begin(const TableLayout& layout) override {
    heads_ = layout.heads;
    scaled_.assign(static_cast<std::size_t>(layout.tables()), {});
    first_->begin(layout);
    second_->begin(layout);
  }

  void observe(const PolicyPass& pass, int table, int row, std::span<const double> mass) override {
    observe(*first_, pass, table, row, mass);
    observe(*second_, pass, table, row, mass);
  }

  void end_pass(const PolicyPass& pass, int table, KeepPlan& plan) override {
    first_->end_pass(pass, table, plan);
    const bool first_dropped = !plan.drop.empty();
    std::vector<std::int64_t> held = std::move(plan.held);  // the second one has not heard yet what is dropped
    plan.held.clear();
    second_->end_pass(pass, table, plan);
    if (pass.prompt) plan.held = std::move(held);
    tell_other(first_dropped, table, plan);
  }

  void finish_pass(const PolicyPass& pass, int table, KeepPlan& plan) override {
    first_->finish_pass(pass, table, plan);
    const bool first_dropped = !plan.drop.empty();
    second_->finish_pass(pass, table, plan);
    tell_other(first_dropped, table, plan);
  }

 private:
  void observe(ScoredPolicy& part, const PolicyPass& pass, int table, int row, std::span<const double> mass) {
    if (part.reduction() == MassReduction::kNone) return;
    if (part.reduction() == reduction()) return part.observe(pass, table, row, mass);
    const double factor = part.reduction() == MassReduction::kSum ? heads_ : 1.0 / heads_;
    std::vector<double>& scaled = scaled_[static_cast<std::size_t>(table)];
    scaled.resize(mass.size());
    for (std::size_t i = 0; i < mass.size(); ++i) scaled[i] = mass[i] * factor;
    part.observe(pass, table, row, scaled);
  }

  // Only one of them acts in a pass.
  void tell_other(bool first_dropped, int table, const KeepPlan& plan) {
    if (!plan.drop.empty()) (first_dropped ? *second_ : *first_).forget(table, plan.drop);
  }

  std::unique_ptr<ScoredPolicy> first_;
  std::unique_ptr<ScoredPolicy> second_;
  PositionMode positions_;
  int heads_ = 1;
  std::vector<std::vector<double>> scaled_;  // by table, kept for its memory
};

// Null if it is no ScoredPolicy; then `policy` keeps it.
std::unique_ptr<ScoredPolicy> take_scored(std::unique_ptr<RetentionPolicy>& policy) {
  auto* scored = dynamic_cast<ScoredPolicy*>(policy.get());
  if (scored != nullptr) static_cast<void>(policy.release());
  return std::unique_ptr<ScoredPolicy>(scored);
}

std::unique_ptr<RetentionPolicy> ComposedPolicy::clone() const {
  auto first = first_->clone(), second = second_->clone();
  auto copy = std::make_unique<ComposedPolicy>(take_scored(first), take_scored(second), positions_);
  copy->heads_ = heads_;
  copy->scaled_.resize(scaled_.size());
  return copy;
}

Status check_composable(const RetentionPolicy& policy, const ScoredPolicy* scored) {
  if (scored != nullptr && scored->composable()) return {};
  return invalid_argument(
      "policy '{}' cannot be part of a composition: every token has to pass through it; use it alone", policy.spec());
}

// full, window and streaming by table.
Result<std::unique_ptr<ScoredPolicy>> by_table(const RetentionPolicy& policy) {
  ScoredPolicy::Traits traits{.spec = policy.spec(), .scope = PolicyScope::kSequence};
  if (const auto* start_recent = dynamic_cast<const StartRecentPolicy*>(&policy)) {
    if (policy.realign() == Realign::kRotate)
      return invalid_argument("policy '{}': realign=rotate does not go with a composition; leave it away",
                              policy.spec());
    traits.positions = PositionMode::kCompact;
    return {std::make_unique<TableStartRecent>(std::move(traits), start_recent->options())};
  }
  if (policy.spec() != "full")
    return invalid_argument("policy '{}' cannot be part of a composition; use it alone", policy.spec());
  return {std::make_unique<TableStartRecent>(std::move(traits), StartRecentOptions{.every = 0})};
}

bool convertible(MassReduction a, MassReduction b) {
  const auto linear = [](MassReduction r) { return r == MassReduction::kSum || r == MassReduction::kMean; };
  return a == b || a == MassReduction::kNone || b == MassReduction::kNone || (linear(a) && linear(b));
}

}  // namespace

Result<std::optional<ComposedSpec>> split_composed(std::string_view text) {
  std::optional<ComposedSpec> out;
  for (std::size_t at = text.find('+'); at != std::string_view::npos; at = text.find('+', at + 1)) {
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (next < 'a' || next > 'z') continue;
    if (out)
      return invalid_argument(
          "policy spec '{}': at most two policies can be joined, one for the end of a prompt and one for generation",
          text);
    out = ComposedSpec{text.substr(0, at), text.substr(at + 1)};
  }
  return out;
}

Result<std::unique_ptr<RetentionPolicy>> compose(std::unique_ptr<RetentionPolicy> first,
                                                 std::unique_ptr<RetentionPolicy> second) {
  std::unique_ptr<ScoredPolicy> a;
  if (first->by_table()) {
    a = take_scored(first);
    KVASIR_RETURN_IF_ERROR(check_composable(a ? *a : *first, a.get()));
  } else {
    KVASIR_ASSIGN_OR_RETURN(a, by_table(*first));
  }
  std::unique_ptr<ScoredPolicy> b;
  if (second->by_table()) {
    b = take_scored(second);
    KVASIR_RETURN_IF_ERROR(check_composable(b ? *b : *second, b.get()));
  } else {
    KVASIR_ASSIGN_OR_RETURN(b, by_table(*second));
  }
  if (b->acts() == Acts::kAtPromptEnd)
    return invalid_argument("policy '{}' acts at the end of a prompt only and cannot come second; put it before the +",
                            b->spec());
  if (!convertible(a->reduction(), b->reduction()))
    return invalid_argument(
        "policies '{}' and '{}' reduce the attention of heads in ways that do not convert into each "
        "other (sum and mean do); choose others",
        a->spec(), b->spec());
  const PositionMode pa = a->positions(), pb = b->positions();
  if (pa != pb && pa != PositionMode::kAuto && pb != PositionMode::kAuto)
    return invalid_argument("policies '{}' and '{}' want different positions; give one of them pos=auto", a->spec(),
                            b->spec());
  const PositionMode positions = pa == PositionMode::kAuto ? pb : pa;
  return {std::make_unique<ComposedPolicy>(std::move(a), std::move(b), positions)};
}

}  // namespace kvasir
