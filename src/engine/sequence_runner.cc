#include "engine/sequence_runner.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

class Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

PassPlan plan_pass(RetentionPolicy& policy, int want) {
  PassPlan plan;
  plan.rows = policy.rows_together(want);
  plan.hidden.reserve(static_cast<std::size_t>(plan.rows));
  // What earlier passes dropped is gone from the table: only what this pass would have dropped meanwhile is hidden.
  const IndexRange gone = policy.dropped();
  for (int r = 0; r < plan.rows; ++r) {
    const IndexRange hidden = policy.advance();
    plan.hidden.push_back(hidden.end > gone.end ? hidden : IndexRange{});
  }
  return plan;
}

int next_pass_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk) {
  if (done >= prompt) return 1;
  const std::int64_t to_grid = chunk - done % chunk;
  return static_cast<int>(std::min({to_grid, prompt - done, total - done}));
}

SequenceLayout sequence_layout(const RetentionPolicy& policy) {
  SequenceLayout layout;
  if (!policy.by_table()) return layout;
  layout.scope = policy.scope();
  layout.table.dropping = LaneGroup::Dropping::kPlans;
  layout.table.original_positions = policy.positions() != PositionMode::kCompact;
  layout.table.run_capacities = policy.run_capacities();
  return layout;
}

int prompt_chunk(const RetentionPolicy& policy, int chunk) {
  if (chunk > 0) return chunk;
  return policy.by_table() ? policy.default_chunk() : kDefaultChunk;
}

Status check_positions(const RetentionPolicy& policy, int chunk, std::int64_t context) {
  if (!policy.by_table() || !policy.bound() || policy.positions() == PositionMode::kOriginal) return {};
  const std::int64_t most = *policy.bound() - 1 + prompt_chunk(policy, chunk);
  if (most <= context) return {};
  return invalid_argument(
      "policy '{}' shows a pass up to {} tokens (what it keeps and a chunk of {}), more than the trained context of "
      "{}; give it a smaller size (budget, size, max) or a smaller --chunk",
      policy.spec(), most, prompt_chunk(policy, chunk), context);
}

SequenceRunner::SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                               std::unique_ptr<RetentionPolicy> policy)
    : SequenceRunner(model, cache, std::move(policy), nullptr) {}

SequenceRunner::SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                               std::unique_ptr<RetentionPolicy> policy, std::unique_ptr<KvSequence> sequence)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      policy_(std::move(policy)),
      sequence_(sequence != nullptr ? std::move(*sequence) : cache_->new_sequence(sequence_layout(*policy_))),
      views_(static_cast<std::size_t>(sequence_.tables())),
      pruned_(policy_->dropped().end) {
  if (policy_->by_table())
    driver_ = std::make_unique<PolicyDriver>(policy_.get(), model_->config, model_->threads.get(), sequence != nullptr);
}

Status SequenceRunner::feed(std::span<const TokenId> tokens, int chunk, Logits logits, const OnPass& on_pass,
                            Source source) {
  while (!tokens.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const PassOutput pass, feed_pass(tokens, chunk, logits, source));
    tokens = tokens.subspan(static_cast<std::size_t>(pass.tokens));
    if (on_pass && !on_pass(pass.first, pass.rows, pass.logits) && !tokens.empty())
      return Status(StatusCode::kCancelled, "stopped");
  }
  return {};
}

namespace {

// Whether no exponent is all ones, as those of infinities and NaNs are.
bool all_finite(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

}  // namespace

Result<SequenceRunner::PassOutput> SequenceRunner::feed_pass(std::span<const TokenId> rest, int chunk, Logits logits,
                                                             Source source) {
  const TokenIndex end = sequence_.next_id() + static_cast<TokenIndex>(rest.size());
  Stopwatch clock;
  PolicyPass pass;
  pass.first = sequence_.next_id();
  pass.prompt = source == Source::kPrompt;
  const int want = next_pass_rows(pass.first, pass.prompt ? end : 0, end, prompt_chunk(*policy_, chunk));
  // Room first, policy after: a refused pass leaves no trace in either, and nothing behind it can fail.
  pass.rows = policy_->rows_together(want);
  KVASIR_RETURN_IF_ERROR(make_room(pass.rows));
  pass.prompt_left = pass.prompt ? end - sequence_.next_id() : 0;
  const PassPlan plan = plan_pass(*policy_, pass.rows);
  for (int t = 0; t < sequence_.tables(); ++t)
    views_[static_cast<std::size_t>(t)].build(sequence_.table(t), plan.hidden, model_->config.sliding_window);
  kept_max_ = std::max(kept_max_, sequence_.longest());
  seen_least_ = sequence_.shortest();
  times_.cache += clock.lap();
  if (watch_) watch_(sequence_);
  clock.lap();

  const bool last = sequence_.next_id() == end;
  ForwardItem item{rest.first(static_cast<std::size_t>(pass.rows)), views_, 0, tap_};
  if (logits == Logits::kAll) item.logits = pass.rows;
  if (logits == Logits::kLast && last) item.logits = 1;
  if (driver_ != nullptr) {
    driver_->begin_pass(pass, tap_);
    item.observer = driver_->listens() ? driver_.get() : nullptr;
  }
  const double observing = driver_ != nullptr ? driver_->seconds() : 0;
  const std::span<const float> out = model_->transformer->forward(cache_->pool(), {&item, 1});
  const double observed = driver_ != nullptr ? driver_->seconds() - observing : 0;
  times_.forward += clock.lap() - observed;
  times_.cache += observed;

  if (!all_finite(out)) return data_loss("the model's output is not a number; the file is damaged");
  prune();
  times_.cache += clock.lap();
  return PassOutput{pass.rows, sequence_.next_id() - item.logits, item.logits, out};
}

Status SequenceRunner::make_room(int rows) {
  if (policy_->realign() == Realign::kRotate) {
    // Keys that this pass's prune will rotate must be the sequence's own.
    const std::unique_ptr<RetentionPolicy> ahead = policy_->clone();
    for (int r = 0; r < rows; ++r) ahead->advance();
    const IndexRange dropped = ahead->dropped();
    if (dropped.end > policy_->dropped().end) KVASIR_RETURN_IF_ERROR(sequence_.group().unshare_behind(dropped.end));
  }
  if (driver_ != nullptr) {
    // Before any table is changed: compaction never takes more columns than there are.
    KVASIR_RETURN_IF_ERROR(sequence_.check_room(rows, !own_pages_));
    KVASIR_RETURN_IF_ERROR(own_pages());
    prepare_tables(rows);
  }
  return sequence_.append(rows);
}

// Plans may move any token: all pages must be the sequence's own.
Status SequenceRunner::own_pages() {
  if (own_pages_ || driver_ == nullptr) return {};
  for (int t = 0; t < sequence_.tables(); ++t) KVASIR_RETURN_IF_ERROR(sequence_.table(t).unshare_behind(0));
  own_pages_ = true;
  return {};
}

void SequenceRunner::prepare_tables(int rows) {
  const bool leaves_context = sequence_.next_id() + rows > model_->config.context;
  for (int t = 0; t < sequence_.tables(); ++t) {
    LaneGroup& table = sequence_.table(t);
    const auto mover = [&](std::span<const LaneGroup::SlotCopy> copies) { move_slots(table, copies); };
    if (policy_->positions() == PositionMode::kAuto && leaves_context) table.make_positions_compact(mover);
    // Every row rotates its query for every frame.
    constexpr std::size_t kManyFrames = 4;
    if (rows > 8 && table.runs() == 1 && table.frames().size() > kManyFrames) table.compact(mover);
  }
}

void SequenceRunner::move_slots(const LaneGroup& table, std::span<const LaneGroup::SlotCopy> copies) {
  model_->transformer->move_slots(cache_->pool(), table.lanes(), copies);
}

void SequenceRunner::prune() {
  if (driver_ == nullptr) return prune_range();
  driver_->end_pass(sequence_, [&](const LaneGroup& table, std::span<const LaneGroup::SlotCopy> copies) {
    move_slots(table, copies);
  });
}

void SequenceRunner::prune_range() {
  LaneGroup& group = sequence_.group();
  const IndexRange dropped = policy_->dropped();
  if (dropped.end == pruned_) return;
  pruned_ = dropped.end;
  const std::int64_t shift = policy_->realign() == Realign::kRotate ? group.retained_in(dropped) : 0;
  if (shift > 0) model_->transformer->rotate_keys_behind(cache_->pool(), group, dropped.end, -shift);
  // One growing hole always fits the table.
  KVASIR_CHECK(group.drop(dropped, policy_->realign()).ok());
}

std::optional<TokenIndex> SequenceRunner::first_dropped() const {
  if (driver_ != nullptr) return driver_->first_dropped();
  const IndexRange dropped = policy_->dropped();
  return dropped.empty() ? std::nullopt : std::optional(dropped.begin);
}

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::fork() {
  KVASIR_ASSIGN_OR_RETURN(KvSequence sequence, cache_->fork(sequence_));
  auto held = std::make_unique<KvSequence>(std::move(sequence));
  std::unique_ptr<SequenceRunner> copy(new SequenceRunner(model_, cache_, policy_->clone(), std::move(held)));
  copy->kept_max_ = kept_max_;
  copy->seen_least_ = seen_least_;
  copy->pruned_ = pruned_;
  if (driver_ != nullptr) copy->driver_->set_first_dropped(driver_->first_dropped());
  own_pages_ = copy->own_pages_ = false;
  return copy;
}

}  // namespace kvasir
