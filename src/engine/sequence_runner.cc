#include "engine/sequence_runner.h"

#include <algorithm>
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
  const IdRange gone = policy.dropped();
  for (int r = 0; r < plan.rows; ++r) {
    const IdRange hidden = policy.advance();
    plan.hidden.push_back(hidden.end > gone.end ? hidden : IdRange{});
  }
  return plan;
}

int next_pass_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk) {
  if (done >= prompt) return 1;
  const std::int64_t to_grid = chunk - done % chunk;
  return static_cast<int>(std::min({to_grid, prompt - done, total - done}));
}

SequenceRunner::SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                               std::unique_ptr<RetentionPolicy> policy)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      policy_(std::move(policy)),
      sequence_(cache_->new_sequence()),
      pruned_(policy_->dropped().end) {}

Status SequenceRunner::feed(std::span<const TokenValue> tokens, int chunk, Logits logits, const OnPass& on_pass) {
  LaneGroup& group = sequence_.group();
  const TokenId end = group.next_id() + static_cast<TokenId>(tokens.size());
  while (group.next_id() < end) {
    Stopwatch watch;
    const TokenId first = group.next_id();
    const int want = next_pass_rows(first, end, end, chunk);
    // Room first, policy after: a refused pass leaves no trace in either, and nothing behind it can fail.
    const int rows = policy_->rows_together(want);
    KVASIR_RETURN_IF_ERROR(make_room(rows));
    const PassPlan pass = plan_pass(*policy_, rows);
    view_.build(group, pass.hidden);
    kept_max_ = std::max(kept_max_, group.length());
    times_.cache += watch.lap();

    const bool last = group.next_id() == end;
    ForwardItem item{tokens.first(static_cast<std::size_t>(rows)), &view_, 0};
    if (logits == Logits::kAll) item.logits = rows;
    if (logits == Logits::kLast && last) item.logits = 1;
    const std::span<const float> out = model_->transformer->forward(cache_->pool(), {&item, 1});
    times_.forward += watch.lap();

    prune();
    times_.cache += watch.lap();
    tokens = tokens.subspan(static_cast<std::size_t>(rows));
    if (on_pass && !on_pass(group.next_id() - item.logits, item.logits, out) && !last)
      return Status(StatusCode::kCancelled, "stopped");
  }
  return {};
}

Status SequenceRunner::make_room(int rows) {
  if (policy_->realign() == Realign::kRotate) {
    // Keys that this pass's prune will rotate must be the sequence's own.
    const std::unique_ptr<RetentionPolicy> ahead = policy_->clone();
    for (int r = 0; r < rows; ++r) ahead->advance();
    const IdRange dropped = ahead->dropped();
    if (dropped.end > policy_->dropped().end) KVASIR_RETURN_IF_ERROR(sequence_.group().unshare_behind(dropped.end));
  }
  return sequence_.group().append(rows);
}

void SequenceRunner::prune() {
  LaneGroup& group = sequence_.group();
  const IdRange dropped = policy_->dropped();
  if (dropped.end == pruned_) return;
  pruned_ = dropped.end;
  const std::int64_t shift = policy_->realign() == Realign::kRotate ? group.retained_in(dropped) : 0;
  if (shift > 0) model_->transformer->rotate_keys_behind(cache_->pool(), group, dropped.end, -shift);
  // One growing hole always fits the table.
  KVASIR_CHECK(group.drop(dropped, policy_->realign()).ok());
}

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::fork() const {
  auto copy = std::make_unique<SequenceRunner>(model_, cache_, policy_->clone());
  KVASIR_ASSIGN_OR_RETURN(copy->sequence_, cache_->fork(sequence_));
  copy->kept_max_ = kept_max_;
  copy->pruned_ = pruned_;
  return copy;
}

}  // namespace kvasir
