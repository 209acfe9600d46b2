#include "requests/request_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/guarded.h"
#include "base/status.h"
#include "requests/request_members.h"
#include "sequence/kv_report.h"
#include "session/session.h"
#include "session/session_need.h"

namespace kvasir {
namespace {

using Clock = RequestClock;

// How long a round waits for the swap file where there is nothing else to do.
constexpr std::chrono::milliseconds kSwapWait(20);

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

RequestQueue::RequestQueue(std::shared_ptr<Driver> driver, const ScheduleLimits& limits, double max_itl)
    : driver_(std::move(driver)), admissions_(limits, max_itl) {}

RequestQueue::~RequestQueue() {
  requests_.clear();  // before the swap file
}

void RequestQueue::cache_prefixes(std::uint64_t most_bytes) {
  prefixes_ = std::make_unique<PrefixStore>(driver_->model(), driver_->cache(), most_bytes);
}

RequestId RequestQueue::add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                            std::optional<int> chunk, std::optional<KvCodec> codec) {
  const LoadedModel& model = *driver_->model();
  const GenerateOptions generate = with_seed(options.generate);
  auto request = std::make_unique<Request>();
  request->id = RequestId{next_id_};
  request->samples = options.samples;
  request->seed = generate.sampling.seed;
  request->policy = std::move(policy);
  request->priority = options.priority;
  request->tenant = options.tenant;
  request->label = options.label;
  request->inspect = options.inspect;
  auto member = std::make_unique<Member>(request.get(), 0);
  member->text.chunk = chunk.value_or(model.options.chunk);
  std::vector<TokenId> newest;
  if ((request->session = options.session) != nullptr) {
    request->base = dynamic_cast<SessionBase*>(options.session.get());
    newest = member->text.newest = request->base->held().newest;
    request->releases_session = options.releases_session;
    codec = request->base->held().sequence->shape().codec();
  }
  request->shape = driver_->cache()->shape();
  if (codec) request->shape = request->shape.with(*codec);
  // A session's text does not begin with the request's; a cached prefix has no log-probabilities.
  const bool bypass = options.bypass || options.session != nullptr || generate.prompt_logprobs >= 0;
  request->prefix = {bypass, options.salt, options.pin, options.ttl, options.tenant, request->shape.codec()};
  newest.insert(newest.end(), text.tokens.begin(), text.tokens.end());
  Generation generation(*model.tokenizer, generate, text.stops, newest);
  member->task.emplace(&member->text, std::move(text.tokens), std::move(generation));
  if (generate.prompt_logprobs >= 0) member->task->report_prompt(generate.prompt_logprobs);
  const KvCacheShape& shape = request->shape;
  const std::int64_t prompt = member->task->prompt_tokens();
  const auto peak = [&](std::int64_t before) {
    const RequestSize size{before + prompt, options.generate.max_tokens, model.config.context, member->text.chunk};
    return admissions_.counted(peak_bytes(shape, *request->policy, size), size, driver_->cache()->budget().capacity());
  };
  request->peak = request->base != nullptr ? bytes_behind(*request->base, peak) : peak(0);
  if (keeps_all(*request->policy, shape)) request->shared = std::min(least_kv_bytes(shape, prompt), request->peak);
  member->bytes_to_start = bytes_to_start(*member);
  request->members.push_back(std::move(member));
  const auto behind = std::ranges::upper_bound(requests_, request->priority, {}, &Request::priority);
  requests_.insert(behind, std::move(request));
  return RequestId{next_id_++};
}

Result<std::vector<Event>> RequestQueue::poll() {
  KVASIR_RETURN_IF_ERROR(guarded([&] {
    advance();
    return Status();
  }));
  untold_ = 0;
  return std::exchange(events_, {});
}

Status RequestQueue::cancel(RequestId id) {
  const auto request = std::ranges::find(requests_, id, &Request::id);
  if (request == requests_.end())
    return make_status(StatusCode::kNotFound, "no request {} is waiting or running", static_cast<std::uint64_t>(id));
  return guarded([&] {
    for (Member* member : members()) {
      if (member->request != request->get() || member->ended) continue;
      member->task->finish(FinishReason::kCancelled);
      end(*member);
    }
    remove_ended();
    return Status();
  });
}

const Sequence* RequestQueue::sequence_of(RequestId id, int sample) const {
  for (const auto& request : requests_)
    if (request->id == id && sample < static_cast<int>(request->members.size()))
      return request->members[static_cast<std::size_t>(sample)]->text.sequence.get();
  return nullptr;
}

std::vector<RequestQueue::Member*> RequestQueue::members() const {
  std::vector<Member*> all;
  for (const auto& request : requests_)
    for (const auto& member : request->members)
      if (!member->ended) all.push_back(member.get());
  return all;
}

PrefixText RequestQueue::text_of(const Member& member) {
  return {member.task->tokens(), member.task->prompt_tokens(), member.request->policy.get(), member.text.chunk};
}

// Gives a member a sequence: one that continues its session or a cached prefix, or an empty one. Errors:
// kResourceExhausted where there is no room for a session's copy.
Status RequestQueue::start(Member& member) {
  Request& request = *member.request;
  if (member.swap != nullptr) return come_back(member);
  if (request.base != nullptr) {
    Result<SessionBase::Copy> copy = request.base->copy();
    while (!copy.ok() && may_evict_for(member) && prefixes_->cache().evict_one()) copy = request.base->copy();
    KVASIR_RETURN_IF_ERROR(copy.status());
    member.text.sequence = std::move(copy->sequence);
    member.pages = std::move(copy->pages);
    return {};
  }
  member.asked_tiers = false;
  PrefixStore::Start start;
  if (prefixes_ != nullptr) start = prefixes_->start(request.prefix, text_of(member));
  member.start_tokens = start.tokens;
  member.start_snapshot = start.snapshot;
  member.start_miss = start.miss;
  if (start.sequence != nullptr) {
    member.text.sequence = std::move(start.sequence);
    member.task->skip(start.tokens);
    member.run = start.tokens;
  } else {
    member.text.sequence =
        std::make_unique<Sequence>(driver_->model(), driver_->cache(), request.policy->clone(), request.shape.codec());
  }
  return {};
}

// Reports what a request's first start took from the prefix cache, once it is certain that its pass runs.
void RequestQueue::note_start(Member& member) {
  Request& request = *member.request;
  if (prefixes_ == nullptr || request.base != nullptr || std::exchange(request.asked_prefix, true)) return;
  if (request.prefix.bypass) return;
  request.cached = member.start_tokens;
  request.miss = member.start_miss;
  // A fetch that brought nothing may have waited while another request computed the same tokens.
  const bool fetched = member.found_before >= 0 && request.cached > member.found_before && !member.fetched_from.empty();
  if (request.cached > 0)
    request.cached_from = fetched ? member.fetched_from : member.start_snapshot ? "snapshot" : "pages";
  counters_.prefix_queries += member.task->prompt_tokens();
  counters_.prefix_hits += request.cached;
}

// Leaves what others may continue, at the end of a chunk of the prompt.
void RequestQueue::leave_prefix(Member& member) {
  if (prefixes_ == nullptr || member.text.sequence == nullptr || member.text.sequence->in_chunk()) return;
  if (!member.task->status().ok() || member.task->prompt_done() == member.left_prefix) return;
  const std::int64_t before = std::exchange(member.left_prefix, member.task->prompt_done());
  if (prefixes_->leave(member.request->prefix, text_of(member), *member.text.sequence)) leave_snapshot_outside(member);
  leave_outside(member, member.text.sequence->tables().next_index(), before);
}

// Runs one pass, if any request has work. A round without a pass has made tasks give up pages, or end.
void RequestQueue::advance() {
  if (requests_.empty() && tiers_ != nullptr) tiers_->advance();
  while (!requests_.empty() && !run_pass()) {
  }
}

bool RequestQueue::run_pass() {
  if (prefixes_ != nullptr) prefixes_->expire();
  std::erase_if(leaving_, [](const Leaving& session) { return session.life.expired(); });
  advance_swaps();
  if (tiers_ != nullptr) tiers_->advance();
  for (Member* member : members()) settle(*member);
  remove_ended();
  std::vector<Member*> all = members();
  std::erase_if(all, [this](Member* member) { return member->is_leaving() || waits_for_fetch(*member); });
  if (all.empty()) {
    // The caller may have requests, or cancel some, meanwhile.
    if (swapping()) {
      swap_file_->poll(kSwapWait);
    } else if (fetching()) {
      tiers_->wait(kSwapWait);
    } else {
      return false;
    }
    return true;
  }
  const std::vector<Verdict> verdicts = decide_with_prefixes(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (verdicts[i].decision == Decision::kPreempt) preempt(*all[i]);
  std::vector<Turn> turns;
  std::vector<Member*> running;
  bool estimated = false;
  std::pair<Member*, Status> unstarted;  // it waits
  std::uint64_t load = load_bytes_;      // left of this pass
  bool loading = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    reject(*all[i], verdicts[i].decision);
    if (verdicts[i].decision != Decision::kRun) continue;
    if (all[i]->text.sequence == nullptr) {
      if (begin_fetch(*all[i])) continue;
      if (Status started = start(*all[i]); !started.ok()) {
        unstarted = {all[i], std::move(started)};
        continue;
      }
      all[i]->starts = estimated = true;
    }
    if (all[i]->is_coming()) continue;
    if (SessionPages& pages = all[i]->pages; !pages.done()) {
      pages.fill(std::exchange(load, 0));
      loading = true;
      if (!pages.done()) continue;
    }
    // The samples are forked before any of them draws.
    turns.push_back({&*all[i]->task, verdicts[i].rows, all[i]->request->has_read_prompt()});
    running.push_back(all[i]);
  }
  // Nothing else runs or leaves that could make room for it.
  if (turns.empty() && !loading && leaving_.empty() && !swapping() && !fetching() && unstarted.first != nullptr) {
    if (unstarted.first->swap != nullptr) {
      give_up_swap(*unstarted.first, unstarted.second.message());
    } else if (!forget_one_swapped()) {
      unstarted.first->task->fail(unstarted.second);
    }
  }
  // The bytes of a task that starts were an estimate.
  while (estimated && turns.size() > 1 && driver_->plan(turns).bytes > available()) {
    if (running.back()->starts) undo_start(*running.back());
    turns.pop_back();
    running.pop_back();
  }
  if (swapping()) defer_what_waits_for_swap(&turns, &running);
  const std::uint64_t bytes = driver_->plan(turns).bytes;
  const bool fits = driver_->cache()->budget().make_available(bytes);
  // One that starts alone holds its place now: the next round rejects it if even its first rows find no room.
  if (turns.size() == 1 && running.front()->starts && !fits) turns.clear();
  for (std::size_t i = 0; i < turns.size(); ++i)
    if (running[i]->starts) note_start(*running[i]);
  for (Member* member : all) member->starts = false;
  if (!turns.empty()) run(turns, running);
  remove_ended();
  if (turns.empty() && swapping()) {
    swap_file_->poll(kSwapWait);
    return true;
  }
  if (turns.empty() && fetching()) {
    tiers_->wait(kSwapWait);
    return true;
  }
  // Only the caller can make the sessions leave that all may be waiting for.
  return !turns.empty() || (!leaving_.empty() && !loading);
}

void RequestQueue::run(std::span<const Turn> turns, std::span<Member* const> running) {
  int prompt_rows = 0;
  int other_rows = 0;
  std::int64_t prompt_left = 0;  // before the pass
  const auto began = Clock::now();
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Task& task = *turns[i].task;
    (task.reads() ? prompt_rows : other_rows) += turns[i].most_rows;
    counters_.prepared += turns[i].prepares ? 1 : 0;
    prompt_left += task.left();
    if (!running[i]->request->started) running[i]->request->started = began;
  }
  ++counters_.passes;
  const bool mixed = prompt_rows > 0 && other_rows > 0;
  if (mixed) {
    ++counters_.mixed;
    counters_.mixed_rows += prompt_rows;
    counters_.most_mixed_rows = std::max(counters_.most_mixed_rows, prompt_rows);
    if (prompt_rows > kLeastPromptRows)
      counters_.longest_expected =
          std::max(counters_.longest_expected, admissions_.expected_seconds(prompt_rows, other_rows));
  }
  counters_.most_running = std::max(counters_.most_running, turns.size());
  counters_.most_rows = std::max(counters_.most_rows, prompt_rows);
  const Status status = guarded([&] { return driver_->pass(turns); });
  const double seconds = seconds_between(began, Clock::now());
  if (mixed) counters_.longest_mixed = std::max(counters_.longest_mixed, seconds);
  for (const Member* member : running) prompt_left -= member->task->left();
  // Where chunks end, a prompt runs fewer rows than it may. Tokens that are run again one at a time are not generated.
  if (status.ok()) admissions_.note_pass(std::min(prompt_rows, static_cast<int>(prompt_left)), other_rows, seconds);
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (!status.ok()) running[i]->task->fail(status);  // the system's memory: the pass was given up halfway
    collect(*running[i]);
  }
}

void RequestQueue::collect(Member& member) {
  Request& request = *member.request;
  Task& task = *member.task;
  const std::int64_t run = task.known_tokens() - task.left();
  const std::int64_t again = std::min(run, member.most_run) - member.run;
  member.recomputed += std::max<std::int64_t>(again, 0);
  counters_.recomputed_tokens += std::max<std::int64_t>(again, 0);
  member.run = run;
  member.most_run = std::max(member.most_run, run);
  if (const std::int64_t tokens = task.generation().tokens(); tokens > member.generated) {
    counters_.generated_tokens += tokens - member.generated;
    member.generated = tokens;
    member.spared = false;
  }
  if (task.status().ok() && task.prompt_done() > request.told) {
    counters_.prompt_tokens += task.prompt_done() - request.told;
    Event event = event_of(member, Event::Kind::kPrompt);
    request.told = event.done = task.prompt_done();
    event.total = task.prompt_tokens();
    events_.push_back(std::move(event));
    if (request.has_read_prompt()) {
      request.read = Clock::now();
      fork_samples(request);
    }
  }
  if (Event event = event_of(member, Event::Kind::kText); !(event.text = task.take_text()).empty()) {
    event.choices = fresh_choices(member);
    events_.push_back(std::move(event));
  }
  leave_prefix(member);
  settle(member);
}

// Makes the samples behind the first. One that finds no room for its page tables reads the prompt itself, later.
void RequestQueue::fork_samples(Request& request) {
  const Member& first = *request.members.front();
  while (static_cast<int>(request.members.size()) < request.samples) {
    const auto number = static_cast<int>(request.members.size());
    auto member = std::make_unique<Member>(&request, number);
    if (first.text.sequence != nullptr && request.has_read_prompt())
      if (auto copy = first.text.sequence->fork(); copy.ok()) member->text.sequence = std::move(*copy);
    member->text.newest = first.text.newest;
    member->text.logits = first.text.logits;
    member->text.chunk = first.text.chunk;
    member->released = first.released;
    member->run = member->most_run = member->text.sequence != nullptr ? first.run : 0;
    member->task.emplace(first.task->fork(&member->text, request.seed + static_cast<std::uint64_t>(number)));
    member->bytes_to_start = bytes_to_start(*member);
    request.members.push_back(std::move(member));
  }
}

// The report of what the member holds; while it has not caught up with what it gave up, of that.
KvReport RequestQueue::report_of(Member& member) {
  if (member.text.sequence == nullptr && member.released) return *member.released;
  if (member.text.sequence == nullptr && member.request->base != nullptr)
    return kv_report(*member.request->base->held().sequence);
  if (member.text.sequence == nullptr)  // never held anything: a report of zeros
    member.text.sequence = std::make_unique<Sequence>(driver_->model(), driver_->cache(),
                                                      member.request->policy->clone(), member.request->shape.codec());
  KvReport now = kv_report(*member.text.sequence);
  return member.released && member.released->seen > now.seen ? *member.released : now;
}

// Ends a member that has nothing left to run.
void RequestQueue::settle(Member& member) {
  // One that is swapped was settled before it left.
  if (!member.ended && member.swap == nullptr && !member.task->prepare()) end(member);
}

// Ends a member; if its prompt was not read to the end, the samples that would have forked it end in the same way.
void RequestQueue::end(Member& member, const Status& why) {
  Request& request = *member.request;
  const std::size_t made = request.members.size();
  fork_samples(request);
  tell_end(member, why);
  for (std::size_t sample = made; sample < request.members.size(); ++sample) tell_end(*request.members[sample], why);
}

std::vector<GeneratedToken> RequestQueue::fresh_choices(Member& member) {
  const Generation& generation = member.task->generation();
  const std::vector<GeneratedToken>& all = generation.choices();  // with one that is not accepted yet, perhaps
  const std::size_t accepted = std::min(all.size(), static_cast<std::size_t>(generation.tokens()));
  const auto first = static_cast<std::ptrdiff_t>(std::exchange(member.told_choices, accepted));
  return {all.begin() + first, all.begin() + static_cast<std::ptrdiff_t>(accepted)};
}

void RequestQueue::tell_end(Member& member, const Status& why) {
  if (member.is_coming()) member.text.sequence.reset();  // half of its pages have no content
  if (member.request->inspect) ended_views_.add(state_of(member));
  Task& task = *member.task;
  const bool mid_character = task.generation().mid_character();
  const Request& request = *member.request;
  const auto now = Clock::now();
  if (!task.status().ok()) {
    Event event = event_of(member, Event::Kind::kFailed);
    event.status = task.status();
    // Pages are left before anything shows that they are damaged. A file of this sequence's own is no sign of that.
    const bool own_file = member.text.sequence != nullptr && !member.text.sequence->recall_status().ok();
    if (prefixes_ != nullptr && event.status.code() == StatusCode::kDataLoss && !own_file)
      prefixes_->discard(request.prefix, text_of(member));
    events_.push_back(std::move(event));
  } else {
    for (std::string text = task.flush(); !text.empty(); text = task.flush()) {
      events_.push_back(event_of(member, Event::Kind::kText));
      events_.back().text = std::move(text);
      events_.back().choices = fresh_choices(member);
    }
    Event event = event_of(member, Event::Kind::kFinished);
    event.status = why;
    event.choices = fresh_choices(member);
    const Generation& generation = task.generation();
    const bool read = request.has_read_prompt();
    GenerateResult& result = event.result;
    result.text = generation.text();
    result.choices = generation.choices();
    result.end_choice = generation.end_choice();
    result.prompt_choices = task.prompt_choices();
    result.prompt_tokens = task.prompt_tokens();
    result.tokens = generation.tokens();
    result.prompt_seconds = seconds_between(request.submitted, read ? request.read : now);
    result.seconds = read ? seconds_between(request.read, now) : 0;
    result.finish_reason = *generation.finish_reason();
    result.seed = request.seed + static_cast<std::uint64_t>(member.sample);
    result.kv = report_of(member);
    result.preemptions = member.preemptions;
    result.recomputed = member.recomputed;
    result.queue_seconds = seconds_between(request.submitted, request.started.value_or(now));
    counters_.evicted_tokens += std::max<std::int64_t>(result.kv.seen - result.kv.kept, 0);
    result.cached = request.cached;
    result.cached_from = request.cached_from;
    if (prefixes_ != nullptr) result.cache_miss = request.prefix.bypass ? "bypass" : prefix_miss_name(request.miss);
    // One that was cancelled leaves the session as it was: whether it held pages is chance.
    const bool stays = result.finish_reason != FinishReason::kCancelled && member.text.sequence != nullptr;
    if (request.base != nullptr && read && task.left() == 0 && stays) {
      request.base->end(std::move(member.text), generation, mid_character);
      if (request.releases_session) note_leaving(request);
    }
    events_.push_back(std::move(event));
    // One that ends while it is preempted has no sequence.
    if (prefixes_ != nullptr && request.base == nullptr && member.text.sequence != nullptr) {
      const std::int64_t seen = member.text.sequence->tables().next_index();
      prefixes_->leave_last(request.prefix, text_of(member), std::move(member.text.sequence));
      leave_outside(member, seen, 0);
    }
  }
  member.ended = true;
  member.swap.reset();
  member.fetch.reset();
  member.text.sequence.reset();
}

void RequestQueue::remove_ended() {
  untold_ += static_cast<std::int64_t>(std::erase_if(requests_, [](const std::unique_ptr<Request>& request) {
    return std::ranges::all_of(request->members, [](const auto& member) { return member->ended; });
  }));
}

Event RequestQueue::event_of(const Member& member, Event::Kind kind) const {
  Event event;
  event.request = member.request->id;
  event.sample = member.sample;
  event.kind = kind;
  return event;
}

}  // namespace kvasir
