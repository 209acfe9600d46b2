#include "eval/record.h"

#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

// Spreads the weights of each row over the places of their tokens; tokens not seen get zero.
class Recorder final : public RowObserver, public ReadsKv {
 public:
  explicit Recorder(AttentionTraceWriter* writer) : writer_(*writer) {}

  Status observe(const ObservedRow& observed) override {
    KVASIR_RETURN_IF_ERROR(status());
    const TokenIndex query = observed.query();
    for (int head = 0; head < writer_.shape().heads; ++head) {
      const std::span<const TokenIndex> ids = observed.ids(head);
      const std::span<const float> weights = observed.weights(head);
      row_.assign(static_cast<std::size_t>(query) + 1, 0.0F);
      for (std::size_t i = 0; i < ids.size(); ++i) row_[static_cast<std::size_t>(ids[i])] = weights[i];
      KVASIR_RETURN_IF_ERROR(writer_.write_row(observed.layer(), head, query, row_));
    }
    return {};
  }

  ReadsKv* kv() override { return writer_.shape().has_kv() ? this : nullptr; }
  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) override {
    const std::int64_t kv_heads = writer_.shape().kv_heads;
    for (int lane = 0; lane < kv.lanes; ++lane)
      for (int row = 0; row < kv.rows; ++row) {
        const std::int64_t number = std::int64_t{table} * kv.lanes + lane;
        const auto write = [&](TraceArray array, std::span<const float> floats) {
          note(writer_.write_row(array, number / kv_heads, number % kv_heads, chunk.first + row, floats));
        };
        const auto rotation = static_cast<float>(kv.rotation(lane, row));
        write(TraceArray::kKeys, kv.key(lane, row));
        write(TraceArray::kValues, kv.value(lane, row));
        write(TraceArray::kRotations, {&rotation, 1});
      }
  }
  bool wants_queries() const override { return writer_.shape().has_kv(); }
  void observe_queries(TokenIndex first, const ObservedQueries& queries) override {
    for (int row = 0; row < queries.rows; ++row)
      note(writer_.write_row(TraceArray::kQueries, queries.layer, queries.head, first + row, queries.of(row)));
  }

  // The first error of keys, values and queries.
  Status status() {
    const std::scoped_lock lock(mutex_);
    return status_;
  }

 private:
  void note(Status status) {
    if (status.ok()) return;
    const std::scoped_lock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }

  AttentionTraceWriter& writer_;
  std::vector<float> row_;
  std::mutex mutex_;  // queries come from several threads
  Status status_;
};

Status write_turns(const std::vector<QueryTurn>& turns, const AttentionTraceWriter& writer) {
  for (std::size_t layer = 0; layer < turns.size(); ++layer) {
    std::vector<float> row = {turns[layer].scale, turns[layer].magnitude};
    row.insert(row.end(), turns[layer].frequencies.begin(), turns[layer].frequencies.end());
    row.resize(static_cast<std::size_t>(writer.shape().of(TraceArray::kTurns)[3]));  // layers may turn fewer pairs
    KVASIR_RETURN_IF_ERROR(writer.write_row(TraceArray::kTurns, static_cast<std::int64_t>(layer), 0, 0, row));
  }
  return {};
}

}  // namespace

Status check_record_options(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options) {
  if (tokens < 1 || tokens > kMostTraceTokens)
    return invalid_argument("{} tokens cannot be recorded; a trace has 1 to {}", tokens, kMostTraceTokens)
        .about({"tokens"});
  return check_observed_text(model, tokens, options);
}

TraceShape trace_shape(const LoadedModel& model, std::int64_t tokens, bool with_keys) {
  const AttentionSpec& governed = model.config.governed();
  TraceShape shape{.layers = model.config.governed_layers(), .heads = governed.heads, .tokens = tokens};
  if (with_keys) {
    shape.kv_heads = governed.kv_heads;
    shape.head_dim = governed.head_dim;
    for (const QueryTurn& turn : *model.kv_shape.turns)
      shape.frequencies = std::max(shape.frequencies, std::ssize(turn.frequencies));
  }
  return shape;
}

Result<ObservedText> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                      const ObservedTextOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_record_options(*model, static_cast<std::int64_t>(text.size()), options));
  if (writer.shape().has_turns()) KVASIR_RETURN_IF_ERROR(write_turns(*model->kv_shape.turns, writer));
  Recorder recorder(&writer);
  Result<ObservedText> result = read_observed(model, text, options, recorder, progress);
  KVASIR_RETURN_IF_ERROR(recorder.status());
  return result;
}

}  // namespace kvasir
