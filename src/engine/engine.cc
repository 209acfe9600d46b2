#include "kvasir/engine.h"

#include <algorithm>
#include <filesystem>

#include "base/guarded.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "engine/engine_cache.h"
#include "engine/quality_place.h"
#include "engine/tenant_quotas.h"
#include "planning/cache_sizing.h"
#include "planning/request_plan.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "requests/sequence_view.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "scheduler/admission.h"
#include "scheduler/batch_runner.h"
#include "sequence/context_rules.h"
#include "session/session.h"
#include "tiers/disk_store.h"
#include "tiers/redis_store.h"

namespace kvasir {
namespace {

// Each sample keeps the prompt's tokens for itself, to run them again after a preemption.
Status check_samples(int samples, std::size_t tokens) {
  constexpr std::size_t kMost = std::size_t{1} << 22;
  if (samples == 1 || tokens <= kMost / static_cast<std::size_t>(samples)) return {};
  return invalid_argument(
             "{} samples of a prompt of {} tokens would keep {} tokens, more than {}; ask for fewer samples", samples,
             tokens, tokens * static_cast<std::size_t>(samples), kMost)
      .about({"samples"});
}

// Returns what the engine says of a session file, without the session.
Engine::LoadedSession about(const LoadedSession& loaded) {
  Engine::LoadedSession result;
  result.other_arithmetic = loaded.other_arithmetic;
  for (const AppliedAdapter& each : loaded.sequence->adapters()) result.adapters.push_back({each.number, each.scale});
  return result;
}

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
                model_->sampling,
                model_->config.width,
                model_->config.pooling,
                summaries_of(model_->adapters),
                model_->draft != nullptr ? model_->draft->config.name : "",
                model_->draft != nullptr ? model_->draft->weight_bytes : 0};
  }

  const ModelSummary& model() const override { return summary_; }
  const ModelText& text() const override { return *text_; }

  Result<RequestPlan> plan(const PlanRequest& request) const override {
    return guarded([&]() -> Result<RequestPlan> {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, cache_.shape_of(request.codec));
      Result<CacheSize> place = cache_.find_place(request.policy, request.protect, shape, 1);
      if (!place.ok()) return about_unless_said(place.status(), "policy");
      if (const std::uint64_t ceiling = quotas_.ceiling_of(request.tenant); ceiling > 0)
        place->bytes = std::min(place->bytes, ceiling);
      if (request.quality) return plan_quality(request, shape, *place);
      KVASIR_ASSIGN_OR_RETURN(RequestPlan plan, plan_request(request, shape, *place, model_->config.context));
      KVASIR_ASSIGN_OR_RETURN(plan.draft_bytes, plan_drafts(request, plan));
      plan.codec = codec_name(codec_for(model_->config, shape.codec(), *place->policy, place->chunk,
                                        longest_text(request.prompt, request.max_tokens)));
      return plan;
    });
  }

  Status set_lora(const std::vector<AdapterScale>& scales) override {
    KVASIR_ASSIGN_OR_RETURN(const std::vector<AppliedAdapter> applied, apply_adapters(model_->adapters, scales));
    for (Adapter& adapter : model_->adapters) adapter.scale = 0;
    for (const AppliedAdapter& each : applied)
      model_->adapters[static_cast<std::size_t>(each.number)].scale = each.scale;
    summary_.adapters = summaries_of(model_->adapters);
    return {};
  }

  Result<LoadedSession> load_session(const std::string& path, int sequences) override {
    return guarded([&]() -> Result<LoadedSession> {
      std::error_code unknown;  // the file's own error comes when it is read
      const std::uintmax_t size = std::filesystem::file_size(path, unknown);
      if (!unknown) evict_prefixes(size + size / 8);
      int chunk = 0;
      const auto make_cache = [&](const SessionHead& head, const RetentionPolicy& policy) {
        return cache_.cache_for(head, policy, sequences, &chunk);
      };
      KVASIR_ASSIGN_OR_RETURN(kvasir::LoadedSession loaded, kvasir::load_session(path, model_, make_cache));
      loaded.head.chunk = chunk;
      LoadedSession result = about(loaded);
      KVASIR_ASSIGN_OR_RETURN(result.session, make_session(runner(), std::move(loaded)));
      return result;
    });
  }

  Result<LoadedSession> open_session(const std::string& path) const override {
    return guarded([&]() -> Result<LoadedSession> {
      if (runner() == nullptr)
        return invalid_argument("there is no cache yet that the session could be opened for; load it instead");
      KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<const SessionImage> image, open_image(path, *model_));
      const SessionHead& head = image->parts.head;
      KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(image->parts.policy));
      KVASIR_RETURN_IF_ERROR(check_positions(*policy, head.chunk, model_->config.context));
      const KvCache& cache = *runner()->cache();
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, cache_.check_pages(head));
      KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> counting, KvCache::create(shape, cache.budget().capacity()));
      KVASIR_ASSIGN_OR_RETURN(kvasir::LoadedSession loaded, restore_session(image->parts, model_, counting));
      LoadedSession result = about(loaded);
      KVASIR_ASSIGN_OR_RETURN(result.session, make_session(runner(), std::move(loaded), image));
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
    const std::uint64_t budget = runner() != nullptr ? cache().budget : model_->options.kv_memory;
    KVASIR_RETURN_IF_ERROR(quotas_.set(tenant, quota, budget));
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
    for (const KvCodec& codec : cache_.codecs()) report.codecs.push_back(codec_name(codec));
    for (const Adapter& adapter : model_->adapters) report.adapter_bytes += adapter.bytes;
    if (swap_ != nullptr) report.swap = {.capacity = swap_->capacity(), .method = swap_->method()};
    for (const std::unique_ptr<BlobStore>& store : stores_) {
      const BlobUsage usage = store->usage();
      report.prefix_tiers.push_back({.name = store->name(),
                                     .usable = store->usable(),
                                     .parts = usage.blobs,
                                     .bytes = usage.bytes,
                                     .capacity = usage.capacity});
    }
    if (runner() != nullptr) {
      const KvCacheShape& shape = runner()->cache()->shape();
      report.page_bytes = runner()->cache()->pool().page_cost();
      report.pages = runner()->cache()->pool().report();
      if (const DraftModel* draft = runner()->draft_model(); draft != nullptr)
        for (KvPageReport pages : draft->cache().pool().report()) {
          pages.form = "draft " + pages.form;
          report.pages.push_back(std::move(pages));
        }
      report.page_slots = shape.page.slots;
      report.lanes = shape.lanes();
    }
    report.draft_weight_bytes = summary_.draft_weight_bytes;
    report.draft_bytes = runner() != nullptr ? runner()->draft_bytes() : 0;
    report.request_bytes = report.cache.bytes - report.draft_bytes;
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
    report.drafted_tokens = counters.drafted_tokens;
    report.drafts_come_true = counters.drafts_come_true;
    report.recomputed_tokens = counters.recomputed_tokens;
    report.shadow_tokens = counters.shadow_tokens;
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

  CacheReport cache() const override { return cache_.report(); }

 private:
  const std::shared_ptr<BatchRunner>& runner() const { return cache_.runner(); }

  Result<std::unique_ptr<Session>> start_session(const SessionOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, cache_.shape_of(options.codec));
    KVASIR_ASSIGN_OR_RETURN(std::vector<AppliedAdapter> adapters, apply_adapters(model_->adapters, options.lora));
    KVASIR_ASSIGN_OR_RETURN(CacheSize place,
                            cache_.find_place(options.policy, options.protect, shape, options.sequences));
    if (place.policy->as<DropsThoughts>())
      return unsupported("a session cannot drop thoughts, and its policy is '{}'; leave thoughts=drop out",
                         place.policy->traits().spec)
          .about({"policy"});
    KVASIR_RETURN_IF_ERROR(cache_.ensure_cache(place.bytes, options.sequences));
    const KvCodec codec = codec_for(model_->config, shape.codec(), *place.policy, place.chunk);
    return make_session(runner(), std::move(place.policy), place.chunk, codec, std::move(adapters));
  }

  // Takes a request that continues a session.
  Result<RequestId> continue_session(const RequestOptions& options) {
    auto* base = dynamic_cast<SessionBase*>(options.session.get());
    KVASIR_RETURN_IF_ERROR(check_request(*model_, options));
    KVASIR_RETURN_IF_ERROR(prompt_field(options).status());
    if (base == nullptr || base->runner() != runner())
      return invalid_argument("the session is not one of this engine").about({"session"});
    if (!options.tools.empty() || options.thinking != Thinking::kAuto)
      return invalid_argument("a request that continues a session has no tools, and thinks as the session does")
          .about({"tools"});
    if (!options.thoughts.empty())
      return invalid_argument("a session keeps the thoughts of its answers; leave thoughts out").about({"thoughts"});
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
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape asked, cache_.shape_of(options.codec));
      // The angles are the session's, unless others are asked for by name.
      KvCodec own = sequence.shape().codec();
      own.long_rotation = own.long_rotation && asked.codec().long_rotation;
      if (asked.codec() != own)
        return invalid_argument("the session is stored in the KV codec '{}', not '{}'; name that one or none",
                                codec_name(sequence.shape().codec()), codec_name(asked.codec()))
            .about({"codec"});
    }
    if (options.lora) {
      KVASIR_ASSIGN_OR_RETURN(const std::vector<AppliedAdapter> asked, apply_adapters(model_->adapters, options.lora));
      const std::span<const AppliedAdapter> own = sequence.adapters();
      if (!std::ranges::is_permutation(asked, own))
        return invalid_argument("the session runs with other adapters or scales; name its own or none").about({"lora"});
    }
    KVASIR_ASSIGN_OR_RETURN(RequestText text, base->begin(options));
    KVASIR_RETURN_IF_ERROR(compile_grammar(*model_, options, text));
    const KvSequence& tables = sequence.tables();
    KVASIR_RETURN_IF_ERROR(check_prompt(sequence.shape(), *policy, context_place(tables), tables.shortest(),
                                        static_cast<std::int64_t>(text.tokens.size()), base->held().chunk,
                                        model_->config.context, cache().budget));
    KVASIR_RETURN_IF_ERROR(
        quotas_.check_session_ceiling(options.tenant, *base, static_cast<std::int64_t>(text.tokens.size())));
    KVASIR_RETURN_IF_ERROR(ensure_queue());
    return requests_->add(options, std::move(text), std::move(policy), base->held().chunk);
  }

  // The codec of a request with a promise of quality, with the angles for the longest text that it may become: its
  // budget may grow to all of it.
  KvCodec quality_codec(const KvCacheShape& shape, const CacheSize& place, std::int64_t prompt,
                        std::int64_t max_tokens) const {
    return codec_for(model_->config, shape.codec(), *shadow_policy(), place.chunk, longest_text(prompt, max_tokens));
  }

  // The plan of the largest budget, and what the promise takes besides.
  Result<RequestPlan> plan_quality(const PlanRequest& request, const KvCacheShape& shape, CacheSize& place) const {
    if (request.samples != 1)
      return invalid_argument("kv.quality holds for one answer; plan one sample").about({"quality"});
    const QualityRequest asked{*request.quality, quality_codec(shape, place, request.prompt, request.max_tokens),
                               request.prompt, request.max_tokens};
    KVASIR_ASSIGN_OR_RETURN(const QualityPlace quality,
                            place_quality(*model_, asked, place, shape, cache_.codecs(), place.bytes));
    const QualityTerms& terms = quality.terms;
    const std::string policy = place.policy->traits().spec;
    place.policy = terms.budget.policy(terms.budget.most());
    PlanRequest limited = request;
    limited.max_tokens = quality.max_tokens;
    KVASIR_ASSIGN_OR_RETURN(RequestPlan plan,
                            plan_request(limited, shape.with(asked.codec), place, model_->config.context));
    plan.policy = policy;
    plan.codec = codec_name(asked.codec);
    plan.endless = false;
    plan.most_tokens = std::max<std::int64_t>(0, quality.most_tokens);
    plan.quality_bytes = terms.rows_bytes + terms.shadow_bytes;
    plan.bytes += plan.quality_bytes;
    if (plan.refusal.ok()) plan.refusal = quality.refusal;
    return plan;
  }

  // Returns what the draft model's cache takes for the samples of a request, at most.
  Result<std::uint64_t> plan_drafts(const PlanRequest& request, const RequestPlan& plan) const {
    KVASIR_RETURN_IF_ERROR(check_draft(request.draft, model_->draft != nullptr));
    const std::optional<DraftOptions> draft = *parse_draft(request.draft);
    if (!draft || !draft->model) return std::uint64_t{0};
    return plan_draft_texts(model_->draft->kv_shape, model_->draft->config.context, plan.tokens, request.samples).bytes;
  }

  // Takes a request with a promise of quality. Without a limit of tokens, or a cache, it gets what the promise needs.
  Result<RequestId> take_quality(const RequestOptions& options, RequestText text, const KvCacheShape& shape,
                                 CacheSize place) {
    const auto prompt = static_cast<std::int64_t>(text.tokens.size());
    RequestOptions limited = options;
    std::int64_t& max_tokens = limited.generate.max_tokens;
    for (const std::vector<std::int32_t>& forced : options.generate.forced_texts) max_tokens = std::ssize(forced);
    std::uint64_t budget = place.bytes;
    const bool sizes_cache = runner() == nullptr && model_->options.kv_memory == 0;
    if (sizes_cache) budget = memory_bound();
    if (const std::uint64_t ceiling = quotas_.ceiling_of(options.tenant); ceiling > 0)
      budget = std::min(budget, ceiling);
    const KvCodec codec = quality_codec(shape, place, prompt, max_tokens);
    KVASIR_ASSIGN_OR_RETURN(
        const QualityPlace quality,
        place_quality(*model_, {*options.quality, codec, prompt, max_tokens}, place, shape, cache_.codecs(), budget));
    KVASIR_RETURN_IF_ERROR(quality.refusal);
    max_tokens = quality.max_tokens;
    if (sizes_cache) place.bytes = std::max(place.bytes, quality.terms.bytes());
    KVASIR_RETURN_IF_ERROR(cache_.ensure_cache(place.bytes, 1));
    KVASIR_RETURN_IF_ERROR(ensure_queue());
    return requests_->add(limited, std::move(text), std::move(place.policy), place.chunk, codec);
  }

  Result<RequestId> take_request(const RequestOptions& options) {
    if (options.session != nullptr) return continue_session(options);
    KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape, cache_.shape_of(options.codec));
    KVASIR_ASSIGN_OR_RETURN(RequestText text, encode_request(*model_, options));
    KVASIR_RETURN_IF_ERROR(check_samples(options.samples, text.tokens.size()));
    if (options.policy.empty() && !options.demote.empty() && options.demote != "off")
      return invalid_argument("demote needs a policy that evicts, such as h2o:budget=1024,pos=original; name it")
          .about({"policy"});
    KVASIR_ASSIGN_OR_RETURN(const std::string policy, with_thoughts(options.policy, options.thoughts));
    Result<CacheSize> found =
        cache_.find_place(with_demotion(policy, options.demote), options.protect, shape, options.samples);
    if (!found.ok()) return about_unless_said(found.status(), "policy");
    CacheSize place = std::move(*found);
    KVASIR_RETURN_IF_ERROR(check_prompt(shape, *place.policy, {}, 0, static_cast<std::int64_t>(text.tokens.size()),
                                        place.chunk, model_->config.context, place.bytes));
    KVASIR_RETURN_IF_ERROR(
        quotas_.check_ceiling(options.tenant, shape, place, static_cast<std::int64_t>(text.tokens.size())));
    if (options.quality) return take_quality(options, std::move(text), shape, std::move(place));
    const KvCodec codec = codec_of(options, shape, place, static_cast<std::int64_t>(text.tokens.size()));
    KVASIR_RETURN_IF_ERROR(cache_.ensure_cache(place.bytes, options.samples));
    KVASIR_RETURN_IF_ERROR(ensure_queue());
    return requests_->add(options, std::move(text), std::move(place.policy), place.chunk, codec);
  }

  // The tokens that a text may come to have, as its angles are chosen by: nothing that depends on memory.
  std::int64_t longest_text(std::int64_t prompt, std::int64_t max_tokens) const {
    return max_tokens < 0 ? model_->config.context : prompt + max_tokens;
  }

  // The codec of a request, with the angles for the longest text that it may become.
  KvCodec codec_of(const RequestOptions& options, const KvCacheShape& shape, const CacheSize& place,
                   std::int64_t prompt) const {
    if (!model_->config.has_long_rotation()) return shape.codec();
    const std::int64_t more = options.pooling != Pooling::kNone ? 0 : options.generate.max_tokens;
    return codec_for(model_->config, shape.codec(), *place.policy, place.chunk, longest_text(prompt, more));
  }

  // Cached prefixes give way to a session that is loaded. `bytes`: what it takes, with its tables.
  void evict_prefixes(std::uint64_t bytes) {
    PrefixCache* prefixes = requests_ != nullptr ? requests_->prefixes() : nullptr;
    while (prefixes != nullptr && runner()->cache()->budget().available() < bytes && prefixes->evict_one()) {
    }
  }

  Status ensure_queue() {
    if (requests_ != nullptr) return {};
    KVASIR_RETURN_IF_ERROR(no_requests_);
    const SchedulerOptions& scheduler = model_->options.scheduler;
    auto requests = std::make_unique<RequestQueue>(runner(), limits_of(scheduler), scheduler.max_itl);
    for (const auto& [tenant, quota] : quotas_.all()) requests->set_quota(tenant, quota);
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

  std::shared_ptr<LoadedModel> model_;
  std::unique_ptr<ModelText> text_;
  EngineCache cache_{model_};
  TenantQuotas quotas_;
  std::unique_ptr<RequestQueue> requests_;  // null until the first request
  Status no_requests_;                      // why there can never be any
  PrefixListener* listener_ = nullptr;
  std::unique_ptr<SpillFile> swap_;                 // until there is a queue
  std::vector<std::unique_ptr<BlobStore>> stores_;  // the same
  ModelSummary summary_;
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
