#include "eval/scoring.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "base/system_memory.h"
#include "sequence/context_rules.h"

namespace kvasir {

using Logits = SequenceRunner::Logits;

TokenScore score_token(std::span<const float> logits, TokenId token) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto relative = [&](float logit) { return static_cast<double>(logit) - static_cast<double>(*largest); };
  double sum = 0;
  for (const float logit : logits) sum += std::exp(relative(logit));
  const double logprob = relative(logits[static_cast<std::size_t>(token)]) - std::log(sum);
  return {logprob, largest - logits.begin() == token};
}

Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests) {
  return make_evaluation_cache(model, model->kv_shape, model->options.kv_memory, policy, requests);
}

Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const KvCacheShape& shape, std::uint64_t budget,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests, int at_once) {
  std::uint64_t needed = 0;
  std::int64_t longest = 0;
  for (const MemoryRequest& request : requests) {
    longest = std::max(longest, request.tokens);
    const std::int64_t kept = std::min(policy.bound().value_or(request.tokens), request.tokens);
    if (budget == 0 && least_kv_bytes(shape, policy, kept) > memory_bound())
      return exhausted(
                 "policy '{}' keeps up to {} tokens, more than this machine has memory for; choose one that keeps "
                 "fewer",
                 policy.traits().spec, kept)
          .about({"policy"});
    if (budget == 0) needed = std::max(needed, plan_kv_memory(shape, policy, request).bytes);
  }
  if (budget == 0) budget = needed * static_cast<std::uint64_t>(at_once);
  if (budget > memory_bound())
    return exhausted(
               "policy '{}' over {} tokens needs {} bytes of KV memory, more than this machine has left ({}); give it "
               "less",
               policy.traits().spec, longest, budget, memory_bound())
        .about({"policy", "kv_memory"});
  const int chunk = requests.empty() ? 0 : requests.front().chunk;
  return new_cache(model, shape.with(codec_for(model->config, shape.codec(), policy, chunk, longest)), budget);
}

Result<std::vector<TokenScore>> score_text(SequenceRunner& runner, std::span<const TokenId> text, int chunk,
                                           const std::function<bool(std::int64_t)>& on_read) {
  std::vector<TokenScore> scores;
  scores.reserve(text.size());
  std::size_t read = 0;
  bool stopped = false;
  KVASIR_RETURN_IF_ERROR(runner.feed(
      text, chunk, Logits::kAll,
      [&](std::int64_t, int rows, std::span<const float> logits) {
        const std::size_t vocabulary = logits.size() / static_cast<std::size_t>(rows);
        for (int r = 0; r < rows; ++r, ++read)
          if (read + 1 < text.size())
            scores.push_back(
                score_token(logits.subspan(static_cast<std::size_t>(r) * vocabulary, vocabulary), text[read + 1]));
        stopped = on_read && !on_read(static_cast<std::int64_t>(read));
        return !stopped;
      },
      source_of(chunk)));
  if (stopped) return Status(StatusCode::kCancelled, "stopped");  // in the last pass
  return scores;
}

Result<std::vector<TokenScore>> score_answer(SequenceRunner& runner, std::span<const TokenId> prompt,
                                             std::span<const TokenId> answer, int chunk,
                                             const std::function<bool(std::int64_t)>& on_read) {
  std::vector<TokenScore> scores;
  std::span<const TokenId> next = prompt;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    bool stopped = false;
    KVASIR_RETURN_IF_ERROR(runner.feed(
        next, chunk, Logits::kLast,
        [&](std::int64_t first, int rows, std::span<const float> logits) {
          if (!logits.empty()) scores.push_back(score_token(logits, answer[i]));
          stopped = on_read && !on_read(first + rows);
          return !stopped;
        },
        i == 0 ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated));
    if (stopped) return Status(StatusCode::kCancelled, "stopped");
    next = answer.subspan(i, 1);
  }
  return scores;
}

}  // namespace kvasir
