#include "retention/start_recent.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {

void StartRecentOptions::protect(std::int64_t tokens) {
  const std::int64_t more = std::max<std::int64_t>(tokens - sinks, 0);
  sinks += more;
  window -= more;
}

std::int64_t StartRecentOptions::excess(std::int64_t held) const {
  const std::int64_t above = held - (sinks + window);
  if (every == 0 || above < every + slack) return 0;
  return max_drop > 0 ? std::min(above, max_drop) : above;
}

std::optional<std::int64_t> StartRecentOptions::bound() const {
  if (every == 0) return std::nullopt;
  return sinks + window + every + slack;
}

std::int64_t StartRecentOptions::undropped(std::int64_t n) const {
  const std::optional<std::int64_t> most = bound();
  return std::max<std::int64_t>(most ? std::min(n, *most - 1) : n, 0);
}

namespace {

PolicyTraits traits_of(std::string spec, const StartRecentOptions& options) {
  PolicyTraits traits;
  traits.spec = std::move(spec);
  traits.realign = options.realign;
  if (options.every > 0) traits.sinks = options.sinks;
  if (options.drops_thoughts) traits.sinks = 1;  // at least; tokens before thoughts and behind them are two frames
  if (options.every > 0 && options.realign == Realign::kRotate) {
    const std::int64_t drop = options.max_drop > 0 ? std::min(options.every, options.max_drop) : options.every;
    traits.rotations = options.window / drop;
  }
  return traits;
}

// The part in a composition, where tables are not ranges: keeps the first and the last tokens of what a table holds.
class StartRecentPart final : public ScoredPolicy {
 public:
  StartRecentPart(const Traits& traits, const StartRecentOptions& options) : ScoredPolicy(traits), options_(options) {}

  std::optional<std::int64_t> bound() const override { return options_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<StartRecentPart>(*this); }

 private:
  std::int64_t undropped(std::int64_t n) const override { return options_.undropped(n); }
  void prune(ScoreList& list, const Step&) override {
    const std::int64_t drop = options_.excess(list.size());
    if (drop > 0) list.drop_range(options_.sinks, options_.sinks + drop);
  }

  StartRecentOptions options_;
};

}  // namespace

StartRecentPolicy::StartRecentPolicy(std::string spec, const StartRecentOptions& options)
    : RetentionPolicy(traits_of(std::move(spec), options)), options_(options) {}

StartRecentPolicy::State StartRecentPolicy::step(State state) const {
  ++state.length;
  const std::int64_t drop = options_.excess(state.length);
  state.length -= drop;
  state.dropped += drop;
  return state;
}

IndexRange StartRecentPolicy::dropped_between(const State& before, const State& after) const {
  if (after.dropped == before.dropped) return {};
  return {options_.sinks + before.dropped, options_.sinks + after.dropped};
}

void StartRecentPolicy::retained(int, int run, std::vector<IndexRange>& ranges) const {
  if (run != 0 || seen() == 0) return;
  if (state_.dropped == 0) return ranges.push_back({0, seen()});
  if (options_.sinks > 0) ranges.push_back({0, options_.sinks});
  ranges.push_back({options_.sinks + state_.dropped, seen()});
}

int StartRecentPolicy::chunk_rows(int want) const {
  // The first drop behind sinks opens a second frame; rotating keys changes them for all rows that follow.
  const bool until_next = options_.realign == Realign::kRotate;
  const bool until_first = options_.sinks > 0 && state_.dropped == 0;
  if (!until_next && !until_first) return want;
  State state = state_;
  for (int rows = 1; rows < want; ++rows) {
    state = step(state);
    if (state.dropped != state_.dropped) return rows;
  }
  return want;
}

void StartRecentPolicy::hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const {
  KVASIR_CHECK(chunk.first == seen() && std::ssize(rows) == chunk.rows);
  State state = state_;
  for (IndexRange& row : rows) {
    row = dropped_between(state_, state);
    state = step(state);
  }
}

IndexRange StartRecentPolicy::will_drop(const PolicyChunk& chunk) const {
  KVASIR_CHECK(chunk.first == seen());
  State state = state_;
  for (int row = 0; row < chunk.rows; ++row) state = step(state);
  return dropped_between(state_, state);
}

void StartRecentPolicy::end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) {
  KVASIR_CHECK(chunk.first == seen() && table == 0);
  const State before = state_;
  for (int row = 0; row < chunk.rows; ++row) {
    state_ = step(state_);
    if (chunk.rows > 1) plan.held.push_back(state_.length);
  }
  const IndexRange dropped = dropped_between(before, state_);
  if (!dropped.empty()) plan.add_drop(dropped);
  plan.realign = options_.realign;
}

void StartRecentPolicy::drop_thoughts(IndexRange thoughts, KeepPlan& plan) {
  KVASIR_CHECK(options_.drops_thoughts && state_.dropped == 0);
  KVASIR_CHECK(!thoughts.empty() && thoughts.begin > 0 && thoughts.end <= state_.length);
  options_.sinks = thoughts.begin;
  state_.length -= thoughts.size();
  state_.dropped = thoughts.size();
  plan.add_drop(thoughts);
}

void StartRecentPolicy::save_state(ByteWriter& out) const {
  out.put(state_.length);
  out.put(state_.dropped);
  if (options_.drops_thoughts) out.put(options_.sinks);
}

bool StartRecentPolicy::restore_state(ByteReader& in) {
  constexpr std::int64_t kMost = std::int64_t{1} << 61;
  State state;
  if (!in.get(state.length) || !in.get(state.dropped)) return false;
  if (state.length < 0 || state.length > kMost || state.dropped < 0 || state.dropped > kMost) return false;
  // A step never leaves more than one token below the trigger, nor less than the target once it has dropped.
  if (options_.drops_thoughts) {
    std::int64_t& before = options_.sinks;
    if (!in.get(before) || (state.dropped == 0 ? before != 0 : before < 1 || before > state.length)) return false;
    state_ = state;
    return true;
  }
  const std::optional<std::int64_t> bound = options_.bound();
  if (bound && state.length >= *bound) return false;
  if (state.dropped > 0 && (!bound || state.length < options_.sinks + options_.window)) return false;
  state_ = state;
  return true;
}

Result<std::unique_ptr<RetentionPolicy>> StartRecentPolicy::as_part(PolicyPart part) const {
  if (options_.drops_thoughts)
    return invalid_argument("policy '{}': thoughts=drop does not go with a composition; leave it out", traits().spec);
  if (options_.realign == Realign::kRotate)
    return invalid_argument("policy '{}': realign=rotate does not go with a composition; leave it out", traits().spec);
  const ScoredPolicy::Traits scored{.spec = traits().spec,
                                    .scope = PolicyScope::kSequence,
                                    .positions = options_.positions_as_part,
                                    .values_per_token = 0};
  return StartRecentPart(scored, options_).as_part(part);
}

}  // namespace kvasir
