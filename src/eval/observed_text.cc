#include "eval/observed_text.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"
#include "sequence/sequence_runner.h"

namespace kvasir {
namespace {

// Splits the engine's blocks of rows into rows and checks their weights.
class RowSplitter final : public AttentionObserver {
 public:
  RowSplitter(SeenTokens* seen, RowObserver* observer, int heads) : seen_(*seen), observer_(*observer), heads_(heads) {}

  void observe(const ObservedAttention& attention) override {
    for (int r = 0; r < attention.rows && status_.ok(); ++r) {
      status_ = check(attention, r);
      if (status_.ok()) status_ = observer_.observe(ObservedRow(&seen_, &attention, r));
    }
  }

  bool wants_queries() const override { return observer_.wants_queries(); }
  void observe_queries(const ObservedQueries& queries) override {
    observer_.observe_queries(seen_.first() + queries.first_row, queries);
  }

  const Status& status() const { return status_; }

 private:
  Status check(const ObservedAttention& attention, int row) const {
    for (int head = 0; head < heads_; ++head) {
      const std::span<const float> weights = attention.of(row, head);
      KVASIR_CHECK(weights.size() == seen_.of(attention.layer, head, attention.first_row + row).size());
      if (!std::ranges::all_of(weights, [](float weight) { return std::isfinite(weight); }))
        return data_loss("the attention of layer {} is not a number; the model's weights are damaged", attention.layer);
    }
    return {};
  }

  SeenTokens& seen_;
  RowObserver& observer_;
  int heads_;
  Status status_;
};

// Returns the size of the next pass in tokens: a chunk of the prompt, or one generated token.
int next_pass(const RetentionPolicy& policy, const ObservedTextOptions& options, std::int64_t done,
              std::int64_t tokens) {
  return next_chunk_rows(done, options.prefill, tokens, prompt_chunk(policy, options.chunk));
}

// Applies check_room (sequence/context_rules.h), with two differences. Under a bounded policy, observation may go
// beyond the trained context. An overlong text is an invalid argument, since the caller chose its length.
Status check_text_room(const RetentionPolicy& policy, ContextPlace place, std::int64_t rest, std::int64_t next,
                       std::int64_t context) {
  if (policy.bound()) return {};
  const Status room = check_room(policy, place, rest, next, context);
  if (room.ok()) return {};
  return Status(StatusCode::kInvalidArgument, room.message()).about({"tokens", "policy"});
}

}  // namespace

Status check_observed_text(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));
  if (options.prefill < 0 || options.prefill > tokens)
    return invalid_argument("prefill={} must be from 0 to the {}", options.prefill, counted(tokens, "token"))
        .about({"prefill"});
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  const std::int64_t context = model.config.context;
  if (tokens > 0)
    KVASIR_RETURN_IF_ERROR(check_text_room(*policy, {}, tokens, next_pass(*policy, options, 0, tokens), context));
  return check_positions(*policy, options.prefill > 0 ? options.chunk : 1, context, tokens);
}

Result<ObservedText> read_observed(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                   const ObservedTextOptions& options, RowObserver& observer,
                                   const Progress& progress) {
  const auto tokens = static_cast<std::int64_t>(text.size());
  KVASIR_RETURN_IF_ERROR(check_observed_text(*model, tokens, options));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));
  const MemoryRequest request{tokens, options.prefill, options.chunk, 1};
  // Observers want the weights of all retained tokens: those beyond a sliding window are zero.
  KvCacheShape shape = model->kv_shape;
  shape.window = 0;
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache,
                          make_evaluation_cache(model, shape, model->options.kv_memory, *policy, {&request, 1}));

  ObservedText result;
  result.policy = policy->traits().spec;
  result.codec = codec_name(cache->shape().codec());
  result.chunk = options.prefill > 0 ? prompt_chunk(*policy, options.chunk) : 0;
  SequenceRunner runner(model, cache, std::move(policy));
  SeenTokens seen(&runner, *model);
  RowSplitter rows(&seen, &observer, model->config.governed().heads);
  runner.listener().set_tap(&rows);
  runner.listener().set_kv_tap(observer.kv());
  Status status;
  const auto on_pass = [&](std::int64_t, int, std::span<const float>) {
    seen.next_pass();
    status = rows.status();
    const std::int64_t rest = tokens - seen.first();
    if (status.ok() && rest > 0)
      status = check_text_room(runner.policy(), context_place(runner.sequence()), rest,
                               next_pass(runner.policy(), options, seen.first(), tokens), model->config.context);
    if (status.ok() && progress && !progress(seen.first(), tokens)) status = Status(StatusCode::kCancelled, "stopped");
    return status.ok();
  };
  const auto read = [&](std::span<const TokenId> part, SequenceRunner::Source source) -> Status {
    if (part.empty()) return {};
    const Status fed = runner.feed(part, options.chunk, SequenceRunner::Logits::kNone, on_pass, source);
    return status.ok() ? fed : status;
  };
  const auto prompt = static_cast<std::size_t>(options.prefill);
  KVASIR_RETURN_IF_ERROR(read(text.first(prompt), SequenceRunner::Source::kPrompt));
  KVASIR_RETURN_IF_ERROR(read(text.subspan(prompt), SequenceRunner::Source::kGenerated));
  result.kept_max = runner.counters().kept_max;
  result.seen_least = runner.counters().seen_least;
  result.by_head = runner.policy().traits().scope == PolicyScope::kHead;
  result.final = retained_by_layer(runner.sequence(), model->config.governed_layers());
  return result;
}

}  // namespace kvasir
