#include "kvasir/engine.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "engine/cache_sizing.h"
#include "engine/context_rules.h"
#include "engine/driver.h"
#include "engine/guarded.h"
#include "engine/loaded_model.h"
#include "engine/request_queue.h"
#include "engine/session.h"

namespace kvasir {
namespace {

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(std::shared_ptr<LoadedModel> model) : model_(std::move(model)) {
    summary_ = {model_->config.name,           std::string(model_->config.architecture->name),
                model_->config.context,        model_->config.vocabulary,
                model_->weight_bytes,          std::string(model_->kernels->name),
                model_->threads->threads(),    std::string(model_->chat->name()),
                !model_->chat->failure().ok(), model_->tokenizer->vocabulary().pre_tokenizer_assumed};
  }

  const ModelSummary& model() const override { return summary_; }

  Result<LoadedSession> load_session(const std::string& path, int sequences) override {
    return guarded([&]() -> Result<LoadedSession> {
      int chunk = 0;
      const auto make_cache = [&](const SessionHead& head, const RetentionPolicy& policy) {
        return cache_for(head, policy, sequences, &chunk);
      };
      KVASIR_ASSIGN_OR_RETURN(kvasir::LoadedSession loaded, kvasir::load_session(path, model_, make_cache));
      loaded.head.chunk = chunk;
      LoadedSession result;
      result.other_arithmetic = loaded.other_arithmetic;
      KVASIR_ASSIGN_OR_RETURN(result.session, make_session(driver_, std::move(loaded)));
      return result;
    });
  }

  Result<std::unique_ptr<Session>> new_session(const SessionOptions& options) override {
    return guarded([&] { return start_session(options); });
  }

  Result<RequestId> submit(const RequestOptions& options) override {
    return guarded([&] { return take_request(options); });
  }
  Result<std::vector<Event>> poll() override {
    if (requests_ == nullptr) return std::vector<Event>();
    return requests_->poll();
  }
  Status cancel(RequestId request) override {
    if (requests_ == nullptr)
      return make_status(StatusCode::kNotFound, "no request {} is waiting or running",
                         static_cast<std::uint64_t>(request));
    return requests_->cancel(request);
  }
  std::int64_t unfinished() const override { return requests_ != nullptr ? requests_->unfinished() : 0; }

  Status set_quota(int tenant, const TenantQuota& quota) override {
    if (tenant < 0 || (quota.ceiling > 0 && quota.ceiling < quota.floor))
      return invalid_argument("tenant {} cannot have a floor of {} and a ceiling of {}", tenant, quota.floor,
                              quota.ceiling)
          .about({"tenant"});
    return {};
  }

  void set_prefix_listener(PrefixListener* listener) override {
    listener_ = listener;
    if (PrefixCache* prefixes = requests_ == nullptr ? nullptr : requests_->prefixes(); prefixes != nullptr)
      prefixes->set_listener(listener);
  }

  EngineReport report() const override {
    EngineReport report;
    report.cache = cache();
    report.running = unfinished();
    report.request_bytes = report.cache.bytes;
    if (requests_ == nullptr) return report;
    report.prefix_queries = requests_->counters().prefix_queries;
    report.prefix_hits = requests_->counters().prefix_hits;
    if (const PrefixCache* prefixes = requests_->prefixes(); prefixes != nullptr) {
      report.prefix_bytes = prefixes->evictable_bytes();
      report.request_bytes -= report.prefix_bytes;
    }
    return report;
  }

  CacheReport cache() const override {
    if (driver_ == nullptr) return {};
    const MemoryBudget& budget = driver_->cache()->budget();
    return {budget.used(), budget.peak(), budget.capacity()};
  }

 private:
  CacheConditions conditions(const KvCacheShape& shape, int chunk) const {
    CacheConditions conditions{shape, model_->config.context, chunk, model_->options.kv_memory, memory_for_run(1), {}};
    conditions.workspace_bytes = [this](const Backend::WorkspaceRequest& work) {
      return model_->backend->workspace_bytes(work);
    };
    if (driver_ != nullptr) conditions.kv_memory = conditions.available = cache().budget;
    return conditions;
  }

  // Creates nothing but the policy. `spec`: empty for the default.
  Result<CacheSize> find_place(const std::string& spec, int sequences) const {
    const CacheConditions now = conditions(model_->kv_shape, model_->options.chunk);
    if (driver_ != nullptr) return share_cache(now, spec);
    KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
    return size_cache(now, spec, sequences);
  }

  Status ensure_cache(std::uint64_t budget) {
    if (driver_ != nullptr) return {};
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, budget));
    driver_ = std::make_shared<Driver>(model_, std::move(cache));
    return {};
  }

  Result<std::unique_ptr<Session>> start_session(const SessionOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(CacheSize place, find_place(options.policy, options.sequences));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.bytes));
    return make_session(driver_, std::move(place.policy), place.chunk);
  }

  Result<RequestId> take_request(const RequestOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(RequestText text, encode_request(*model_, options));
    Result<CacheSize> found = find_place(options.policy, options.samples);
    if (!found.ok()) return about_unless_said(found.status(), "policy");
    CacheSize place = std::move(*found);
    const KvCacheShape& shape = driver_ != nullptr ? driver_->cache()->shape() : model_->kv_shape;
    KVASIR_RETURN_IF_ERROR(check_prompt(shape, *place.policy, {}, 0, static_cast<std::int64_t>(text.tokens.size()),
                                        place.chunk, model_->config.context, place.bytes));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.bytes));
    if (requests_ == nullptr) {
      requests_ = std::make_unique<RequestQueue>(driver_);
      if (model_->options.prefix_memory > 0) {
        requests_->cache_prefixes(model_->options.prefix_memory);
        requests_->prefixes()->set_listener(listener_);
      }
    }
    return requests_->add(options, std::move(text), std::move(place.policy), place.chunk);
  }

  // The cache for a session of a file, whose pages have a format of their own, and the chunk of its further prompts.
  Result<std::shared_ptr<KvCache>> cache_for(const SessionHead& head, const RetentionPolicy& policy, int sequences,
                                             int* chunk) {
    *chunk = head.chunk;
    KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
    KVASIR_RETURN_IF_ERROR(check_positions(policy, head.chunk, model_->config.context));
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model_->config, head.kv_type, head.page_slots));
    if (driver_ != nullptr) {
      const PageFormat& page = driver_->cache()->shape().page;
      if (page == shape.page) return driver_->cache();
      return invalid_argument(
          "the session file has {} pages of {} tokens, the engine's cache {} pages of {}; load it into "
          "an engine of its own",
          head.kv_type, head.page_slots, codec_name(page), page.slots);
    }
    CacheConditions now = conditions(shape, head.chunk);
    if (now.kv_memory > 0) now.kv_memory = std::min(now.kv_memory, now.available);
    const CacheFit fit = fit_cache(now, policy);
    if (policy.bound() && !fit.fits())
      return exhausted("the session's policy '{}' needs {} bytes of KV memory, and {} can be given",
                       policy.traits().spec, fit.needed, fit.limit)
          .about({"kv_memory"});
    if (fit.chunk != prompt_chunk(policy, head.chunk)) *chunk = fit.chunk;
    std::uint64_t budget = model_->options.kv_memory;
    if (budget == 0) budget = for_several(fit.needed, fit.limit, sequences);
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, shape, budget));
    driver_ = std::make_shared<Driver>(model_, cache);
    return cache;
  }

  static Status check_sequences(int sequences) {
    if (sequences >= 1 && sequences <= 65) return {};
    return invalid_argument("sequences={} is outside 1 to 65", sequences).about({"sequences"});
  }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<Driver> driver_;          // null until the first session or request sizes the cache
  std::unique_ptr<RequestQueue> requests_;  // null until the first request
  PrefixListener* listener_ = nullptr;
  ModelSummary summary_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return guarded([&]() -> Result<std::unique_ptr<Engine>> {
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_model(options, progress));
    return {std::unique_ptr<Engine>(new EngineImpl(std::move(model)))};
  });
}

}  // namespace kvasir
