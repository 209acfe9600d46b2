#include "requests/request_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "planning/memory_plan.h"
#include "session/session_need.h"

namespace kvasir {

bool RequestGroup::has_ended() const {
  return std::ranges::all_of(requests, [](const auto& request) { return request->is(RequestState::kEnded); });
}

namespace {

// Makes the promise of a request that was checked for it, and counts what it takes in the peak.
void promise_quality(const QualityOptions& options, std::int64_t max_tokens, const BatchRunner& runner,
                     const Admissions& admissions, Request& request) {
  RequestGroup& group = request.group();
  const ModelConfig& config = runner.model()->config;
  const std::int64_t prompt = request.task().prompt_tokens();
  const std::vector<KvCodec> codecs = runner.cache()->codecs();
  Result<QualityTerms> terms =
      quality_terms({options, group.policy.get(), group.shape, codecs, prompt, prompt + max_tokens,
                     request.text().chunk, config.context, config.vocabulary});
  KVASIR_CHECK(terms.ok());
  const RequestSize size{prompt, max_tokens, config.context, request.text().chunk};
  group.peak =
      admissions.counted(terms->policy_bytes + terms->shadow_bytes, size, runner.cache()->budget().capacity()) +
      terms->rows_bytes;
  request.quality = std::make_unique<RequestQuality>(options, std::move(*terms), prompt, config.vocabulary,
                                                     &runner.cache()->budget());
  request.task().watch_rows(&request.quality->rows());
}

}  // namespace

std::unique_ptr<RequestGroup> make_group(RequestId id, const RequestOptions& options, RequestText text,
                                         std::unique_ptr<RetentionPolicy> policy, std::optional<int> chunk,
                                         std::optional<KvCodec> codec, const BatchRunner& runner,
                                         const Admissions& admissions) {
  const LoadedModel& model = *runner.model();
  GenerateOptions generate = with_seed(options.generate);
  if (generate.grammar == nullptr) generate.grammar = std::move(text.grammar);
  const bool pools = options.pooling != Pooling::kNone;
  if (pools) generate.max_tokens = generate.min_tokens = 0;
  if (generate.thoughts == nullptr) generate.thoughts = std::move(text.thoughts);
  // A prompt cannot keep every model from opening thoughts: they close at once.
  if (options.thinking == Thinking::kOff) generate.thought_budget = 0;
  auto group = std::make_unique<RequestGroup>();
  group->id = id;
  group->samples = options.samples;
  group->seed = generate.sampling.seed;
  group->policy = std::move(policy);
  group->priority = options.priority;
  group->tenant = options.tenant;
  group->label = options.label;
  group->inspect = options.inspect;
  TextState begin;
  begin.chunk = chunk.value_or(model.options.chunk);
  if (options.session != nullptr) {
    SessionBase* base = dynamic_cast<SessionBase*>(options.session.get());
    group->session = {options.session, base, options.releases_session};
    begin.newest = base->held().newest;
    codec = base->held().sequence->shape().codec();
  }
  group->shape = runner.cache()->shape();
  if (codec) group->shape = group->shape.with(*codec);
  // A session's text begins before the request's; a cached prefix has no log-probabilities and no hidden states.
  const bool bypass = options.bypass || options.session != nullptr || generate.prompt_logprobs >= 0 || pools;
  group->prefix.use = {bypass, options.salt, options.pin, options.ttl, options.tenant, group->shape.codec()};
  if (options.session == nullptr) {
    group->prefix.use.adapters = *apply_adapters(model.adapters, options.lora);
    group->prefix.use.adapter_key = adapter_key(model.adapters, group->prefix.use.adapters);
  }
  group->prefix.lasting = text.lasting;
  std::vector<TokenId> newest = begin.newest;
  newest.insert(newest.end(), text.tokens.begin(), text.tokens.end());
  auto request = std::make_unique<Request>(group.get(), 0, std::move(begin));
  request->set_task(std::move(text.tokens), Generation(*model.tokenizer, generate, text.stops, newest));
  if (generate.prompt_logprobs >= 0) request->task().report_prompt(generate.prompt_logprobs);
  request->task().pool_prompt(options.pooling);
  const KvCacheShape& shape = group->shape;
  const std::int64_t prompt = request->task().prompt_tokens();
  const auto peak = [&](std::int64_t before) {
    const RequestSize size{before + prompt, generate.max_tokens, model.config.context, request->text().chunk};
    return admissions.counted(peak_bytes(shape, *group->policy, size), size, runner.cache()->budget().capacity());
  };
  group->peak = bytes_behind(group->session.base, peak);
  if (options.quality) promise_quality(*options.quality, generate.max_tokens, runner, admissions, *request);
  group->shared_peak = std::min(shared_bytes(*group->policy, shape, prompt), group->peak);
  request->bytes.to_start = bytes_to_start(*request, admissions.most().ahead);
  group->requests.push_back(std::move(request));
  return group;
}

std::uint64_t bytes_to_start(const Request& request, int ahead) {
  const RequestGroup& group = request.group();
  if (group.is_shadow()) ahead = 0;
  const auto plan = [&](std::int64_t before) {
    MemoryRequest need;
    need.tokens = std::min(before + request.task().known_tokens() + ahead, kMostPlannedTokens);
    need.prompt = std::min(before + request.task().prompt_tokens(), kMostPlannedTokens);
    need.chunk = request.text().chunk;
    need.divided = true;
    return plan_kv_memory(group.shape, *group.policy, need).bytes;
  };
  const bool opens_rows = request.quality != nullptr && !request.quality->meter().is_open();
  return bytes_behind(group.session.base, plan) + (opens_rows ? request.quality->terms().rows_bytes : 0);
}

void fork_samples(RequestGroup& group, int ahead) {
  const Request& first = *group.requests.front();
  while (static_cast<int>(group.requests.size()) < group.samples) {
    std::unique_ptr<Sequence> sequence;
    if (first.holds_pages() && group.has_read_prompt())
      if (auto copy = first.sequence()->fork(); copy.ok()) sequence = std::move(*copy);
    auto request = first.fork(static_cast<int>(group.requests.size()), std::move(sequence));
    request->bytes.to_start = bytes_to_start(*request, ahead);
    group.requests.push_back(std::move(request));
  }
}

void RequestList::add(std::unique_ptr<RequestGroup> group) {
  const auto behind = std::ranges::upper_bound(groups_, group->priority, {}, &RequestGroup::priority);
  groups_.insert(behind, std::move(group));
}

void RequestList::add_before(const RequestGroup& other, std::unique_ptr<RequestGroup> group) {
  groups_.insert(std::ranges::find(groups_, &other, [](const auto& each) { return each.get(); }), std::move(group));
}

std::int64_t RequestList::size() const {
  return std::ranges::count_if(groups_, [](const auto& group) { return !group->is_shadow(); });
}

RequestGroup* RequestList::find(RequestId id) const {
  const auto group = std::ranges::find(groups_, id, &RequestGroup::id);
  return group == groups_.end() ? nullptr : group->get();
}

std::int64_t RequestList::remove_ended() {
  const std::int64_t before = size();
  std::erase_if(groups_, [](const std::unique_ptr<RequestGroup>& group) { return group->has_ended(); });
  return before - size();
}

std::int64_t RequestList::holding_pages() const {
  return std::ranges::count_if(groups_, [](const std::unique_ptr<RequestGroup>& group) {
    return !group->is_shadow() &&
           std::ranges::any_of(group->requests, [](const auto& request) { return request->holds_pages(); });
  });
}

std::vector<Request*> RequestList::active() const {
  std::vector<Request*> active;
  for (const auto& group : groups_)
    for (const auto& request : group->requests)
      if (!request->is(RequestState::kEnded)) active.push_back(request.get());
  return active;
}

bool RequestList::has(RequestState state) const {
  return std::ranges::any_of(groups_, [&](const std::unique_ptr<RequestGroup>& group) {
    return std::ranges::any_of(group->requests, [&](const auto& request) { return request->is(state); });
  });
}

}  // namespace kvasir
