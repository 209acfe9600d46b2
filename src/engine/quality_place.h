// What a request with a promise of quality gets of the cache, for submission and for plans alike.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/cache_sizing.h"
#include "planning/quality_plan.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct QualityRequest {
  QualityOptions options;
  KvCodec codec;                // of the request's pages
  std::int64_t prompt = 0;      // tokens
  std::int64_t max_tokens = 0;  // to generate; -1: as many as context and memory have room for
};

struct QualityPlace {
  std::int64_t max_tokens = 0;
  std::int64_t most_tokens = 0;  // that could be generated
  QualityTerms terms;
  Status refusal;  // why it can never run to its end; ok if it can
};

// `place`: of the request's policy. `codecs`: that the cache allows. `budget`: bytes that it may have. Errors: those of
// quality_terms.
Result<QualityPlace> place_quality(const LoadedModel& model, const QualityRequest& request, const CacheSize& place,
                                   const KvCacheShape& shape, const std::vector<KvCodec>& codecs, std::uint64_t budget);

}  // namespace kvasir
