#include "eval/text_reader.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/check.h"
#include "base/status.h"
#include "eval/scoring.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

using Logits = SequenceRunner::Logits;

class CachedReader final : public TextReader {
 public:
  CachedReader(const std::shared_ptr<LoadedModel>& model, const std::shared_ptr<KvCache>& cache,
               const RetentionPolicy& policy, std::span<const TokenId> tokens, int chunk, std::int64_t prefill)
      : runner_(model, cache, policy.clone()),
        tokens_(tokens),
        chunk_(chunk),
        // A chunk of 1 reads tokens as generated, unless there is a prompt.
        prompt_(prefill > 0                                           ? prefill
                : source_of(chunk) == SequenceRunner::Source::kPrompt ? size()
                                                                      : 0) {
    runner_.set_watch([this](const KvSequence& sequence) {
      // Range policies never show a row more than their bound, whatever the number of rows.
      const auto& policy = runner_.policy();
      const double most = policy.traits().compacts
                              ? std::numeric_limits<double>::infinity()
                              : static_cast<double>(policy.bound().value_or(std::numeric_limits<std::int64_t>::max()));
      kept_ = std::min(sequence.mean_stored(), most);
      dead_share_ = dead_share(sequence);
    });
  }
  CachedReader(const CachedReader&) = delete;
  CachedReader& operator=(const CachedReader&) = delete;

  bool done() const override { return next_row() == size(); }
  std::int64_t next_row() const override { return runner_.sequence().next_index(); }
  std::int64_t pass_limit() const override {
    return next_row() + next_chunk_rows(next_row(), prompt_, size(), prompt_chunk(runner_.policy(), chunk_));
  }

  Result<ReadPass> read_pass() override {
    const StepTimes before = runner_.times();
    const bool reads = next_row() < prompt_;
    const std::span<const TokenId> rest = tokens_.first(static_cast<std::size_t>(reads ? prompt_ : size()));
    KVASIR_ASSIGN_OR_RETURN(
        const StepResult pass,
        runner_.feed_pass(rest.subspan(static_cast<std::size_t>(next_row())), chunk_, Logits::kAll,
                          reads ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated));
    const StepTimes& after = runner_.times();
    const double seconds = after.forward + after.cache - before.forward - before.cache;
    return ReadPass{pass.first, pass.rows, pass.logits, kept_, dead_share_, seconds * 1e3 / pass.rows};
  }

  std::int64_t tokens_timed() const override { return next_row(); }
  StepTimes times() const override { return runner_.times(); }
  TableColumns::Encodings encodings() const override { return kvasir::encodings(runner_.sequence()); }
  std::int64_t kept_max() const override { return runner_.counters().kept_max; }
  std::int64_t seen_least() const override { return runner_.counters().seen_least; }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

  SequenceRunner runner_;
  std::span<const TokenId> tokens_;
  int chunk_;
  std::int64_t prompt_;  // tokens read in chunks
  double kept_ = 0;
  double dead_share_ = 0;
};

class RecomputeReader final : public TextReader {
 public:
  RecomputeReader(const std::shared_ptr<LoadedModel>& model, const std::shared_ptr<KvCache>& cache,
                  const RecomputeSpec& spec, std::span<const TokenId> tokens)
      : model_(model), cache_(cache), spec_(spec), tokens_(tokens), row_(spec.first_row) {
    auto full = make_policy(PolicySpec::named("full"));
    KVASIR_CHECK(full.ok());
    full_ = std::move(*full);
  }

  // The last row has no next token to be scored against.
  bool done() const override { return row_ + 1 >= static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t next_row() const override { return row_; }
  std::int64_t pass_limit() const override { return row_ + 1; }

  Result<ReadPass> read_pass() override {
    const std::int64_t begin = std::max<std::int64_t>(0, row_ + 1 - spec_.size);
    const std::int64_t count = row_ + 1 - begin;
    SequenceRunner runner(model_, cache_, full_->clone());
    ReadPass result{row_, 1, {}, static_cast<double>(count)};
    const auto start = std::chrono::steady_clock::now();
    KVASIR_RETURN_IF_ERROR(
        runner.feed(tokens_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), kDefaultChunk,
                    Logits::kLast, [&](std::int64_t, int, std::span<const float> logits) {
                      result.logits = logits;
                      return true;
                    }));
    result.ms_per_token = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    times_ += runner.times();
    ++tokens_timed_;
    kept_max_ = std::max(kept_max_, runner.counters().kept_max);
    seen_least_ = runner.counters().seen_least;
    row_ += spec_.stride;
    return result;
  }

  std::int64_t tokens_timed() const override { return tokens_timed_; }
  StepTimes times() const override { return times_; }
  std::int64_t kept_max() const override { return kept_max_; }
  std::int64_t seen_least() const override { return seen_least_; }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<RetentionPolicy> full_;
  RecomputeSpec spec_;
  std::span<const TokenId> tokens_;
  std::int64_t row_;
  StepTimes times_;
  std::int64_t tokens_timed_ = 0;
  std::int64_t kept_max_ = 0;
  std::int64_t seen_least_ = 0;
};

}  // namespace

std::unique_ptr<TextReader> make_cached_reader(const std::shared_ptr<LoadedModel>& model,
                                               const std::shared_ptr<KvCache>& cache, const RetentionPolicy& policy,
                                               std::span<const TokenId> tokens, int chunk, std::int64_t prefill) {
  return std::make_unique<CachedReader>(model, cache, policy, tokens, chunk, prefill);
}

std::unique_ptr<TextReader> make_recompute_reader(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& cache, const RecomputeSpec& spec,
                                                  std::span<const TokenId> tokens) {
  return std::make_unique<RecomputeReader>(model, cache, spec, tokens);
}

}  // namespace kvasir
