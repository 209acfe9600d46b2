#include "requests/request_prefixes.h"

#include <algorithm>
#include <utility>

#include "requests/request_group.h"

namespace kvasir {
namespace {

// Most groups whose common prefix with one group's prompt is remembered.
constexpr std::size_t kMostRemembered = 256;

std::span<const TokenId> prompt_of(const Request& request) {
  return request.task().tokens().first(static_cast<std::size_t>(request.task().prompt_tokens()));
}

// Returns how many tokens the prompts of two groups have in common. Remembered, since prompts do not change and this is
// asked before each pass.
std::int64_t common_prompt(const Request& request, const Request& other) {
  auto& common_with = request.group().prefix.common_with;
  if (const auto known = common_with.find(other.group().id); known != common_with.end()) return known->second;
  if (common_with.size() >= kMostRemembered) common_with.clear();
  const auto mine = prompt_of(request);
  const std::int64_t common = std::ranges::mismatch(mine, prompt_of(other)).in1 - mine.begin();
  common_with.emplace(other.group().id, common);
  return common;
}

}  // namespace

RequestPrefixes::RequestPrefixes(std::shared_ptr<BatchRunner> runner, RequestCounters* counters)
    : runner_(std::move(runner)), counters_(counters) {}

void RequestPrefixes::enable(std::uint64_t most_bytes) {
  store_ = std::make_unique<PrefixStore>(runner_->model(), runner_->cache(), most_bytes);
}

void RequestPrefixes::store_in(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn) {
  tiers_.open(*runner_, store_.get(), std::move(stores), std::move(warn));
}

void RequestPrefixes::expire() {
  if (store_ != nullptr) store_->expire();
}

bool RequestPrefixes::evict_one() {
  return store_ != nullptr && store_->cache().evict_one();
}

std::uint64_t RequestPrefixes::evictable_bytes() const {
  return store_ != nullptr ? store_->cache().evictable_bytes() : 0;
}

std::uint64_t RequestPrefixes::charged_bytes() const {
  return store_ != nullptr ? store_->cache().charged_bytes() : 0;
}

PageOwner RequestPrefixes::owner() const {
  return store_ != nullptr ? store_->cache().owner() : PageOwner::kNobody;
}

std::int64_t RequestPrefixes::find(Request& request) const {
  if (store_ == nullptr) return 0;
  RequestPrefix& prefix = request.prefix;
  if (const std::uint64_t version = store_->cache().version(); prefix.found_version != version) {
    prefix.found = store_->find(request.group().prefix.use, request.start_text());
    prefix.found_version = version;
  }
  return prefix.found;
}

std::int64_t RequestPrefixes::will_find(const Request& request, const Request& other) const {
  const PrefixUse& use = request.group().prefix.use;
  const PrefixUse& other_use = other.group().prefix.use;
  if (use.bypass || other_use.bypass || use.salt != other_use.salt || use.codec != other_use.codec ||
      use.adapter_key != other_use.adapter_key)
    return 0;
  std::int64_t common = common_prompt(request, other);
  // What a request has generated may be part of another's prompt.
  if (common == request.task().prompt_tokens()) {
    const auto mine = request.task().tokens().subspan(static_cast<std::size_t>(common));
    const auto theirs = prompt_of(other).subspan(static_cast<std::size_t>(common));
    common += std::ranges::mismatch(mine, theirs).in1 - mine.begin();
  }
  return store_->will_find(use, request.start_text(), other_use, other.prefix_text(), common);
}

bool RequestPrefixes::waits_for_prompt(const Request& request, std::span<Request* const> before) const {
  if (store_ == nullptr) return false;
  const RequestGroup& group = request.group();
  return std::ranges::any_of(before, [&](const Request* other) {
    // A preempted request goes on before others begin. If it waited for one of them, both would wait forever.
    const bool begins_first = other->group().tenant == group.tenant && other->group().priority <= group.priority &&
                              (!request.progress.spared || other->progress.spared);
    const bool first = other->holds_pages() || begins_first;
    return first && other->task().reads() && other->task().prompt_done() < other->task().prompt_tokens() &&
           will_find(request, *other) > std::max(request.prefix.found, other->task().prompt_done());
  });
}

bool RequestPrefixes::begin_fetch(Request& request, double seconds_per_token) {
  return tiers_.may_fetch(request) && tiers_.begin_fetch(request, find(request), seconds_per_token);
}

void RequestPrefixes::start(Request& request) {
  RequestPrefix& prefix = request.prefix;
  RequestGroup& group = request.group();
  prefix.asked_stores = false;
  PrefixStore::Start start;
  if (store_ != nullptr) start = store_->start(group.prefix.use, request.start_text());
  prefix.start_tokens = start.tokens;
  prefix.start_snapshot = start.snapshot;
  prefix.start_miss = start.miss;
  if (start.sequence != nullptr) {
    request.start(std::move(start.sequence));
    request.task().skip(start.tokens);
    request.progress.run = start.tokens;
  } else {
    request.start(std::make_unique<Sequence>(runner_->model(), runner_->cache(), group.policy->clone(),
                                             group.shape.codec(), group.prefix.use.adapters));
  }
  if (store_ != nullptr && store_->wants_lasting(group.prefix.use, request.prefix_text()))
    request.task().pause_at(group.prefix.lasting);
}

void RequestPrefixes::count_start(Request& request) {
  const RequestPrefix& prefix = request.prefix;
  RequestGroup& group = request.group();
  if (store_ == nullptr || group.is_shadow() || group.session.base != nullptr ||
      std::exchange(group.prefix.counted, true))
    return;
  if (group.prefix.use.bypass) return;
  group.prefix.cached = prefix.start_tokens;
  group.prefix.miss = prefix.start_miss;
  // While a fetch without result was under way, another request may have computed the same tokens.
  const bool fetched =
      prefix.found_before_fetch >= 0 && prefix.start_tokens > prefix.found_before_fetch && !prefix.fetched_from.empty();
  if (prefix.start_tokens > 0)
    group.prefix.cached_from = fetched ? prefix.fetched_from : prefix.start_snapshot ? "snapshot" : "pages";
  counters_->prefix_queries += request.task().prompt_tokens();
  counters_->prefix_hits += prefix.start_tokens;
}

void RequestPrefixes::publish(Request& request) {
  if (store_ == nullptr || !request.holds_pages() || request.sequence()->in_chunk()) return;
  const std::int64_t done = request.task().prompt_done();
  if (!request.task().status().ok() || done == request.prefix.published) return;
  const std::int64_t before = std::exchange(request.prefix.published, done);
  const bool snapshot = store_->leave(request.group().prefix.use, request.prefix_text(), *request.sequence());
  if (request.group().is_shadow()) return;  // only the next shadow is likely to continue it
  if (snapshot) tiers_.write_snapshot(request);
  tiers_.write_pages(request, request.sequence()->tables().next_index(), before);
}

void RequestPrefixes::publish_last(const Request& request, std::unique_ptr<Sequence> sequence) {
  if (store_ == nullptr || sequence == nullptr) return;
  const std::int64_t seen = sequence->tables().next_index();
  if (request.task().generation().thought_tokens() > 0)
    store_->note_thoughts(request.group().prefix.use, request.prefix_text());
  store_->leave_last(request.group().prefix.use, request.prefix_text(), std::move(sequence));
  tiers_.write_pages(request, seen, 0);
}

void RequestPrefixes::discard(const Request& request) {
  if (store_ != nullptr) store_->discard(request.group().prefix.use, request.prefix_text());
}

std::string_view RequestPrefixes::miss_name(const RequestGroup& group) const {
  if (store_ == nullptr) return {};
  return group.prefix.use.bypass ? "bypass" : prefix_miss_name(group.prefix.miss);
}

}  // namespace kvasir
