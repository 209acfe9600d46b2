#include "eval/promise.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "planning/quality_plan.h"
#include "quality/divergence.h"
#include "quality/quality_controller.h"
#include "quality/quality_meter.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

using Logits = SequenceRunner::Logits;
using Source = SequenceRunner::Source;

double seconds_of(const SequenceRunner& runner) {
  return runner.times().forward + runner.times().cache;
}

// One policy that reads the text, whose tokens count as generated behind the prompt.
class PolicyReader {
 public:
  PolicyReader(const std::shared_ptr<LoadedModel>& model, std::shared_ptr<KvCache> cache,
               std::unique_ptr<RetentionPolicy> policy, std::span<const TokenId> text, const PromiseOptions& options)
      : model_(model), cache_(std::move(cache)), text_(text), options_(options) {
    run_.policy = policy->traits().spec;
    begin(std::move(policy));
  }

  // Reads the prompt. `take` gets the logits of its last row.
  Status read_prompt(const std::function<void(std::span<const float>)>& take) { return feed_prompt(take); }

  // Reads the next token. Returns its logits, valid until the model's next pass.
  Result<std::span<const float>> read_token() {
    const double before = seconds_of(*runner_);
    KVASIR_RETURN_IF_ERROR(runner_->step().repeat(runner_->whole(), options_.chunk));
    KVASIR_ASSIGN_OR_RETURN(const StepResult pass, runner_->feed_pass(text_.subspan(done(), 1), options_.chunk,
                                                                      Logits::kAll, Source::kGenerated));
    run_.policy_seconds += seconds_of(*runner_) - before;
    kept_ += kept_now_;
    ++run_.tokens;
    return pass.logits;
  }

  void add(double kld) {
    sum_ += kld;
    ++rows_;
  }

  // Goes on under another policy: what was read is read again.
  Status change(std::unique_ptr<RetentionPolicy> policy) {
    const std::size_t end = done();
    begin(std::move(policy));
    KVASIR_RETURN_IF_ERROR(feed_prompt({}));
    // As a task that runs again what it has generated.
    const bool by_token = runner_->policy().by_token();
    const int rows = by_token ? 1 : std::min(prompt_chunk(runner_->policy(), options_.chunk), page_slots());
    KVASIR_RETURN_IF_ERROR(runner_->feed(text_.subspan(done(), end - done()), rows, Logits::kNone, {},
                                         by_token ? Source::kGenerated : Source::kPrompt));
    run_.reread_seconds += seconds_of(*runner_);
    return {};
  }

  PromiseRun finish() {
    run_.kl_mean = rows_ > 0 ? sum_ / static_cast<double>(rows_) : 0;
    run_.kept_mean = kept_ / static_cast<double>(std::max<std::int64_t>(run_.tokens, 1));
    run_.kv_bytes_peak = cache_->budget().peak();
    return std::move(run_);
  }

 private:
  std::size_t done() const { return static_cast<std::size_t>(runner_->sequence().next_index()); }
  int page_slots() const { return cache_->shape().page.slots; }

  void begin(std::unique_ptr<RetentionPolicy> policy) {
    runner_.reset();  // its pages first
    runner_ = std::make_unique<SequenceRunner>(model_, cache_, std::move(policy));
    runner_->set_watch([this](const KvSequence& sequence) {
      const RetentionPolicy& now = runner_->policy();
      kept_now_ = sequence.mean_stored();
      if (!now.traits().compacts && now.bound()) kept_now_ = std::min(kept_now_, static_cast<double>(*now.bound()));
    });
  }

  Status feed_prompt(const std::function<void(std::span<const float>)>& take) {
    const auto prompt = static_cast<std::size_t>(options_.prompt);
    return runner_->feed(text_.first(prompt), options_.chunk, Logits::kLast,
                         [&](std::int64_t, int, std::span<const float> logits) {
                           if (take && !logits.empty()) take(logits);
                           return true;
                         });
  }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::span<const TokenId> text_;
  const PromiseOptions& options_;
  std::unique_ptr<SequenceRunner> runner_;
  PromiseRun run_;
  double kept_now_ = 0;
  double kept_ = 0;
  double sum_ = 0;
  std::int64_t rows_ = 0;
};

// The promise beside its policy's reader: what a request holds for it.
class Promise {
 public:
  Promise(const std::shared_ptr<LoadedModel>& model, std::shared_ptr<KvCache> full_cache, const QualityTerms& terms,
          std::span<const TokenId> text, const PromiseOptions& options)
      : terms_(terms),
        text_(text),
        options_(options),
        rows_(QualityMeter::bytes(options.quality, model->config.vocabulary)),
        meter_(options.quality, options.prompt, model->config.vocabulary, &rows_),
        controller_(options.quality.kl,
                    {terms.budget.first(), terms.budget.least(), terms.budget.most(), terms.budget.unit()}),
        shadow_(model, std::move(full_cache), shadow_policy()) {
    KVASIR_CHECK(meter_.open());
    report_.budgets.push_back({0, controller_.budget()});
  }

  void take(std::int64_t row, std::span<const float> logits) {
    if (meter_.row_to_capture(0) == row) meter_.capture(row, logits);
  }

  // Checks, if that is due after so many tokens of the text. Returns the policy's new form if its budget changes.
  Result<std::unique_ptr<RetentionPolicy>> check(std::int64_t tokens) {
    if (tokens < meter_.check_at()) return std::unique_ptr<RetentionPolicy>();
    const double before = seconds_of(shadow_);
    const std::int64_t had = shadow_.sequence().next_index();
    while (const std::optional<std::int64_t> row = meter_.row_to_compare(0)) {
      const auto first = static_cast<std::size_t>(shadow_.sequence().next_index());
      const auto count = static_cast<std::size_t>(*row) + 1 - first;
      KVASIR_RETURN_IF_ERROR(shadow_.feed(text_.subspan(first, count), options_.chunk, Logits::kLast,
                                          [&](std::int64_t, int, std::span<const float> logits) {
                                            if (!logits.empty()) meter_.compare(*row, logits);
                                            return true;
                                          }));
    }
    report_.shadow_seconds += seconds_of(shadow_) - before;
    report_.shadow_tokens += shadow_.sequence().next_index() - had;
    const std::int64_t budget = controller_.budget();
    if (controller_.add(meter_.end_check()) == budget) return std::unique_ptr<RetentionPolicy>();
    report_.budgets.push_back({tokens - options_.prompt, controller_.budget()});
    report_.reread_tokens += tokens;
    return terms_.budget.policy(controller_.budget());
  }

  QualityReport finish(std::int64_t tokens) {
    report_.kl_bound = options_.quality.kl;
    report_.kl_mean = controller_.mean();
    report_.kl_max = controller_.largest_mean();
    report_.compared = controller_.compared();
    report_.checks = controller_.checks();
    report_.unchecked = tokens - controller_.checks() * options_.quality.every;
    report_.budget = controller_.budget();
    report_.held = controller_.holds();
    report_.shadow_bytes = shadow_.whole().bytes_peak();
    report_.rows_bytes = rows_.used();
    return std::move(report_);
  }

 private:
  const QualityTerms& terms_;
  std::span<const TokenId> text_;
  const PromiseOptions& options_;
  MemoryBudget rows_;
  QualityMeter meter_;
  QualityController controller_;
  SequenceRunner shadow_;
  QualityReport report_;
};

// The fixed budget whose distance would be `kl`, between two neighbours of which one has more and one has less.
std::optional<double> budget_of(double kl, const std::vector<std::int64_t>& budgets,
                                const std::vector<PromiseRun>& runs) {
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].kl_mean > 0) points.emplace_back(static_cast<double>(budgets[i]), runs[i].kl_mean);
  std::ranges::sort(points);
  for (std::size_t i = 0; kl > 0 && i + 1 < points.size(); ++i) {
    const auto [low, more] = points[i];
    const auto [high, less] = points[i + 1];
    if (!(more >= kl && kl >= less) || more == less) continue;
    const double share = (std::log(more) - std::log(kl)) / (std::log(more) - std::log(less));
    return std::exp(std::log(low) + share * (std::log(high) - std::log(low)));
  }
  return {};
}

}  // namespace

Status check_promise_prompt(const PromiseOptions& options, std::int64_t tokens) {
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  if (options.prompt < 1 || options.prompt >= tokens)
    return invalid_argument("prompt={} is outside 1 to {}, so that tokens behind it are left of {}", options.prompt,
                            tokens - 1, counted(tokens, "token"))
        .about({"prompt"});
  return {};
}

Result<PromiseResult> evaluate_promise(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> tokens,
                                       const PromiseOptions& options, const Progress& progress) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  KVASIR_RETURN_IF_ERROR(check_promise_prompt(options, size));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> first, make_policy(options.policy));
  QualityAsk ask{options.quality, first.get(), model->kv_shape, model->codecs, options.prompt, size};
  ask.chunk = options.chunk;
  ask.context = model->config.context;
  ask.vocabulary = model->config.vocabulary;
  KVASIR_ASSIGN_OR_RETURN(const QualityTerms terms, quality_terms(ask));
  const MemoryRequest request{size, options.prompt, options.chunk, 1};
  const auto cache_for = [&](const RetentionPolicy& policy, const KvCacheShape& shape) {
    return make_evaluation_cache(model, shape, 0, policy, {&request, 1});
  };
  const std::unique_ptr<RetentionPolicy> full = shadow_policy();
  std::vector<std::unique_ptr<PolicyReader>> readers;  // the promise's, then those of fixed budgets
  const auto add_reader = [&](std::unique_ptr<RetentionPolicy> policy, const RetentionPolicy& largest) -> Status {
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, cache_for(largest, model->kv_shape));
    readers.push_back(std::make_unique<PolicyReader>(model, std::move(cache), std::move(policy), tokens, options));
    return {};
  };
  const std::unique_ptr<RetentionPolicy> largest = terms.budget.policy(terms.budget.most());
  KVASIR_RETURN_IF_ERROR(add_reader(first->clone(), *largest));
  for (const std::int64_t budget : options.fixed) {
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, terms.budget.try_policy(budget));
    const std::unique_ptr<RetentionPolicy> same = policy->clone();
    KVASIR_RETURN_IF_ERROR(add_reader(std::move(policy), *same));
  }
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> shadow_cache, cache_for(*full, terms.shadow_shape));
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> reference_cache, cache_for(*full, terms.shadow_shape));
  Promise promise(model, shadow_cache, terms, tokens, options);
  // The reference reads token by token, so that its rows are none of the promise's.
  PolicyReader reference(model, reference_cache, full->clone(), tokens, options);
  std::vector<float> right;
  const auto keep = [&](std::span<const float> logits) { right.assign(logits.begin(), logits.end()); };
  KVASIR_RETURN_IF_ERROR(reference.read_prompt(keep));
  for (std::size_t i = 0; i < readers.size(); ++i)
    KVASIR_RETURN_IF_ERROR(readers[i]->read_prompt([&](std::span<const float> logits) {
      readers[i]->add(compare_logits(right, logits).kld);
      if (i == 0) promise.take(options.prompt - 1, logits);
    }));
  // The last token has no successor to predict.
  for (std::int64_t row = options.prompt; row + 1 < size; ++row) {
    KVASIR_ASSIGN_OR_RETURN(const std::span<const float> logits, reference.read_token());
    keep(logits);
    for (std::size_t i = 0; i < readers.size(); ++i) {
      KVASIR_ASSIGN_OR_RETURN(const std::span<const float> own, readers[i]->read_token());
      readers[i]->add(compare_logits(right, own).kld);
      if (i == 0) promise.take(row, own);
    }
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> changed, promise.check(row + 1));
    if (changed != nullptr) KVASIR_RETURN_IF_ERROR(readers.front()->change(std::move(changed)));
    if (progress && !progress(row + 1, size)) return Status(StatusCode::kCancelled, "stopped");
  }
  PromiseResult result;
  result.promise = readers.front()->finish();
  result.promise.quality = promise.finish(result.promise.tokens);
  for (std::size_t i = 1; i < readers.size(); ++i) result.fixed.push_back(readers[i]->finish());
  result.shadow_bytes_peak = shadow_cache->budget().peak();
  result.equal_budget = budget_of(result.promise.kl_mean, options.fixed, result.fixed);
  return result;
}

}  // namespace kvasir
