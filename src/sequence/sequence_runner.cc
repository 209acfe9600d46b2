#include "sequence/sequence_runner.h"

#include "base/status.h"

namespace kvasir {

SequenceRunner::SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                               std::unique_ptr<RetentionPolicy> policy)
    : SequenceRunner(std::make_unique<Sequence>(std::move(model), std::move(cache), std::move(policy))) {}

SequenceRunner::SequenceRunner(std::unique_ptr<Sequence> sequence)
    : sequence_(std::move(sequence)), step_(sequence_->model(), sequence_->cache()) {}

Status SequenceRunner::feed(std::span<const TokenId> tokens, int chunk, Logits logits, const OnPass& on_pass,
                            Source source) {
  while (!tokens.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const StepResult pass, feed_pass(tokens, chunk, logits, source));
    if (pass.tokens == 0) continue;  // the text was repeated
    tokens = tokens.subspan(static_cast<std::size_t>(pass.tokens));
    const bool go_on = !on_pass || on_pass(pass.first, pass.rows, pass.logits);
    // A chunk that has begun is read to its end.
    if (!go_on && !tokens.empty() && !sequence_->in_chunk()) return Status(StatusCode::kCancelled, "stopped");
  }
  return {};
}

Result<StepResult> SequenceRunner::feed_pass(std::span<const TokenId> rest, int chunk, Logits logits, Source source) {
  const StepRequest request{sequence_.get(), {rest, source, chunk, most_rows_, logits}};
  StepResult result;
  KVASIR_RETURN_IF_ERROR(step_.run(step_.plan({&request, 1}), {&request, 1}, {&result, 1}));
  KVASIR_RETURN_IF_ERROR(result.status);
  return result;
}

void SequenceRunner::set_watch(std::function<void(const KvSequence&)> watch) {
  step_.set_watch([watch = std::move(watch)](const Sequence& sequence) { watch(sequence.tables()); });
}

Status SequenceRunner::own_pages() {
  KVASIR_RETURN_IF_ERROR(sequence_->status());
  if (!policy().traits().compacts) return {};
  KvSequence& tables = sequence_->mutable_tables();
  for (int t = 0; t < tables.governed_tables(); ++t)
    KVASIR_RETURN_IF_ERROR(tables.table(t).unshare({0, tables.next_index()}));
  return {};
}

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::fork() {
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> copy, sequence_->fork());
  return {std::make_unique<SequenceRunner>(std::move(copy))};
}

}  // namespace kvasir
