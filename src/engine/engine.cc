#include "kvasir/engine.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "engine/context_rules.h"
#include "engine/driver.h"
#include "engine/guarded.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "engine/request_queue.h"
#include "engine/session.h"
#include "retention/registry.h"

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
      const auto make_cache = [&](const SessionHead& head, const RetentionPolicy& policy) {
        return cache_for(head, policy, sequences);
      };
      KVASIR_ASSIGN_OR_RETURN(kvasir::LoadedSession loaded, kvasir::load_session(path, model_, make_cache));
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

  CacheReport cache() const override {
    if (driver_ == nullptr) return {};
    const MemoryBudget& budget = driver_->cache()->budget();
    return {budget.used(), budget.peak(), budget.capacity()};
  }

 private:
  // A policy, and the bytes of the cache that it runs in: those that there are, or that it asks for as the first.
  struct Place {
    std::unique_ptr<RetentionPolicy> policy;
    std::uint64_t budget = 0;
  };

  // Creates nothing but the policy. `spec`: empty for the default.
  Result<Place> find_place(const std::string& spec, int sequences) const {
    Place place;
    // Read once: the available memory changes from one reading to the next.
    const std::uint64_t ceiling = driver_ != nullptr ? cache().budget : memory_ceiling();
    if (spec.empty()) {
      KVASIR_ASSIGN_OR_RETURN(place.policy, default_policy(ceiling));
    } else {
      KVASIR_ASSIGN_OR_RETURN(place.policy, make_policy(spec));
    }
    const RetentionPolicy& policy = *place.policy;
    KVASIR_RETURN_IF_ERROR(check_positions(policy, model_->options.chunk, model_->config.context));
    place.budget = ceiling;
    if (driver_ == nullptr) {
      KVASIR_ASSIGN_OR_RETURN(place.budget, budget_for(policy, ceiling, sequences));
    } else if (policy.bound()) {
      if (const std::uint64_t needed = need(policy, ceiling); needed > ceiling)
        return exhausted(
                   "policy '{}' needs {} bytes of KV memory, but the engine's cache has {}, as its first session "
                   "asked; set its kv_memory to what all sessions need together",
                   policy.traits().spec, needed, ceiling)
            .about({"kv_memory"});
    }
    return place;
  }

  Status ensure_cache(std::uint64_t budget) {
    if (driver_ != nullptr) return {};
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, budget));
    driver_ = std::make_shared<Driver>(model_, std::move(cache));
    return {};
  }

  Result<std::unique_ptr<Session>> start_session(const SessionOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(Place place, find_place(options.policy, options.sequences));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.budget));
    return make_session(driver_, std::move(place.policy));
  }

  Result<RequestId> take_request(const RequestOptions& options) {
    KVASIR_ASSIGN_OR_RETURN(RequestText text, encode_request(*model_, options));
    Result<Place> found = find_place(options.policy, options.samples);
    if (!found.ok()) return about_unless_said(found.status(), "policy");
    Place place = std::move(*found);
    KVASIR_RETURN_IF_ERROR(check_prompt(*place.policy, static_cast<std::int64_t>(text.tokens.size()), place.budget));
    KVASIR_RETURN_IF_ERROR(ensure_cache(place.budget));
    if (requests_ == nullptr) requests_ = std::make_unique<RequestQueue>(driver_);
    return requests_->add(options, std::move(text), std::move(place.policy));
  }

  // Whether a prompt could ever be read, with all of the cache for itself.
  Status check_prompt(const RetentionPolicy& policy, std::int64_t tokens, std::uint64_t budget) const {
    const std::int64_t first = std::min<std::int64_t>(tokens, prompt_chunk(policy, model_->options.chunk));
    KVASIR_RETURN_IF_ERROR(check_room(policy, {}, tokens, first, model_->config.context));
    if (policy.bound()) return {};
    const std::uint64_t needed = need_of_prompt(policy, tokens, first);
    if (needed <= budget) return {};
    return exhausted(
               "the prompt has {} tokens, for which policy '{}' needs {} bytes of KV memory, but the engine's cache "
               "has {}; give it more, or choose a policy that forgets, such as streaming",
               tokens, policy.traits().spec, needed, budget)
        .about({"kv_memory", "policy"});
  }

  // Bytes that reading a prompt takes under a policy without bound; the least where the policy may drop parts of a
  // prompt that is still being read. `first`: tokens of its first chunk.
  std::uint64_t need_of_prompt(const RetentionPolicy& policy, std::int64_t tokens, std::int64_t first) const {
    const KvCacheShape& shape = driver_ != nullptr ? driver_->cache()->shape() : model_->kv_shape;
    const PolicyTraits& traits = policy.traits();
    if (tokens > kMostPlannedTokens && !traits.compacts) return least_kv_bytes(shape, tokens);
    if (!traits.compacts || traits.holds_prompts) {
      const std::int64_t planned = std::min(tokens, kMostPlannedTokens);
      return plan_kv_memory(shape, policy, {planned, planned, model_->options.chunk, 1}).bytes;
    }
    const std::int64_t held = std::max(first, policy.exact_prefix(tokens));
    const std::int64_t slots = shape.page.slots;
    return KvCache::cost(shape, sequence_layout(policy), (held + slots - 1) / slots);
  }

  // Tokens of a text without end: the plan of a bounded policy is periodic, and costs no more than for a short text.
  static constexpr std::int64_t kEndless = std::int64_t{1} << 50;

  // With the engine's own pages and chunk.
  std::uint64_t need(const RetentionPolicy& policy, std::uint64_t ceiling) const {
    return need(model_->kv_shape, policy, model_->options.chunk, ceiling);
  }
  std::uint64_t need(const KvCacheShape& shape, const RetentionPolicy& policy, int chunk, std::uint64_t ceiling) const {
    const std::int64_t tokens = policy.bound() ? kEndless : model_->config.context;
    const std::uint64_t least = least_kv_bytes(shape, policy.bound().value_or(tokens));
    // This bound is enough to refuse a policy that is far too large. Otherwise the figure is exact, so that a caller
    // may set kv_memory to the one in the error message.
    if (least > ceiling && policy.bound().value_or(0) > kMostPlannedTokens) return least;
    return plan_kv_memory(shape, policy, {tokens, tokens, chunk, 1}).bytes;
  }

  std::uint64_t memory_ceiling() const {
    const std::uint64_t available = available_memory();
    return model_->options.kv_memory > 0 ? std::min(model_->options.kv_memory, available) : available / 10 * 8;
  }

  // Returns `streaming` with the smaller of the trained context and what the memory holds as its cap. It equals `full`
  // until that many tokens are reached.
  Result<std::unique_ptr<RetentionPolicy>> default_policy(std::uint64_t ceiling) const {
    static constexpr std::int64_t kSinks = 4;
    const auto with_cap = [](std::int64_t cap) {
      return make_policy(fmt::format("streaming:sinks={},window={}", kSinks, cap - kSinks));
    };
    const std::int64_t context = std::max<std::int64_t>(model_->config.context, kSinks + 1);
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, with_cap(context));
    if (need(*policy, ceiling) <= ceiling) return policy;
    std::int64_t low = kSinks + 1;  // the largest cap known to fit
    std::int64_t high = context;    // the smallest cap known not to fit
    KVASIR_ASSIGN_OR_RETURN(policy, with_cap(low));
    if (need(*policy, ceiling) > ceiling)
      return make_status(
                 model_->options.kv_memory > 0 ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
                 "{} bytes of KV memory hold no cache at all for this model (at least {} are needed with chunk={}); "
                 "give it more memory, or a smaller chunk",
                 ceiling, need(*policy, ceiling), prompt_chunk(*policy, model_->options.chunk))
          .about({"kv_memory", "chunk"});
    // A pass in chunks needs a little more than what is kept. So search from just below the cap that the bytes alone
    // would hold, down to a step of one token in 4,096.
    const auto columns =
        static_cast<std::int64_t>(ceiling / (static_cast<std::uint64_t>(model_->kv_shape.lanes()) *
                                             (model_->kv_shape.page.bytes() + PagePool::kPageOverhead)));
    const int slots = model_->kv_shape.page.slots;
    high = std::min(high, (columns + 1) * slots);
    bool close = true;
    while (high - low > 1 + high / 4096) {
      const std::int64_t near = high - prompt_chunk(*policy, model_->options.chunk) - 4 * slots;
      const std::int64_t middle = close && near > low ? near : low + (high - low) / 2;
      close = false;
      KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> candidate, with_cap(middle));
      if (need(*candidate, ceiling) <= ceiling) {
        low = middle;
        policy = std::move(candidate);
      } else {
        high = middle;
      }
    }
    return policy;
  }

  // The cache for a session of a file, whose pages have a format of their own.
  Result<std::shared_ptr<KvCache>> cache_for(const SessionHead& head, const RetentionPolicy& policy, int sequences) {
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
    const std::uint64_t ceiling = memory_ceiling();
    const std::uint64_t needed = need(shape, policy, head.chunk, ceiling);
    if (policy.bound() && needed > ceiling)
      return exhausted("the session's policy '{}' needs {} bytes of KV memory, and {} can be given",
                       policy.traits().spec, needed, ceiling)
          .about({"kv_memory"});
    const std::uint64_t budget =
        model_->options.kv_memory > 0 ? model_->options.kv_memory : for_several(needed, ceiling, sequences);
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, new_cache(model_, shape, budget));
    driver_ = std::make_shared<Driver>(model_, cache);
    return cache;
  }

  static Status check_sequences(int sequences) {
    if (sequences >= 1 && sequences <= 65) return {};
    return invalid_argument("sequences={} is outside 1 to 65", sequences).about({"sequences"});
  }

  // What several sequences side by side take at most, as far as there is so much.
  static std::uint64_t for_several(std::uint64_t needed, std::uint64_t ceiling, int sequences) {
    return needed > ceiling / static_cast<std::uint64_t>(sequences) ? ceiling
                                                                    : needed * static_cast<std::uint64_t>(sequences);
  }

  Result<std::uint64_t> budget_for(const RetentionPolicy& policy, std::uint64_t ceiling, int sequences) const {
    KVASIR_RETURN_IF_ERROR(check_sequences(sequences));
    const std::uint64_t needed = need(policy, ceiling);
    if (model_->options.kv_memory > 0) {
      if (policy.bound() && needed > model_->options.kv_memory)
        return invalid_argument(
                   "policy '{}' needs {} bytes of KV memory, and is given {}; give it more, a smaller size or a "
                   "smaller chunk",
                   policy.traits().spec, needed, model_->options.kv_memory)
            .about({"kv_memory", "policy", "chunk"});
      return model_->options.kv_memory;
    }
    if (needed <= ceiling) return for_several(needed, ceiling, sequences);
    // A policy without a bound may still serve short texts: a generation that fills the memory ends with kKvMemory.
    if (!policy.bound()) return ceiling;
    return exhausted(
               "policy '{}' needs {} bytes of KV memory, more than this machine can give ({}); choose a smaller size",
               policy.traits().spec, needed, ceiling)
        .about({"policy"});
  }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<Driver> driver_;          // null until the first session or request sizes the cache
  std::unique_ptr<RequestQueue> requests_;  // null until the first request
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
