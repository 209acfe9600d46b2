// What a promise of quality takes: the policy with its largest budget, the rows to compare, and a full cache of the
// longest text beside them.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kv/kv_cache.h"
#include "kvasir/quality.h"
#include "kvasir/status.h"
#include "quality/quality_budget.h"
#include "retention/policy.h"

namespace kvasir {

struct QualityAsk {
  QualityOptions options;
  const RetentionPolicy* policy = nullptr;  // in its initial state
  KvCacheShape shape;                       // of the request's pages
  std::span<const KvCodec> codecs;          // that the cache allows
  std::int64_t prompt = 0;                  // tokens
  std::int64_t tokens = 0;                  // of the longest text: prompt and answer
  int chunk = 0;                            // of prompts; 0: the policy's own
  std::int64_t context = 0;                 // trained, tokens
  int vocabulary = 0;
};

struct QualityTerms {
  QualityBudget budget;
  KvCacheShape shadow_shape;       // f16 pages if the cache allows them, otherwise the request's
  std::uint64_t policy_bytes = 0;  // peak of the largest budget
  std::uint64_t rows_bytes = 0;
  std::uint64_t shadow_bytes = 0;  // peak of the full cache of the longest text

  std::uint64_t bytes() const { return policy_bytes + rows_bytes + shadow_bytes; }
};

// Returns the policy `full`, which a shadow pass reads with.
std::unique_ptr<RetentionPolicy> shadow_policy();

// Errors: those of check_quality and QualityBudget::create; kInvalidArgument, about "max_tokens", if the full cache
// cannot hold the longest text because it is longer than the trained context.
Result<QualityTerms> quality_terms(const QualityAsk& ask);

// Checks that all of it fits `budget` bytes. Errors: kResourceExhausted with the arithmetic.
Status check_quality_fits(const QualityAsk& ask, const QualityTerms& terms, std::uint64_t budget);

// Returns the tokens of the longest text, at least `ask.prompt`, for which all fits; ask.tokens does not count.
std::int64_t most_quality_tokens(QualityAsk ask, std::uint64_t budget);

}  // namespace kvasir
