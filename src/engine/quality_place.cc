#include "engine/quality_place.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace kvasir {

Result<QualityPlace> place_quality(const LoadedModel& model, const QualityRequest& request, const CacheSize& place,
                                   const KvCacheShape& shape, const std::vector<KvCodec>& codecs,
                                   std::uint64_t budget) {
  QualityAsk ask{request.options, place.policy.get(), shape.with(request.codec), codecs, request.prompt};
  ask.tokens = std::min(request.prompt, model.config.context);
  ask.chunk = place.chunk;
  ask.context = model.config.context;
  ask.vocabulary = model.config.vocabulary;
  KVASIR_RETURN_IF_ERROR(quality_terms(ask).status());  // what is wrong with it, whatever its length
  const std::int64_t most = most_quality_tokens(ask, budget) - request.prompt;
  const std::int64_t tokens = request.max_tokens < 0 ? std::max<std::int64_t>(most, 1) : request.max_tokens;
  ask.tokens = request.prompt + tokens;
  KVASIR_ASSIGN_OR_RETURN(QualityTerms terms, quality_terms(ask));
  const Status fits = check_quality_fits(ask, terms, budget);
  return QualityPlace{tokens, most, std::move(terms), fits};
}

}  // namespace kvasir
