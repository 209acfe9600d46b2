#include "eval/restream.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/counted.h"
#include "base/status.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

Status check(std::span<const TokenId> text, const RestreamOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  if (options.distances.empty())
    return invalid_argument("there is no distance to go back; give some, for example 64,256").about({"distances"});
  const auto fill = static_cast<std::int64_t>(text.size());
  for (const std::int64_t distance : options.distances) {
    if (distance < 2)
      return invalid_argument("a distance of {} leaves nothing to score; give 2 or more", counted(distance, "token"))
          .about({"distances"});
    if (distance >= fill)
      return invalid_argument(
                 "a distance of {} goes back before the beginning of the {} that are read; "
                 "read a longer text, or give a shorter distance",
                 counted(distance, "token"), fill)
          .about({"distances", "tokens"});
  }
  if (fill + std::ranges::max(options.distances) > kMostPlannedTokens)
    return invalid_argument("{} tokens are more than can be planned ({}); read fewer", fill, kMostPlannedTokens)
        .about({"tokens"});
  return {};
}

// Returns the mean negative log-likelihood of the last `count` scores.
double mean_nll(std::span<const TokenScore> scores, std::size_t count) {
  double sum = 0;
  for (const TokenScore& score : scores.last(count)) sum -= score.logprob;
  return sum / static_cast<double>(count);
}

}  // namespace

Result<RestreamResult> evaluate_restream(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                         const RestreamOptions& options, const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check(text, options));
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));
  const auto fill = static_cast<std::int64_t>(text.size());
  const std::int64_t all = std::accumulate(options.distances.begin(), options.distances.end(), fill);
  const std::int64_t most = fill + std::ranges::max(options.distances);
  // A fork shares the original's pages; in the worst case it replaces all of them.
  const MemoryRequest request{most, most, options.chunk, 2};
  KVASIR_RETURN_IF_ERROR(check_positions(*policy, options.chunk, model->config.context, most));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, make_evaluation_cache(model, *policy, {&request, 1}));

  RestreamResult result;
  result.policy = policy->traits().spec;
  result.codec = codec_name(cache->shape().codec());
  std::int64_t before = 0;
  const auto on_read = [&](std::int64_t read) { return !progress || progress(before + read, all); };
  SequenceRunner filled(model, cache, std::move(policy));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenScore> first, score_text(filled, text, options.chunk, on_read));
  before = fill;
  result.kept_max = filled.counters().kept_max;
  result.kv_bytes_peak = cache->budget().peak();

  for (const std::int64_t distance : options.distances) {
    const auto count = static_cast<std::size_t>(distance);
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> copy, filled.fork());
    KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenScore> again,
                            score_text(*copy, text.last(count), options.chunk, on_read));
    before += distance;
    result.kept_max = std::max(result.kept_max, copy->counters().kept_max);
    RestreamPoint point{distance, distance - 1};
    point.first_nll = mean_nll(first, count - 1);
    point.first_ppl = std::exp(point.first_nll);
    point.nll = mean_nll(again, count - 1);
    point.ppl = std::exp(point.nll);
    result.points.push_back(point);
  }
  return result;
}

}  // namespace kvasir
