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

class CachedReader final : public TextReader {
 public:
  CachedReader(const std::shared_ptr<LoadedModel>& model, const std::shared_ptr<KvCache>& cache,
               const RetentionPolicy& policy, std::span<const std::vector<TokenId>> texts, ReadingOptions options)
      : options_(options), step_(model, cache) {
    for (const std::vector<TokenId>& tokens : texts) {
      // A chunk of 1 reads tokens as generated, unless there is a prompt.
      const std::size_t prompt = options.prefill > 0 ? static_cast<std::size_t>(options.prefill)
                                 : source_of(options.chunk) == Source::kPrompt ? tokens.size()
                                                                               : 0;
      texts_.push_back({std::make_unique<Sequence>(model, cache, policy.clone()), tokens, prompt});
    }
    step_.set_watch([this](const Sequence& sequence) { watch(sequence); });
  }
  CachedReader(const CachedReader&) = delete;
  CachedReader& operator=(const CachedReader&) = delete;

  bool done() const override {
    return std::ranges::all_of(texts_, [](const Text& text) { return text.done(); });
  }
  std::int64_t next_row() const override {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Text& text : texts_)
      if (!text.done()) least = std::min(least, text.next());
    return least;
  }
  std::int64_t pass_limit() const override {
    std::int64_t most = 0;
    const std::int64_t next = next_row();
    for (const Text& text : texts_)
      if (!text.done() && text.next() == next) most = std::max(most, limit(text));
    return most;
  }

  Result<std::span<const ReadPass>> read_pass() override {
    const std::int64_t next = next_row();
    requests_.clear();
    parts_.clear();
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const Text& text = texts_[i];
      if (text.done() || text.next() != next) continue;
      const auto from = static_cast<std::size_t>(next);
      const bool reads = from < text.prompt;
      requests_.push_back({text.sequence.get(),
                           {.rest = text.tokens.first(reads ? text.prompt : text.tokens.size()).subspan(from),
                            .source = reads ? Source::kPrompt : Source::kGenerated,
                            .chunk = options_.chunk,
                            .logits = limit(text) > options_.first_row ? Logits::kAll : Logits::kNone}});
      parts_.push_back({.text = i});
    }
    const StepTimes before = step_.times();
    results_.assign(requests_.size(), {});
    plan_ = step_.plan(requests_);
    KVASIR_RETURN_IF_ERROR(step_.run(plan_, requests_, results_));
    for (const StepResult& result : results_) KVASIR_RETURN_IF_ERROR(result.status);
    const StepTimes& after = step_.times();
    const StepTimes of_row{(after.forward - before.forward) / plan_.rows, (after.cache - before.cache) / plan_.rows};
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Text& text = texts_[parts_[i].text];
      const int rows = plan_.passes[i].rows;
      const bool timed = options_.prefill == 0 || requests_[i].input.source == Source::kGenerated;
      if (timed) {
        text.times += {of_row.forward * rows, of_row.cache * rows};
        text.tokens_timed += rows;
      }
      parts_[i] = {parts_[i].text,
                   results_[i].first,
                   results_[i].rows,
                   results_[i].logits,
                   std::span(text.kept).last(static_cast<std::size_t>(results_[i].rows)),
                   text.dead_share,
                   (of_row.forward + of_row.cache) * 1e3,
                   timed};
    }
    return std::span<const ReadPass>(parts_);
  }

  ReadFigures figures(std::size_t i) const override {
    const Text& text = texts_[i];
    const Sequence::Counters& counters = text.sequence->counters();
    return {text.tokens_timed, text.times,          encodings(text.sequence->tables()),
            counters.kept_max, counters.seen_least, text.sequence->bytes_peak()};
  }

 private:
  struct Text {
    std::unique_ptr<Sequence> sequence;
    std::span<const TokenId> tokens;
    std::size_t prompt = 0;    // tokens read in chunks
    std::vector<double> kept;  // [rows of the last pass]: tokens that each saw
    double dead_share = 0;     // of the last pass
    StepTimes times;           // of timed passes, as its tokens
    std::int64_t tokens_timed = 0;

    std::int64_t next() const { return sequence->tables().next_index(); }
    bool done() const { return next() == std::ssize(tokens); }
  };

  std::int64_t limit(const Text& text) const {
    return text.next() + next_chunk_rows(text.next(), static_cast<std::int64_t>(text.prompt), std::ssize(text.tokens),
                                         prompt_chunk(text.sequence->policy(), options_.chunk));
  }

  void watch(const Sequence& sequence) {
    const auto request = std::ranges::find(requests_, &sequence, &StepRequest::sequence);
    const auto i = static_cast<std::size_t>(request - requests_.begin());
    Text& text = texts_[parts_[i].text];
    text.dead_share = dead_share(sequence.tables());
    text.kept.assign(static_cast<std::size_t>(plan_.passes[i].rows), 0);
    if (request->input.logits != Logits::kNone) count_seen(sequence, plan_.passes[i], text.kept);
  }

  // Counts what each row of the pass sees, which the tables hold together with the rows themselves.
  void count_seen(const Sequence& sequence, const Sequence::PassPlan& pass, std::span<double> rows) {
    const RetentionPolicy& policy = sequence.policy();
    if (policy.as<HidesRanges>() == nullptr) {
      const double last = sequence.tables().mean_stored();
      for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = last - static_cast<double>(rows.size() - 1 - r);
      return;
    }
    hidden_.assign(static_cast<std::size_t>(pass.chunk.rows), {});
    find_hidden(policy, pass.chunk, hidden_);
    held_.clear();
    policy.retained(0, 0, held_);
    held_.push_back({pass.chunk.first, pass.chunk.end()});
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t row = static_cast<std::size_t>(pass.first) + r;
      const TokenIndex next = pass.chunk.first + static_cast<TokenIndex>(row) + 1;
      for (const IndexRange& held : held_) {
        const TokenIndex end = std::min(held.end, next);
        const TokenIndex first_hidden = std::max(held.begin, hidden_[row].begin);
        const TokenIndex end_hidden = std::min(end, hidden_[row].end);
        rows[r] += static_cast<double>(std::max<TokenIndex>(end - held.begin, 0) -
                                       std::max<TokenIndex>(end_hidden - first_hidden, 0));
      }
    }
  }

  ReadingOptions options_;
  Step step_;
  std::vector<Text> texts_;
  std::vector<StepRequest> requests_;
  Step::Plan plan_;
  std::vector<StepResult> results_;
  std::vector<IndexRange> hidden_;  // [rows of the chunk]
  std::vector<IndexRange> held_;    // by a policy of ranges, that hides `hidden_`
  std::vector<ReadPass> parts_;
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

  Result<std::span<const ReadPass>> read_pass() override {
    const std::int64_t begin = std::max<std::int64_t>(0, row_ + 1 - spec_.size);
    const std::int64_t count = row_ + 1 - begin;
    SequenceRunner runner(model_, cache_, full_->clone());
    kept_ = static_cast<double>(count);
    part_ = {.first = row_, .rows = 1, .kept = std::span(&kept_, 1)};
    const auto start = std::chrono::steady_clock::now();
    KVASIR_RETURN_IF_ERROR(
        runner.feed(tokens_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), kDefaultChunk,
                    Logits::kLast, [&](std::int64_t, int, std::span<const float> logits) {
                      part_.logits = logits;
                      return true;
                    }));
    part_.ms_per_token = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    figures_.times += runner.times();
    ++figures_.tokens_timed;
    figures_.kept_max = std::max(figures_.kept_max, runner.counters().kept_max);
    figures_.seen_least = runner.counters().seen_least;
    figures_.bytes_peak = std::max(figures_.bytes_peak, runner.whole().bytes_peak());
    row_ += spec_.stride;
    return std::span<const ReadPass>(&part_, 1);
  }

  ReadFigures figures(std::size_t) const override { return figures_; }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<RetentionPolicy> full_;
  RecomputeSpec spec_;
  std::span<const TokenId> tokens_;
  std::int64_t row_;
  double kept_ = 0;
  ReadPass part_;
  ReadFigures figures_;
};

}  // namespace

std::unique_ptr<TextReader> make_cached_reader(const std::shared_ptr<LoadedModel>& model,
                                               const std::shared_ptr<KvCache>& cache, const RetentionPolicy& policy,
                                               std::span<const std::vector<TokenId>> texts, ReadingOptions options) {
  return std::make_unique<CachedReader>(model, cache, policy, texts, options);
}

std::unique_ptr<TextReader> make_recompute_reader(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& cache, const RecomputeSpec& spec,
                                                  std::span<const TokenId> tokens) {
  return std::make_unique<RecomputeReader>(model, cache, spec, tokens);
}

}  // namespace kvasir
