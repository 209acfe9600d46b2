#include "retention/composed.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/status.h"
#include "retention/policy_spec.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostReductions = 8;

// One of the two policies, with its capabilities and the places of its masses among those of the composition.
class Part {
 public:
  Part(std::unique_ptr<RetentionPolicy> policy, std::span<const MassReduction> all) : Part(std::move(policy)) {
    for (const MassReduction reduction : reductions_of(*policy_))
      sources_.push_back(std::ranges::find(all, reduction) - all.begin());
    KVASIR_CHECK(joins_ != nullptr && sources_.size() <= kMostReductions);
  }
  Part(const Part& other) : Part(other.policy_->clone()) { sources_ = other.sources_; }
  Part& operator=(const Part&) = delete;

  RetentionPolicy* operator->() { return policy_.get(); }
  const RetentionPolicy* operator->() const { return policy_.get(); }
  RetentionPolicy& operator*() { return *policy_; }
  const RetentionPolicy& operator*() const { return *policy_; }

  bool wants(const PolicyChunk& chunk, int row, int reduction) const {
    for (int own = 0; own < std::ssize(sources_); ++own)
      if (sources_[static_cast<std::size_t>(own)] == reduction && masses_->wants(chunk, row, own)) return true;
    return false;
  }

  void observe(const PolicyChunk& chunk, int table, int row, std::span<const std::span<const double>> masses) {
    if (masses_ == nullptr || !masses_->wants_row(chunk, row)) return;
    std::array<std::span<const double>, kMostReductions> own;
    std::ranges::transform(sources_, own.begin(),
                           [&](auto source) { return masses[static_cast<std::size_t>(source)]; });
    masses_->observe(chunk, table, row, std::span(own).first(sources_.size()));
  }

  void forget(int table, std::span<const IndexRange> dropped) { joins_->forget(table, dropped); }

  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) {
    if (kv_ != nullptr) kv_->read_kv(chunk, table, kv.only(kv_->wants_keys(), kv_->wants_values()));
  }

  bool wants_held(const PolicyChunk& chunk, int table) const {
    return held_ != nullptr && held_->wants_held(chunk, table);
  }
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) {
    if (wants_held(chunk, table)) held_->read_held(chunk, table, kv);
  }

  bool projects_values() const { return held_ != nullptr && held_->projects_values(); }

  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const {
    return held_ != nullptr ? held_->held_scratch_bytes(layout, tokens) : 0;
  }

  bool wants_queries(const PolicyChunk& chunk, int row) const {
    return queries_ != nullptr && queries_->wants_queries(chunk, row);
  }
  void read_queries(const PolicyChunk& chunk, int table, const QuerySums& queries) {
    if (queries_ != nullptr) queries_->read_queries(chunk, table, queries);
  }
  bool biases(int table, int lane, std::span<float> biases) const {
    return weights_ != nullptr && weights_->biases(table, lane, biases);
  }

 private:
  explicit Part(std::unique_ptr<RetentionPolicy> policy)
      : policy_(std::move(policy)),
        masses_(policy_->as<ObservesMasses>()),
        kv_(policy_->as<ReadsKv>()),
        held_(policy_->as<ReadsHeldKv>()),
        queries_(policy_->as<SumsQueries>()),
        weights_(policy_->as<WeighsSlots>()),
        joins_(policy_->as<JoinsAnother>()) {}

  std::unique_ptr<RetentionPolicy> policy_;
  ObservesMasses* masses_;  // may be null, as the next four
  ReadsKv* kv_;
  ReadsHeldKv* held_;
  SumsQueries* queries_;
  const WeighsSlots* weights_;
  JoinsAnother* joins_;
  std::vector<std::ptrdiff_t> sources_;  // [its reductions]
};

// Whether a policy reads keys, or values.
bool wants_side(const RetentionPolicy& policy, bool (ReadsKv::*side)() const) {
  const ReadsKv* kv = policy.as<ReadsKv>();
  return kv != nullptr && (kv->*side)();
}

// At most one part sums queries, since the other would be shown rows that it does not want, and at most one weighs
// slots.
class ComposedPolicy final : public RetentionPolicy,
                             public ObservesMasses,
                             public ReadsKv,
                             public ReadsHeldKv,
                             public SumsQueries,
                             public WeighsSlots,
                             public KnowsPromptEnd,
                             public DependsOnModel {
 public:
  ComposedPolicy(PolicyTraits traits, std::vector<MassReduction> all, std::unique_ptr<RetentionPolicy> first,
                 std::unique_ptr<RetentionPolicy> second)
      : RetentionPolicy(std::move(traits)),
        ObservesMasses(std::move(all)),
        ReadsKv(wants_side(*first, &ReadsKv::wants_keys) || wants_side(*second, &ReadsKv::wants_keys),
                wants_side(*first, &ReadsKv::wants_values) || wants_side(*second, &ReadsKv::wants_values)),
        first_(std::move(first), reductions()),
        second_(std::move(second), reductions()) {}

  // A prompt is held whole until its end.
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<ComposedPolicy>(*this); }

  Status check_model(const PolicyModel& model) const override {
    KVASIR_RETURN_IF_ERROR(kvasir::check_model(*first_, model));
    return kvasir::check_model(*second_, model);
  }
  std::string remark(int kv_heads) const override {
    std::vector<std::string> remarks;
    for (const Part* part : {&first_, &second_})
      if (const DependsOnModel* depends = (*part)->as<DependsOnModel>(); depends != nullptr)
        if (std::string remark = depends->remark(kv_heads); !remark.empty()) remarks.push_back(std::move(remark));
    return fmt::format("{}", fmt::join(remarks, "; "));
  }

  void begin(const TableLayout& layout) override {
    tables_ = layout.tables();
    first_->begin(layout);
    second_->begin(layout);
  }

  TokenIndex seen() const override { return first_->seen(); }
  void retained(int table, int run, std::vector<IndexRange>& ranges) const override {
    first_->retained(table, run, ranges);
  }
  std::int64_t exact_prefix(std::int64_t n) const override {
    return std::min(first_->exact_prefix(n), second_->exact_prefix(n));
  }

  std::int64_t shared_prefix(std::int64_t n) const override {
    return std::min(kvasir::shared_prefix(*first_, n), kvasir::shared_prefix(*second_, n));
  }
  void move_prompt_end(TokenIndex end) override {
    kvasir::move_prompt_end(*first_, end);
    kvasir::move_prompt_end(*second_, end);
  }

  bool wants(const PolicyChunk& chunk, int row, int reduction) const override {
    return first_.wants(chunk, row, reduction) || second_.wants(chunk, row, reduction);
  }

  void observe(const PolicyChunk& chunk, int table, int row, std::span<const std::span<const double>> masses) override {
    first_.observe(chunk, table, row, masses);
    second_.observe(chunk, table, row, masses);
  }

  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) override {
    first_.read_kv(chunk, table, kv);
    second_.read_kv(chunk, table, kv);
  }

  bool wants_held(const PolicyChunk& chunk, int table) const override {
    return first_.wants_held(chunk, table) || second_.wants_held(chunk, table);
  }
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) override {
    first_.read_held(chunk, table, kv);
    second_.read_held(chunk, table, kv);
  }

  bool projects_values() const override { return first_.projects_values() || second_.projects_values(); }

  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    return std::max(first_.held_scratch_bytes(layout, tokens), second_.held_scratch_bytes(layout, tokens));
  }

  bool wants_queries(const PolicyChunk& chunk, int row) const override {
    return first_.wants_queries(chunk, row) || second_.wants_queries(chunk, row);
  }
  void read_queries(const PolicyChunk& chunk, int table, const QuerySums& queries) override {
    first_.read_queries(chunk, table, queries);
    second_.read_queries(chunk, table, queries);
  }
  bool biases(int table, int lane, std::span<float> biases) const override {
    return first_.biases(table, lane, biases) || second_.biases(table, lane, biases);
  }

  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    first_->end_chunk(chunk, table, plan);
    const bool first_dropped = !plan.drop.empty();
    std::vector<std::int64_t> held = std::move(plan.held);  // the second does not know yet what the first dropped
    plan.held.clear();
    second_->end_chunk(chunk, table, plan);
    if (chunk.prompt) plan.held = std::move(held);
    tell_other(first_dropped, table, plan);
  }

  void finish_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    first_->finish_chunk(chunk, table, plan);
    const bool first_dropped = !plan.drop.empty();
    second_->finish_chunk(chunk, table, plan);
    tell_other(first_dropped, table, plan);
  }

  std::uint64_t state_bytes() const override { return first_->state_bytes() + second_->state_bytes(); }
  std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const override {
    return first_->most_state_bytes(layout, tokens, chunk) + second_->most_state_bytes(layout, tokens, chunk);
  }

 private:
  template <class Capability>
  const ComposedPolicy* if_a_part_has() const {
    return first_->as<Capability>() != nullptr || second_->as<Capability>() != nullptr ? this : nullptr;
  }
  Capabilities capabilities() const override {
    return Capabilities()
        .with<KnowsPromptEnd>(this)
        .with<DependsOnModel>(if_a_part_has<DependsOnModel>())
        .with<ObservesMasses>(if_a_part_has<ObservesMasses>())
        .with<ReadsKv>(if_a_part_has<ReadsKv>())
        .with<ReadsHeldKv>(if_a_part_has<ReadsHeldKv>())
        .with<SumsQueries>(if_a_part_has<SumsQueries>())
        .with<WeighsSlots>(if_a_part_has<WeighsSlots>());
  }

  // Only one part drops tokens in a chunk.
  void tell_other(bool first_dropped, int table, const KeepPlan& plan) {
    if (!plan.drop.empty()) (first_dropped ? second_ : first_).forget(table, plan.drop);
  }

  void save_state(ByteWriter& out) const override {
    first_->save(out);
    second_->save(out);
  }
  bool restore_state(ByteReader& in) override {
    return first_->restore(in).ok() && second_->restore(in).ok() && agree();
  }

  // Whether both hold the same tokens in every table.
  bool agree() const {
    std::vector<IndexRange> first, second;
    for (int table = 0; table < tables_; ++table) {
      first.clear();
      second.clear();
      first_->retained(table, 0, first);
      second_->retained(table, 0, second);
      if (first != second) return false;
    }
    return first_->seen() == second_->seen();
  }

  Part first_;
  Part second_;
  int tables_ = 0;
};

Result<std::unique_ptr<RetentionPolicy>> part_of(const RetentionPolicy& policy, PolicyPart part) {
  if (const JoinsAnother* joins = policy.as<JoinsAnother>()) return joins->as_part(part);
  return invalid_argument("policy '{}' cannot be part of a composition; use it alone", policy.traits().spec);
}

// Whether the policy has the option pos.
bool chooses_positions(const PolicyTraits& traits) {
  const Result<PolicyOptions> options = PolicyOptions::parse(traits.spec);
  return options.ok() && options->accepts("pos");
}

}  // namespace

Result<std::unique_ptr<RetentionPolicy>> compose(const RetentionPolicy& first, const RetentionPolicy& second) {
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> a, part_of(first, PolicyPart::kAtPromptEnd));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> b, part_of(second, PolicyPart::kWhileGenerating));
  const PolicyTraits& ta = a->traits();
  const PolicyTraits& tb = b->traits();
  if (ta.positions != tb.positions && ta.positions != PositionMode::kAuto && tb.positions != PositionMode::kAuto)
    return invalid_argument("policies '{}' and '{}' want different positions; give {} pos=auto", ta.spec, tb.spec,
                            !chooses_positions(ta)   ? fmt::format("'{}'", tb.spec)
                            : !chooses_positions(tb) ? fmt::format("'{}'", ta.spec)
                                                     : "one of them");
  const auto refuse = [&](std::string_view what) {
    return invalid_argument("policies '{}' and '{}' both {}; only one part of a composition can", ta.spec, tb.spec,
                            what);
  };
  if (a->as<SumsQueries>() != nullptr && b->as<SumsQueries>() != nullptr) return refuse("look at sums of queries");
  if (a->as<WeighsSlots>() != nullptr && b->as<WeighsSlots>() != nullptr) return refuse("give tokens a bias");
  PolicyTraits traits{.spec = ta.spec + "+" + tb.spec,
                      .scope = std::max(ta.scope, tb.scope),
                      .positions = ta.positions == PositionMode::kAuto ? tb.positions : ta.positions,
                      .chunk = ta.chunk,
                      .compacts = true,
                      .holds_prompts = true};
  std::vector<MassReduction> reductions = reductions_of(*a);
  for (const MassReduction reduction : reductions_of(*b))
    if (std::ranges::find(reductions, reduction) == reductions.end()) reductions.push_back(reduction);
  return {std::make_unique<ComposedPolicy>(std::move(traits), std::move(reductions), std::move(a), std::move(b))};
}

}  // namespace kvasir
