#include "planning/quality_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "planning/memory_plan.h"
#include "quality/quality_meter.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

KvCacheShape shape_of_shadow(const QualityAsk& ask) {
  KvCodec codec;
  codec.long_rotation = ask.shape.codec().long_rotation;
  const bool allowed = std::ranges::any_of(ask.codecs, [&](const KvCodec& each) {
    KvCodec plain = each;
    plain.long_rotation = codec.long_rotation;
    return plain == codec;
  });
  return allowed ? ask.shape.with(codec) : ask.shape;
}

}  // namespace

std::unique_ptr<RetentionPolicy> shadow_policy() {
  Result<std::unique_ptr<RetentionPolicy>> full = make_policy(PolicySpec::named("full"));
  KVASIR_CHECK(full.ok());
  return std::move(*full);
}

Result<QualityTerms> quality_terms(const QualityAsk& ask) {
  KVASIR_RETURN_IF_ERROR(check_quality(ask.options));
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(ask.policy->traits().spec));
  if (spec.demotion)
    return invalid_argument(
               "kv.quality moves the budget of a policy that drops tokens, and '{}' keeps them elsewhere; "
               "leave @demote out",
               spec.text())
        .about({"policy"});
  const auto works = [&](const RetentionPolicy& policy) {
    return check_positions(policy, ask.chunk, ask.context, ask.tokens).ok();
  };
  KVASIR_ASSIGN_OR_RETURN(QualityBudget budget, QualityBudget::create(spec, ask.options, ask.tokens, works));
  if (ask.tokens > ask.context)
    return invalid_argument(
               "kv.quality compares with a full cache, and this model's maximum context length is {} tokens; the "
               "prompt "
               "has {}, and {} more are asked for: ask for at most {}",
               ask.context, ask.prompt, ask.tokens - ask.prompt, std::max<std::int64_t>(0, ask.context - ask.prompt))
        .about({"max_tokens"});
  QualityTerms terms{std::move(budget), shape_of_shadow(ask)};
  const auto peak = [&](const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t prompt) {
    return plan_kv_memory(shape, policy, {ask.tokens, prompt, ask.chunk, 1, true}).bytes;
  };
  terms.policy_bytes = peak(ask.shape, *terms.budget.policy(terms.budget.most()), ask.prompt);
  terms.rows_bytes = QualityMeter::bytes(ask.options, ask.vocabulary);
  terms.shadow_bytes = peak(terms.shadow_shape, *shadow_policy(), ask.tokens);
  return terms;
}

Status check_quality_fits(const QualityAsk& ask, const QualityTerms& terms, std::uint64_t budget) {
  if (terms.bytes() <= budget) return {};
  return exhausted(
             "kv.quality compares with a full cache, which for {} tokens takes {} bytes of KV memory; with {} of the "
             "request under {}={} and {} for the rows to compare, that is more than the {} there are: ask for fewer "
             "tokens, or limit the budget (most)",
             ask.tokens, terms.shadow_bytes, terms.policy_bytes, terms.budget.option(), terms.budget.most(),
             terms.rows_bytes, budget)
      .about({"quality", "max_tokens"});
}

std::int64_t most_quality_tokens(QualityAsk ask, std::uint64_t budget) {
  const auto fits = [&](std::int64_t tokens) {
    ask.tokens = tokens;
    const Result<QualityTerms> terms = quality_terms(ask);
    return terms.ok() && terms->bytes() <= budget;
  };
  std::int64_t least = ask.prompt, most = std::max(ask.prompt, ask.context);
  if (fits(most)) return most;
  while (least < most) {
    const std::int64_t middle = least + (most - least + 1) / 2;
    if (fits(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

}  // namespace kvasir
