#include "eval/record.h"

#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

// Spreads the weights of each row over their tokens' positions; tokens not seen get zero.
class Recorder final : public RowObserver {
 public:
  Recorder(AttentionTraceWriter* writer, int heads) : writer_(*writer), heads_(heads) {}

  Status observe(const ObservedRow& observed) override {
    const TokenIndex query = observed.query();
    for (int head = 0; head < heads_; ++head) {
      const std::span<const TokenIndex> ids = observed.ids(head);
      const std::span<const float> weights = observed.weights(head);
      row_.assign(static_cast<std::size_t>(query) + 1, 0.0F);
      for (std::size_t i = 0; i < ids.size(); ++i) row_[static_cast<std::size_t>(ids[i])] = weights[i];
      KVASIR_RETURN_IF_ERROR(writer_.write_row(observed.layer(), head, query, row_));
    }
    return {};
  }

 private:
  AttentionTraceWriter& writer_;
  int heads_;
  std::vector<float> row_;
};

}  // namespace

Status check_record_options(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options) {
  if (tokens < 1 || tokens > kMostTraceTokens)
    return invalid_argument("{} tokens cannot be recorded; a trace has 1 to {}", tokens, kMostTraceTokens)
        .about({"tokens"});
  return check_observed_text(model, tokens, options);
}

std::uint64_t trace_bytes(const LoadedModel& model, std::int64_t tokens) {
  return static_cast<std::uint64_t>(model.config.governed_layers()) * static_cast<std::uint64_t>(model.config.governed().heads) *
         static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(tokens) * sizeof(float);
}

Result<ObservedText> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                      const ObservedTextOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_record_options(*model, static_cast<std::int64_t>(text.size()), options));
  Recorder recorder(&writer, model->config.governed().heads);
  return read_observed(model, text, options, recorder, progress);
}

}  // namespace kvasir
