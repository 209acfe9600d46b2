#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/status.h"
#include "engine/memory_plan.h"
#include "engine/sequence_runner.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

// -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, TokenValue target) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)] - largest);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

class Evaluation {
 public:
  Evaluation(const std::shared_ptr<LoadedModel>& model, std::span<const TokenValue> tokens,
             const PerplexityOptions& options, const std::function<bool(std::int64_t, std::int64_t)>& progress)
      : model_(model), tokens_(tokens), options_(options), progress_(progress) {}

  Result<PerplexityResult> run() {
    result_.codec = kv_type_name(model_->kv_shape.page.type);
    KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(options_.policy));
    if (options_.chunk < 1 || options_.chunk > 4096)
      return invalid_argument("--chunk {} is outside 1 to 4096", options_.chunk);
    if (options_.window != 0 && (options_.window < 4 || options_.window > std::int64_t{1} << 24))
      return invalid_argument("--window {} is outside 4 to 2^24 tokens", options_.window);
    const auto needed = static_cast<std::size_t>(options_.window > 0 ? options_.window : 2);
    if (tokens_.size() < needed)
      return invalid_argument("the text has {} tokens, at least {} are needed; give a longer text", tokens_.size(),
                              needed);
    if (options_.first_scored >= static_cast<std::int64_t>(tokens_.size()) - 1)
      return invalid_argument("--skip {} leaves nothing to score of {} tokens", options_.first_scored, tokens_.size());
    if (spec.name() == "recompute") {
      KVASIR_RETURN_IF_ERROR(recompute(spec));
    } else {
      KVASIR_RETURN_IF_ERROR(cached());
    }
    return finish();
  }

 private:
  using Logits = SequenceRunner::Logits;

  Result<std::shared_ptr<KvCache>> make_cache(const RetentionPolicy& policy, std::int64_t tokens) const {
    std::uint64_t budget = model_->options.kv_memory;
    const std::int64_t kept = std::min(policy.bound().value_or(tokens), tokens);
    if (budget == 0 && least_kv_bytes(model_->kv_shape, kept) > available_memory())
      return exhausted("policy '{}' keeps up to {} tokens, more than this machine has memory for", policy.spec(), kept);
    if (budget == 0) budget = plan_kv_memory(model_->kv_shape, policy, {tokens, tokens, options_.chunk, 1}).bytes;
    if (budget > available_memory())
      return exhausted("policy '{}' over {} tokens needs {} bytes of KV memory, more than this machine has left ({})",
                       policy.spec(), tokens, budget, available_memory());
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, KvCache::create(model_->kv_shape, budget));
    return std::shared_ptr<KvCache>(std::move(cache));
  }

  void score(std::span<const float> logits, TokenValue target) {
    const double nll = negative_log_likelihood(logits, target);
    sum_ += nll;
    squares_ += nll * nll;
    ++result_.tokens;
  }

  Status report(std::int64_t done, std::int64_t total) const {
    if (progress_ && !progress_(done, total)) return Status(StatusCode::kCancelled, "stopped");
    return {};
  }

  // Runs one stream; logits of position p (0-based in the stream) are scored if p >= first_scored and p + 1 < size.
  Status stream(SequenceRunner& runner, std::span<const TokenValue> tokens, std::int64_t first_scored,
                std::int64_t before, std::int64_t total) {
    const auto vocabulary = static_cast<std::size_t>(model_->config.vocabulary);
    StepTimes last;
    const auto size = static_cast<std::int64_t>(tokens.size());
    Status status;
    KVASIR_RETURN_IF_ERROR(runner.feed(tokens, options_.chunk, Logits::kAll,
                                       [&](std::int64_t first, int rows, std::span<const float> logits) {
                                         const StepTimes& times = runner.times();
                                         const double step = times.forward + times.cache - last.forward - last.cache;
                                         passes_.push_back(step * 1e3 / rows);
                                         last = times;
                                         for (int r = 0; r < rows; ++r)
                                           if (first + r >= first_scored && first + r + 1 < size)
                                             score(logits.subspan(static_cast<std::size_t>(r) * vocabulary, vocabulary),
                                                   tokens[static_cast<std::size_t>(first + r + 1)]);
                                         status = report(before + first + rows, total);
                                         return status.ok();
                                       }));
    result_.kept_max = std::max(result_.kept_max, runner.kept_max());
    times_ += runner.times();
    timed_tokens_ += size;
    return status;
  }

  Status cached() {
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(options_.policy));
    result_.policy = policy->spec();
    const auto total = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t window = options_.window > 0 ? options_.window : total;
    KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, make_cache(*policy, window));
    const auto bos = model_->tokenizer->vocabulary().bos;
    std::vector<TokenValue> part;
    for (std::int64_t begin = 0; begin + window <= total; begin += window) {
      part.assign(tokens_.begin() + begin, tokens_.begin() + begin + window);
      if (options_.window > 0 && bos && model_->tokenizer->vocabulary().add_bos) part.front() = *bos;
      SequenceRunner runner(model_, cache, policy->clone());
      KVASIR_RETURN_IF_ERROR(stream(runner, part, options_.window > 0 ? window / 2 : options_.first_scored, begin,
                                    total / window * window));
    }
    result_.kv_bytes_peak = cache->budget().peak();
    return {};
  }

  Status recompute(const PolicySpec& spec) {
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t size, spec.get_int("size", 1, std::int64_t{1} << 24));
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t stride, spec.get_int("stride", 1, std::int64_t{1} << 24));
    if (options_.window > 0) return invalid_argument("policy 'recompute' works on one stream; leave --window away");
    result_.policy = fmt::format("recompute:size={}", size);
    if (stride > 1) result_.policy += fmt::format(",stride={}", stride);
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> full, make_policy("full"));
    KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache,
                            make_cache(*full, std::min(size, static_cast<std::int64_t>(tokens_.size()))));
    const auto total = static_cast<std::int64_t>(tokens_.size());
    for (std::int64_t t = std::max<std::int64_t>(options_.first_scored, 0); t + 1 < total; t += stride) {
      const std::int64_t begin = std::max<std::int64_t>(0, t + 1 - size);
      SequenceRunner runner(model_, cache, full->clone());
      std::vector<float> logits;
      const auto start = std::chrono::steady_clock::now();
      KVASIR_RETURN_IF_ERROR(
          runner.feed(tokens_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(t + 1 - begin)), 512,
                      Logits::kLast, [&](std::int64_t, int, std::span<const float> out) {
                        logits.assign(out.begin(), out.end());
                        return true;
                      }));
      passes_.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      score(logits, tokens_[static_cast<std::size_t>(t + 1)]);
      times_ += runner.times();
      ++timed_tokens_;
      result_.kept_max = std::max(result_.kept_max, runner.kept_max());
      KVASIR_RETURN_IF_ERROR(report(t + 1, total));
    }
    result_.kv_bytes_peak = cache->budget().peak();
    return {};
  }

  PerplexityResult finish() {
    const auto n = static_cast<double>(result_.tokens);
    result_.nll = sum_ / n;
    result_.ppl = std::exp(result_.nll);
    const double variance = std::max(0.0, squares_ / n - result_.nll * result_.nll);
    result_.ppl_error = n > 1 ? result_.ppl * std::sqrt(variance / (n - 1)) : 0;
    result_.timed = static_cast<std::int64_t>(passes_.size());
    result_.tpot_ms = quantile(passes_, 0.5);
    result_.tpot_p10_ms = quantile(passes_, 0.1);
    result_.tpot_p90_ms = quantile(passes_, 0.9);
    result_.forward_ms = times_.forward * 1e3 / static_cast<double>(timed_tokens_);
    result_.cache_op_ms = times_.cache * 1e3 / static_cast<double>(timed_tokens_);
    return result_;
  }

  const std::shared_ptr<LoadedModel>& model_;
  std::span<const TokenValue> tokens_;
  const PerplexityOptions& options_;
  const std::function<bool(std::int64_t, std::int64_t)>& progress_;
  PerplexityResult result_;
  double sum_ = 0;
  double squares_ = 0;
  std::vector<double> passes_;  // milliseconds per token of each pass
  StepTimes times_;
  std::int64_t timed_tokens_ = 0;
};

}  // namespace

Result<PerplexityResult> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                             std::span<const TokenValue> tokens, const PerplexityOptions& options,
                                             const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  return Evaluation(model, tokens, options, progress).run();
}

}  // namespace kvasir
