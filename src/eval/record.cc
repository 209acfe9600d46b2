#include "eval/record.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/status.h"
#include "engine/sequence_runner.h"
#include "eval/seen_tokens.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

// Puts the weights of each row where their tokens are.
class Recorder final : public AttentionObserver {
 public:
  Recorder(SeenTokens* seen, AttentionTraceWriter* writer, int heads) : seen_(*seen), writer_(*writer), heads_(heads) {}

  void observe(const ObservedAttention& attention) override {
    for (int r = 0; r < attention.rows; ++r)
      for (int head = 0; head < heads_ && status_.ok(); ++head)
        status_ = write(attention.layer, head, attention.first_row + r, attention.of(r, head));
  }

  const Status& status() const { return status_; }

 private:
  Status write(int layer, int head, int row, std::span<const float> weights) {
    const std::span<const TokenId> ids = seen_.of(layer, head, row);
    KVASIR_CHECK(ids.size() == weights.size());
    const TokenId query = seen_.first() + row;
    row_.assign(static_cast<std::size_t>(query) + 1, 0.0F);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!std::isfinite(weights[i])) return not_a_number(layer);
      row_[static_cast<std::size_t>(ids[i])] = weights[i];
    }
    return writer_.write_row(layer, head, query, row_);
  }

  static Status not_a_number(int layer) {
    return data_loss("the attention of layer {} is not a number; the model's weights are damaged", layer);
  }

  SeenTokens& seen_;
  AttentionTraceWriter& writer_;
  int heads_;
  std::vector<float> row_;
  Status status_;
};

}  // namespace

Status check_record_options(const LoadedModel& model, std::int64_t tokens, const RecordOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));
  if (tokens < 1 || tokens > kMostTraceTokens)
    return invalid_argument("{} tokens cannot be recorded; a trace has 1 to {}", tokens, kMostTraceTokens);
  if (options.prefill < 0 || options.prefill > tokens)
    return invalid_argument("--prefill {} must be from 0 to the {} tokens", options.prefill, tokens);
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  return check_context(model, *policy, tokens, options.prefill > 0 ? options.chunk : 1);
}

std::uint64_t trace_bytes(const LoadedModel& model, std::int64_t tokens) {
  return static_cast<std::uint64_t>(model.config.layers) * static_cast<std::uint64_t>(model.config.heads) *
         static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(tokens) * sizeof(float);
}

Result<RecordResult> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenValue> text,
                                      const RecordOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress) {
  const auto tokens = static_cast<std::int64_t>(text.size());
  KVASIR_RETURN_IF_ERROR(check_record_options(*model, tokens, options));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));
  const MemoryRequest request{tokens, options.prefill, options.chunk, 1};
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, make_evaluation_cache(*model, *policy, {&request, 1}));

  RecordResult result;
  result.policy = policy->spec();
  result.codec = kv_type_name(model->kv_shape.page.type);
  result.chunk = options.prefill > 0 ? prompt_chunk(*policy, options.chunk) : 0;
  SequenceRunner runner(model, cache, std::move(policy));
  SeenTokens seen(&runner, *model);
  Recorder recorder(&seen, &writer, model->config.heads);
  runner.set_tap(&recorder);
  Status status;
  const auto on_pass = [&](std::int64_t, int, std::span<const float>) {
    seen.next_pass();
    status = recorder.status();
    if (status.ok()) status = check_context(*model, runner);
    if (status.ok() && progress && !progress(seen.first(), tokens)) status = Status(StatusCode::kCancelled, "stopped");
    return status.ok();
  };
  const auto read = [&](std::span<const TokenValue> part, SequenceRunner::Source source) -> Status {
    if (part.empty()) return {};
    const Status fed = runner.feed(part, options.chunk, SequenceRunner::Logits::kNone, on_pass, source);
    return status.ok() ? fed : status;
  };
  const auto prompt = static_cast<std::size_t>(options.prefill);
  KVASIR_RETURN_IF_ERROR(read(text.first(prompt), SequenceRunner::Source::kPrompt));
  KVASIR_RETURN_IF_ERROR(read(text.subspan(prompt), SequenceRunner::Source::kGenerated));
  result.kept_max = runner.kept_max();
  result.by_head = runner.policy().scope() == PolicyScope::kHead;
  result.final = retained_by_layer(runner.sequence(), model->config.layers);
  return result;
}

}  // namespace kvasir
