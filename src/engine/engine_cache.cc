#include "engine/engine_cache.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/status.h"
#include "base/system_memory.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

// The policy that a caller names; none: the default. Errors: those of PolicySpec::parse.
Result<std::optional<PolicySpec>> spec_of(const std::string& policy) {
  if (policy.empty()) return std::optional<PolicySpec>();
  KVASIR_ASSIGN_OR_RETURN(PolicySpec spec, PolicySpec::parse(policy));
  return std::optional(std::move(spec));
}

std::string names_of(const std::vector<KvCodec>& codecs, std::string_view between) {
  std::vector<std::string> names;
  for (const KvCodec& codec : codecs) names.push_back(codec_name(codec));
  return fmt::format("{}", fmt::join(names, between));
}

Status check_sequences(int sequences) {
  if (sequences >= 1 && sequences <= 65) return {};
  return invalid_argument("sequences={} is outside 1 to 65", sequences).about({"sequences"});
}

Status check_thoughts(const RetentionPolicy& policy, const KvCacheShape& shape) {
  const bool plain = shape.window == 0 && shape.windows.empty() && shape.states.empty();
  if (plain || !policy.as<DropsThoughts>()) return {};
  return unsupported("thoughts cannot be dropped in models with windows or states; give thoughts=keep")
      .about({"thoughts"});
}

}  // namespace

CacheConditions EngineCache::conditions(const KvCacheShape& shape, int chunk) const {
  // The system counts mapped weights as memory that it can take back. Whoever runs the model cannot spare it.
  const bool reclaimable = model_->weight_file != nullptr && !model_->options.lock_weights;
  const std::uint64_t left = memory_for_run(1), weights = reclaimable ? model_->weight_bytes : 0;
  CacheConditions conditions{
      shape, model_->config.context, chunk, model_->options.kv_memory, left - std::min(left, weights), {}};
  for (const KvCodec& codec : codecs())
    if (codec != shape.codec()) conditions.others.push_back(shape.with(codec));
  conditions.workspace_bytes = [this](const Backend::WorkspaceRequest& work) {
    return model_->backend->workspace_bytes(work);
  };
  // Not report(): plan() comes here from any thread.
  if (runner_ != nullptr)
    conditions.kv_memory = conditions.available = runner_->cache()->budget().capacity() - draft_bytes_;
  return conditions;
}

Result<CacheSize> EngineCache::find_place(const std::string& policy_text, std::int64_t protect,
                                          const KvCacheShape& shape, int sequences) const {
  CacheConditions now = conditions(shape, model_->options.chunk);
  now.protect = protect;
  if (runner_ != nullptr && policy_text.empty()) return default_place(now);
  if (runner_ == nullptr) KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
  KVASIR_ASSIGN_OR_RETURN(const std::optional<PolicySpec> spec, spec_of(policy_text));
  Result<CacheSize> place = runner_ != nullptr ? share_cache(now, spec) : size_cache(now, spec, sequences);
  if (!place.ok()) return place;
  const RetentionPolicy& policy = *place->policy;
  KVASIR_RETURN_IF_ERROR(check_model(policy, policy_model(*model_)));
  KVASIR_RETURN_IF_ERROR(check_thoughts(policy, shape));
  KVASIR_RETURN_IF_ERROR(policy.check_pages(policy_model(*model_), shape.page));
  KVASIR_RETURN_IF_ERROR(check_demotion_file(policy, model_->demotion_file.get()));
  KVASIR_RETURN_IF_ERROR(check_offload(policy, model_->kv_shape, model_->cold_tier.get()));
  return place;
}

// The default in the cache that exists, which does not change: finding it takes a search among plans.
Result<CacheSize> EngineCache::default_place(const CacheConditions& now) const {
  const std::lock_guard lock(default_mutex_);  // plan() comes here from any thread
  constexpr std::size_t kMostPlaces = 64;
  const std::pair key(codec_name(now.shape.codec()), now.protect);
  auto found = default_places_.find(key);
  if (found == default_places_.end()) {
    KVASIR_ASSIGN_OR_RETURN(CacheSize place, share_cache(now, {}));
    if (default_places_.size() == kMostPlaces) default_places_.clear();
    found = default_places_.emplace(key, std::move(place)).first;
  }
  const CacheSize& place = found->second;
  return CacheSize{place.policy->clone(), place.chunk, place.bytes};
}

// Drafts change no text, so their memory never makes a policy that is sized by memory larger or smaller.
void EngineCache::plan_drafts(std::uint64_t budget, int sequences) {
  if (model_->draft == nullptr || model_->options.kv_memory > 0) return;
  const LoadedModel& draft = *model_->draft;
  const std::uint64_t wanted =
      plan_draft_texts(draft.kv_shape, draft.config.context, kMostDraftTokens + kDraftRows, sequences).bytes;
  const std::uint64_t left = memory_for_run(1);
  draft_bytes_ = std::min(wanted, left - std::min(left, budget));
}

Status EngineCache::ensure_cache(std::uint64_t budget, int sequences) {
  if (runner_ != nullptr) return {};
  plan_drafts(budget, sequences);
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, budget + draft_bytes_));
  runner_ = std::make_shared<BatchRunner>(model_, std::move(cache));
  return {};
}

Result<KvCacheShape> EngineCache::shape_of(const std::string& codec) const {
  if (codec.empty()) return cache_shape().with(default_codec());
  const ParsedCodec parsed = parse_codec(codec);
  const std::vector<KvCodec> allowed = codecs();
  if (!parsed.error.empty())
    return invalid_argument("'{:.200}' is no KV codec; choose one of these: {}", codec, names_of(allowed, "; "))
        .about({"codec"});
  if (std::ranges::find(allowed, parsed.codec) != allowed.end()) return cache_shape().with(parsed.codec);
  return invalid_argument("the KV codec '{}' is not allowed here; choose one of these: {}", codec_name(parsed.codec),
                          names_of(allowed, "; "))
      .about({"codec"});
}

// The codec of the cache, which a session file may have brought along, with the angles that the options ask for.
KvCodec EngineCache::default_codec() const {
  KvCodec codec = cache_shape().codec();
  codec.long_rotation = model_->kv_shape.long_rotation;
  return codec;
}

Result<KvCacheShape> EngineCache::check_pages(const SessionHead& head) const {
  const KvCache& cache = *runner_->cache();
  KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model_->config, head.kv_type, head.page_slots));
  const int slots = cache.shape().page.slots;
  if (slots == shape.page.slots && cache.allows(shape.codec())) return shape;
  return invalid_argument(
      "the session file has {} pages of {} tokens, but here are {} pages of {}; load it where its own are used "
      "(kvasir run --load does)",
      head.kv_type, head.page_slots, names_of(cache.codecs(), " or "), slots);
}

Result<std::shared_ptr<KvCache>> EngineCache::cache_for(const SessionHead& head, const RetentionPolicy& policy,
                                                        int sequences, int* chunk) {
  *chunk = head.chunk;
  KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
  KVASIR_RETURN_IF_ERROR(check_positions(policy, head.chunk, model_->config.context));
  if (runner_ != nullptr) {
    KVASIR_RETURN_IF_ERROR(check_pages(head).status());
    return runner_->cache();
  }
  KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model_->config, head.kv_type, head.page_slots));
  CacheConditions now = conditions(shape, head.chunk);
  if (now.kv_memory > 0) now.kv_memory = std::min(now.kv_memory, now.available);
  const CacheFit fit = fit_cache(now, policy);
  if (policy.bound() && !fit.fits())
    return exhausted("the session's policy '{}' needs {} bytes of KV memory, and {} can be given", policy.traits().spec,
                     fit.needed, fit.limit)
        .about({"kv_memory"});
  if (fit.chunk != prompt_chunk(policy, head.chunk)) *chunk = fit.chunk;
  std::uint64_t budget = model_->options.kv_memory;
  if (budget == 0) budget = for_several(fit.needed, fit.limit, sequences);
  plan_drafts(budget, sequences);
  KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, shape, budget + draft_bytes_));
  // Besides, what the engine's options name expressly.
  for (std::size_t i = 1; i < model_->codecs.size(); ++i) KVASIR_RETURN_IF_ERROR(cache->allow(model_->codecs[i]));
  runner_ = std::make_shared<BatchRunner>(model_, cache);
  return cache;
}

CacheReport EngineCache::report() const {
  if (runner_ == nullptr) return {};
  const MemoryBudget& budget = runner_->cache()->budget();
  return {budget.used(), budget.peak(), budget.capacity()};
}

}  // namespace kvasir
