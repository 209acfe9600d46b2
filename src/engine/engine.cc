#include "kvasir/engine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include "base/guarded.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "planning/cache_sizing.h"
#include "planning/request_plan.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "requests/sequence_view.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "scheduler/admission.h"
#include "scheduler/driver.h"
#include "sequence/context_rules.h"
#include "session/session.h"
#include "tiers/disk_store.h"
#include "tiers/redis_store.h"

namespace kvasir {
namespace {

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::shared_ptr<LoadedModel> model, std::unique_ptr<SpillFile> swap,
             std::vector<std::unique_ptr<BlobStore>> stores)
      : model_(std::move(model)), text_(make_model_text(model_)), swap_(std::move(swap)), stores_(std::move(stores)) {
    summary_ = {model_->config.name,
                std::string(model_->config.architecture()),
                model_->config.context,
                model_->config.vocabulary,
                model_->weight_bytes,
                std::string(model_->kernels->name),
                model_->threads->threads(),
                std::string(model_->chat->name()),
                !model_->chat->failure().ok(),
                model_->tokenizer->vocabulary().pre_tokenizer_assumed,
                model_->config.governed().kv_heads,
                model_->sampling};
  }

  const ModelSummary& model() const override { return summary_; }
  const ModelText& text() const override { return *text_; }

  Result<RequestPlan> plan(const PlanRequest& request) const override {
    return guarded([&]() -> Result<RequestPlan> {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, shape_of(request.codec));
      Result<CacheSize> place = find_place(request.policy, request.protect, shape, 1);
      if (!place.ok()) return about_unless_said(place.status(), "policy");
      if (const std::uint64_t ceiling = ceiling_of(request.tenant); ceiling > 0)
        place->bytes = std::min(place->bytes, ceiling);
      return plan_request(request, shape, *place, model_->config.context);
    });
  }

  Result<LoadedSession> load_session(const std::string& path, int sequences) override {
    return guarded([&]() -> Result<LoadedSession> {
      std::error_code unknown;  // the file's own error comes when it is read
      const std::uintmax_t size = std::filesystem::file_size(path, unknown);
      if (!unknown) evict_prefixes(size + size / 8);
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

  Result<LoadedSession> open_session(const std::string& path) const override {
    return guarded([&]() -> Result<LoadedSession> {
      if (driver_ == nullptr)
        return invalid_argument("there is no cache yet that the session could be opened for; load it instead");
      KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<const SessionImage> image, open_image(path, *model_));
      const SessionHead& head = image->parts.head;
      KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(image->parts.policy));
      KVASIR_RETURN_IF_ERROR(check_positions(*policy, head.chunk, model_->config.context));
      const KvCache& cache = *driver_->cache();
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, check_pages(head, cache));
      KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> counting, KvCache::create(shape, cache.budget().capacity()));
      KVASIR_ASSIGN_OR_RETURN(kvasir::LoadedSession loaded, restore_session(image->parts, model_, counting));
      LoadedSession result;
      result.other_arithmetic = loaded.other_arithmetic;
      KVASIR_ASSIGN_OR_RETURN(result.session, make_session(driver_, std::move(loaded), image));
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
  bool settling() const override { return requests_ != nullptr && requests_->settling(); }
  std::int64_t unfinished() const override { return requests_ != nullptr ? requests_->unfinished() : 0; }

  Status set_quota(int tenant, const TenantQuota& quota) override {
    if (tenant < 0 || (quota.ceiling > 0 && quota.ceiling < quota.floor))
      return invalid_argument("tenant {} cannot have a floor of {} and a ceiling of {}", tenant, quota.floor,
                              quota.ceiling)
          .about({"tenant"});
    const std::uint64_t budget = driver_ != nullptr ? cache().budget : model_->options.kv_memory;
    const std::lock_guard lock(quotas_mutex_);
    std::uint64_t left = budget;
    for (const auto& [other, theirs] : quotas_)
      if (other != tenant) left -= std::min(left, theirs.floor);
    if (budget > 0 && quota.floor > left)
      return invalid_argument(
                 "tenant {} cannot have a floor of {} bytes: the cache has {}, of which the floors of other tenants "
                 "leave {}",
                 tenant, quota.floor, budget, left)
          .about({"tenant"});
    quotas_[tenant] = quota;
    if (requests_ != nullptr) requests_->set_quota(tenant, quota);
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
    for (const KvCodec& codec : codecs()) report.codecs.push_back(codec_name(codec));
    if (swap_ != nullptr) report.swap = {.capacity = swap_->capacity(), .method = swap_->method()};
    for (const std::unique_ptr<BlobStore>& store : stores_) {
      const BlobUsage usage = store->usage();
      report.prefix_tiers.push_back({.name = store->name(),
                                     .usable = store->usable(),
                                     .parts = usage.blobs,
                                     .bytes = usage.bytes,
                                     .capacity = usage.capacity});
    }
    if (driver_ != nullptr) {
      const KvCacheShape& shape = driver_->cache()->shape();
      report.page_bytes = driver_->cache()->pool().page_cost();
      report.pages = driver_->cache()->pool().report();
      report.page_slots = shape.page.slots;
      report.lanes = shape.lanes();
    }
    report.request_bytes = report.cache.bytes;
    if (requests_ == nullptr) return report;
    const RequestQueue::Counters& counters = requests_->counters();
    report.passes = counters.passes;
    report.mixed_passes = counters.mixed;
    report.mixed_prompt_rows = counters.mixed_rows;
    report.running = requests_->running();
    report.waiting = requests_->unfinished() - report.running;
    report.tenants = requests_->tenants();
    report.preemptions = counters.preempted;
    report.prompt_tokens = counters.prompt_tokens;
    report.generated_tokens = counters.generated_tokens;
    report.recomputed_tokens = counters.recomputed_tokens;
    report.evicted_tokens = counters.evicted_tokens;
    report.prefix_queries = counters.prefix_queries;
    report.prefix_hits = counters.prefix_hits;
    report.swap = requests_->swap_report();
    if (stores_.empty()) report.prefix_tiers = requests_->tier_report();
    report.prefix_buffers = requests_->tier_buffers();
    if (const PrefixCache* prefixes = requests_->prefixes(); prefixes != nullptr) {
      report.prefix_bytes = prefixes->evictable_bytes() + prefixes->charged_bytes();
      report.request_bytes -= report.prefix_bytes;
    }
    return report;
  }

  SequenceList sequences(int tenant, std::size_t most) const override {
    return requests_ != nullptr ? list_sequences(*requests_, tenant, most) : SequenceList();
  }
  Result<TokenView> tokens_of(const TokenQuery& query) const override {
    if (requests_ == nullptr) return make_status(StatusCode::kNotFound, "there is no request '{}'", query.label);
    return view_tokens(*requests_, *model_->tokenizer, query);
  }

  CacheReport cache() const override {
    if (driver_ == nullptr) return {};
    const MemoryBudget& budget = driver_->cache()->budget();
    return {budget.used(), budget.peak(), budget.capacity()};
  }

 private:
  CacheConditions conditions(const KvCacheShape& shape, int chunk) const {
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
    // Not cache(): plan() comes here from any thread.
    if (driver_ != nullptr) conditions.kv_memory = conditions.available = driver_->cache()->budget().capacity();
    return conditions;
  }

  // The policy that a caller names; none: the default. Errors: those of PolicySpec::parse.
  static Result<std::optional<PolicySpec>> spec_of(const std::string& policy) {
    if (policy.empty()) return std::optional<PolicySpec>();
    KVASIR_ASSIGN_OR_RETURN(PolicySpec spec, PolicySpec::parse(policy));
    return std::optional(std::move(spec));
  }

  // Creates nothing but the policy. `policy_text`: empty for the default. `protect`: SessionOptions::protect.
  Result<CacheSize> find_place(const std::string& policy_text, std::int64_t protect, const KvCacheShape& shape,
                               int sequences) const {
    CacheConditions now = conditions(shape, model_->options.chunk);
    now.protect = protect;
    if (driver_ != nullptr && policy_text.empty()) return default_place(now);
    if (driver_ == nullptr) KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
    KVASIR_ASSIGN_OR_RETURN(const std::optional<PolicySpec> spec, spec_of(policy_text));
    Result<CacheSize> place = driver_ != nullptr ? share_cache(now, spec) : size_cache(now, spec, sequences);
    if (!place.ok()) return place;
    const RetentionPolicy& policy = *place->policy;
    KVASIR_RETURN_IF_ERROR(check_model(policy, policy_model(*model_)));
    KVASIR_RETURN_IF_ERROR(policy.check_pages(policy_model(*model_), shape.page));
    KVASIR_RETURN_IF_ERROR(check_demotion_file(policy, model_->demotion_file.get()));
    KVASIR_RETURN_IF_ERROR(check_offload(policy, model_->kv_shape.page, model_->cold_tier.get()));
    return place;
  }

  // The default in the cache that exists, which does not change: finding it takes a search among plans.
  Result<CacheSize> default_place(const CacheConditions& now) const {
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

  Status ensure_cache(std::uint64_t budget) {
    if (driver_ != nullptr) return {};
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, budget));
    driver_ = std::make_shared<Driver>(model_, std::move(cache));
    return {};
  }

  Result<std::unique_ptr<Session>> start_session(const SessionOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, shape_of(options.codec));
    KVASIR_ASSIGN_OR_RETURN(CacheSize place, find_place(options.policy, options.protect, shape, options.sequences));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.bytes));
    return make_session(driver_, std::move(place.policy), place.chunk, shape.codec());
  }

  // Of the cache; while there is none, of the one that would be made.
  const KvCacheShape& cache_shape() const { return driver_ != nullptr ? driver_->cache()->shape() : model_->kv_shape; }

  // That sequences may have, the default first.
  std::vector<KvCodec> codecs() const { return driver_ != nullptr ? driver_->cache()->codecs() : model_->codecs; }

  // The shape of the pages that a caller asks for; `codec`: empty for the default. Errors: kInvalidArgument unless it
  // is one that sequences may have.
  Result<KvCacheShape> shape_of(const std::string& codec) const {
    if (codec.empty()) return cache_shape();
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

  static std::string names_of(const std::vector<KvCodec>& codecs, std::string_view between) {
    std::vector<std::string> names;
    for (const KvCodec& codec : codecs) names.push_back(codec_name(codec));
    return fmt::format("{}", fmt::join(names, between));
  }

  // Takes a request that continues a session.
  Result<RequestId> continue_session(const RequestOptions& options) {
    auto* base = dynamic_cast<SessionBase*>(options.session.get());
    KVASIR_RETURN_IF_ERROR(check_request(*model_, options));
    KVASIR_RETURN_IF_ERROR(prompt_field(options).status());
    if (base == nullptr || base->driver() != driver_)
      return invalid_argument("the session is not one of this engine").about({"session"});
    if (options.samples != 1 || !options.template_arguments.empty())
      return invalid_argument("a request that continues a session has one sample and no template arguments")
          .about({"samples", "template_arguments"});
    const Sequence& sequence = *base->held().sequence;
    const std::string& spec = sequence.policy().traits().spec;
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_policy(spec));
    if (!options.policy.empty() || !options.demote.empty()) {
      const std::string wanted = with_demotion(options.policy.empty() ? spec : options.policy, options.demote);
      KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> asked, make_policy(wanted));
      if (asked->traits().spec != spec)
        return invalid_argument("the session runs under policy '{}', not '{}'; name that one or none", spec,
                                asked->traits().spec)
            .about({"policy"});
    }
    if (!options.codec.empty()) {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape asked, shape_of(options.codec));
      if (asked.codec() != sequence.shape().codec())
        return invalid_argument("the session is stored in the KV codec '{}', not '{}'; name that one or none",
                                codec_name(sequence.shape().codec()), codec_name(asked.codec()))
            .about({"codec"});
    }
    KVASIR_ASSIGN_OR_RETURN(RequestText text, base->begin(options));
    const KvSequence& tables = sequence.tables();
    KVASIR_RETURN_IF_ERROR(check_prompt(sequence.shape(), *policy, context_place(tables), tables.shortest(),
                                        static_cast<std::int64_t>(text.tokens.size()), base->held().chunk,
                                        model_->config.context, cache().budget));
    KVASIR_RETURN_IF_ERROR(check_session_ceiling(options.tenant, *base, static_cast<std::int64_t>(text.tokens.size())));
    KVASIR_RETURN_IF_ERROR(ensure_queue());
    return requests_->add(options, std::move(text), std::move(policy), base->held().chunk);
  }

  Result<RequestId> take_request(const RequestOptions& options) {
    if (options.session != nullptr) return continue_session(options);
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, shape_of(options.codec));
    KVASIR_ASSIGN_OR_RETURN(RequestText text, encode_request(*model_, options));
    KVASIR_RETURN_IF_ERROR(check_samples(options.samples, text.tokens.size()));
    if (options.policy.empty() && !options.demote.empty() && options.demote != "off")
      return invalid_argument("demote needs a policy that evicts, such as h2o:budget=1024,pos=original; name it")
          .about({"policy"});
    Result<CacheSize> found =
        find_place(with_demotion(options.policy, options.demote), options.protect, shape, options.samples);
    if (!found.ok()) return about_unless_said(found.status(), "policy");
    CacheSize place = std::move(*found);
    KVASIR_RETURN_IF_ERROR(check_prompt(shape, *place.policy, {}, 0, static_cast<std::int64_t>(text.tokens.size()),
                                        place.chunk, model_->config.context, place.bytes));
    KVASIR_RETURN_IF_ERROR(check_ceiling(options.tenant, shape, place, static_cast<std::int64_t>(text.tokens.size())));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.bytes));
    KVASIR_RETURN_IF_ERROR(ensure_queue());
    return requests_->add(options, std::move(text), std::move(place.policy), place.chunk, shape.codec());
  }

  // Cached prefixes give way to a session that is loaded. `bytes`: what it takes, with its tables.
  void evict_prefixes(std::uint64_t bytes) {
    PrefixCache* prefixes = requests_ != nullptr ? requests_->prefixes() : nullptr;
    while (prefixes != nullptr && driver_->cache()->budget().available() < bytes && prefixes->evict_one()) {
    }
  }

  Status ensure_queue() {
    if (requests_ != nullptr) return {};
    KVASIR_RETURN_IF_ERROR(no_requests_);
    const SchedulerOptions& scheduler = model_->options.scheduler;
    auto requests = std::make_unique<RequestQueue>(driver_, limits_of(scheduler), scheduler.max_itl);
    for (const auto& [tenant, quota] : quotas_) requests->set_quota(tenant, quota);
    if (model_->options.prefix_memory > 0) requests->cache_prefixes(model_->options.prefix_memory);
    // Of what fails from here on nothing is left to try again with, neither swap file nor stores.
    no_requests_ = exhausted("the system refused memory or threads when requests were to be taken; start anew");
    if (swap_ != nullptr) requests->swap_to(std::move(swap_));
    if (requests->prefixes() != nullptr && !stores_.empty())
      requests->store_prefixes(std::move(stores_), model_->options.warn);
    no_requests_ = {};
    requests_ = std::move(requests);
    if (requests_->prefixes() != nullptr) requests_->prefixes()->set_listener(listener_);
    return {};
  }

  std::uint64_t ceiling_of(int tenant) const {
    const std::lock_guard lock(quotas_mutex_);
    const auto quota = quotas_.find(tenant);
    return quota == quotas_.end() ? 0 : quota->second.ceiling;
  }

  // Each sample keeps the prompt's tokens for itself, to run them again after a preemption.
  static Status check_samples(int samples, std::size_t tokens) {
    constexpr std::size_t kMost = std::size_t{1} << 22;
    if (samples == 1 || tokens <= kMost / static_cast<std::size_t>(samples)) return {};
    return invalid_argument(
               "{} samples of a prompt of {} tokens would keep {} tokens, more than {}; ask for fewer samples", samples,
               tokens, tokens * static_cast<std::size_t>(samples), kMost)
        .about({"samples"});
  }

  // Checks that a prompt can be read within the ceiling of its tenant. Errors: kResourceExhausted with the arithmetic.
  Status check_ceiling(int tenant, const KvCacheShape& shape, const CacheSize& place, std::int64_t tokens) const {
    const std::uint64_t ceiling = ceiling_of(tenant);
    if (ceiling == 0) return {};
    const std::uint64_t needed = least_prompt_bytes(shape, *place.policy, tokens, place.chunk);
    if (needed <= ceiling) return {};
    return exhausted(
               "the prompt has {} tokens, for which policy '{}' needs {} bytes of KV memory, but its tenant may hold "
               "{} "
               "in all; raise the ceiling, or choose a policy that forgets more",
               tokens, place.policy->traits().spec, needed, ceiling)
        .about({"tenant", "policy"});
  }

  // The same of a prompt behind a session. What a loaded session holds counts for nobody.
  Status check_session_ceiling(int tenant, const SessionBase& session, std::int64_t tokens) const {
    const std::uint64_t ceiling = ceiling_of(tenant);
    if (ceiling == 0 || !session.stored()) return {};
    const Sequence& sequence = *session.held().sequence;
    std::uint64_t needed = sequence.bytes();
    if (!sequence.policy().bound() && !sequence.policy().traits().compacts)
      needed =
          std::max(needed, least_kv_bytes(sequence.shape(), sequence.policy(), sequence.tables().shortest() + tokens));
    if (needed <= ceiling) return {};
    return exhausted(
               "the session and the prompt's {} tokens need {} bytes of KV memory, but their tenant may hold {} in "
               "all; raise the ceiling, or begin a session under a policy that forgets",
               tokens, needed, ceiling)
        .about({"tenant", "session"});
  }

  // Returns the shape of a file's pages. Errors: kInvalidArgument unless the cache may have them.
  Result<KvCacheShape> check_pages(const SessionHead& head, const KvCache& cache) const {
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model_->config, head.kv_type, head.page_slots));
    const int slots = cache.shape().page.slots;
    if (slots == shape.page.slots && cache.allows(shape.codec())) return shape;
    return invalid_argument(
        "the session file has {} pages of {} tokens, but here are {} pages of {}; load it where its own are used "
        "(kvasir run --load does)",
        head.kv_type, head.page_slots, names_of(cache.codecs(), " or "), slots);
  }

  // The cache for a session of a file, whose pages have a format of their own, and the chunk of its further prompts.
  Result<std::shared_ptr<KvCache>> cache_for(const SessionHead& head, const RetentionPolicy& policy, int sequences,
                                             int* chunk) {
    *chunk = head.chunk;
    KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
    KVASIR_RETURN_IF_ERROR(check_positions(policy, head.chunk, model_->config.context));
    if (driver_ != nullptr) {
      KVASIR_RETURN_IF_ERROR(check_pages(head, *driver_->cache()).status());
      return driver_->cache();
    }
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, kv_cache_shape(model_->config, head.kv_type, head.page_slots));
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
    // Besides, what the engine's options name expressly.
    for (std::size_t i = 1; i < model_->codecs.size(); ++i) KVASIR_RETURN_IF_ERROR(cache->allow(model_->codecs[i]));
    driver_ = std::make_shared<Driver>(model_, cache);
    return cache;
  }

  static Status check_sequences(int sequences) {
    if (sequences >= 1 && sequences <= 65) return {};
    return invalid_argument("sequences={} is outside 1 to 65", sequences).about({"sequences"});
  }

  std::shared_ptr<LoadedModel> model_;
  std::unique_ptr<ModelText> text_;
  std::shared_ptr<Driver> driver_;          // null until the first session or request sizes the cache
  std::unique_ptr<RequestQueue> requests_;  // null until the first request
  mutable std::mutex quotas_mutex_;         // plan() is for any thread
  Status no_requests_;                      // why there can never be any
  std::map<int, TenantQuota> quotas_;
  PrefixListener* listener_ = nullptr;
  std::unique_ptr<SpillFile> swap_;                 // until there is a queue
  std::vector<std::unique_ptr<BlobStore>> stores_;  // the same
  ModelSummary summary_;
  mutable std::mutex default_mutex_;
  mutable std::map<std::pair<std::string, std::int64_t>, CacheSize> default_places_;  // by codec and protected tokens
};

// Null where nothing is to be swapped.
Result<std::unique_ptr<SpillFile>> make_swap_file(const EngineOptions& options) {
  if (options.swap_dir.empty()) return std::unique_ptr<SpillFile>();
  if (options.swap_size < SpillFile::kPartBytes)
    return invalid_argument("swap_size={} is too small; give at least {}", options.swap_size, SpillFile::kPartBytes)
        .about({"swap_size"});
  Result<std::unique_ptr<AsyncFile>> file = create_scratch_file(options.swap_dir);
  if (!file.ok()) return Status(file.status()).about({"swap_dir"});
  return SpillFile::create(std::move(*file), options.swap_size);
}

constexpr std::uint64_t kLeastPrefixDisk = std::uint64_t{1} << 20;  // some pages of most models

// The places outside memory for prefixes, from near to far.
Result<std::vector<std::unique_ptr<BlobStore>>> open_stores(const EngineOptions& options) {
  std::vector<std::unique_ptr<BlobStore>> stores;
  if (options.prefix_memory == 0 && !(options.prefix_dir.empty() && options.redis.empty()))
    return invalid_argument("prefixes are fetched into memory, so they need a part of it; prefix_memory=0 allows none")
        .about({"prefix_memory"});
  if (!options.prefix_dir.empty()) {
    if (options.prefix_disk < kLeastPrefixDisk)
      return invalid_argument("prefix_disk={} is too small; give at least {}", options.prefix_disk, kLeastPrefixDisk)
          .about({"prefix_disk"});
    Result<std::unique_ptr<BlobStore>> disk = open_disk_store({options.prefix_dir, options.prefix_disk, options.warn});
    if (!disk.ok()) return Status(disk.status()).about({"prefix_dir"});
    stores.push_back(std::move(*disk));
  }
  if (!options.redis.empty()) {
    RedisOptions redis;
    if (Status status = parse_redis_address(options.redis, &redis); !status.ok())
      return std::move(status).about({"redis"});
    if (options.redis_ttl < 1)
      return invalid_argument("redis_ttl={} is too short; give at least 1 second", options.redis_ttl)
          .about({"redis_ttl"});
    redis.password = options.redis_password;
    redis.ttl = options.redis_ttl;
    stores.push_back(make_redis_store(redis));
  }
  return stores;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return guarded([&]() -> Result<std::unique_ptr<Engine>> {
    KVASIR_RETURN_IF_ERROR(check_scheduler(options.scheduler));
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_model(options, progress));
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<SpillFile> swap, make_swap_file(options));
    KVASIR_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<BlobStore>> stores, open_stores(options));
    return {std::unique_ptr<Engine>(new EngineImpl(std::move(model), std::move(swap), std::move(stores)))};
  });
}

}  // namespace kvasir
