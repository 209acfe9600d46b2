#include "requests/request_passes.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/guarded.h"
#include "base/status.h"

namespace kvasir {
namespace {

// How long a round waits for a file or a store if there is nothing else to do.
constexpr std::chrono::milliseconds kTransferWait(20);
// Rows of generated tokens and their drafts in a pass.
constexpr int kRowsWithDrafts = 16;

}  // namespace

RequestPasses::RequestPasses(const RequestParts& parts, RequestCompletion* completion)
    : parts_(parts),
      completion_(completion),
      scheduler_(parts.prefixes, parts.memory, parts.preemption, parts.sessions, parts.admissions) {}

void RequestPasses::Pass::pop_back() {
  turns.pop_back();
  requests.pop_back();
  starts.pop_back();
}

void RequestPasses::advance() {
  if (parts_.requests->empty()) parts_.prefixes->tiers().advance();
  // A round without a pass made requests give up pages, or end.
  while (!parts_.requests->empty() && !run_round()) {
  }
}

// Returns whether to return to the caller before the next round: a pass has run, or only time or the caller can help
// the requests.
bool RequestPasses::run_round() {
  const std::vector<Request*> all = begin_round();
  if (all.empty()) return wait_for_transfers();
  const std::vector<Verdict> verdicts = scheduler_.decide(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (verdicts[i].decision == Decision::kPreempt) parts_.preemption->preempt(*all[i]);
  Pass pass;
  pass.load = load_bytes_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]->is(RequestState::kEnded)) continue;
    completion_->reject(*all[i], verdicts[i].decision);
    if (verdicts[i].decision == Decision::kRun) add_turn(*all[i], verdicts[i].rows, pass);
  }
  const bool idle = pass.turns.empty() && !pass.loading && parts_.sessions->empty();
  if (idle && pass.unstarted != nullptr && !parts_.preemption->swapping() && !parts_.prefixes->tiers().fetching())
    give_way_to(*pass.unstarted, pass.why_unstarted);
  add_drafts(pass);
  fit(pass);
  for (std::size_t i = 0; i < pass.turns.size(); ++i)
    if (pass.starts[i]) parts_.prefixes->count_start(*pass.requests[i]);
  if (!pass.turns.empty()) run(pass);
  completion_->remove_ended();
  if (!pass.turns.empty() || wait_for_transfers()) return true;
  // All may be waiting for the memory of a session that only the caller can destroy.
  return !parts_.sessions->empty() && !pass.loading;
}

// Takes what has happened since the last round. Returns the requests that may take part in a pass or wait for one.
std::vector<Request*> RequestPasses::begin_round() {
  parts_.prefixes->expire();
  parts_.sessions->forget_destroyed();
  parts_.preemption->advance();
  parts_.prefixes->tiers().advance();
  for (Request* request : parts_.requests->active()) completion_->end_if_done(*request);
  completion_->remove_ended();
  parts_.shadows->begin_due();
  std::vector<Request*> all = parts_.requests->active();
  std::erase_if(all, [](Request* request) {
    return request->is(RequestState::kSwappingOut) || (request->is_held() && !request->holds_pages()) ||
           (request->is(RequestState::kFetching) && RequestTiers::still_fetches(*request));
  });
  return all;
}

// Waits briefly for transfers from or to a file or a store. Returns whether any is under way. Meanwhile the caller may
// submit or cancel requests.
bool RequestPasses::wait_for_transfers() {
  if (parts_.preemption->swapping()) {
    parts_.preemption->wait(kTransferWait);
  } else if (parts_.prefixes->tiers().fetching()) {
    parts_.prefixes->tiers().wait(kTransferWait);
  } else {
    return false;
  }
  return true;
}

// Gives a request its turn, and starts it first if it holds no pages. A request whose pages are still being transferred
// gets no turn.
void RequestPasses::add_turn(Request& request, int rows, Pass& pass) {
  bool starts = false;
  if (!request.holds_pages()) {
    if (begin_fetch(request)) return;
    if (Status started = start(request); !started.ok()) {
      pass.unstarted = &request;
      pass.why_unstarted = std::move(started);
      return;
    }
    starts = pass.estimated = true;
  }
  if (!request.is(RequestState::kRunning)) return;
  if (SessionPages& pages = request.session_pages(); !pages.done()) {
    pages.fill(std::exchange(pass.load, 0));
    pass.loading = true;
    if (!pages.done()) return;
  }
  // A task may draw within the pass only when its samples have been forked.
  pass.turns.push_back({&request.task(), rows, request.group().has_read_prompt()});
  pass.requests.push_back(&request);
  pass.starts.push_back(starts);
}

// Begins to fetch a request's tokens from the stores if that is faster than computing them. Returns whether the request
// now fetches and so takes part in no pass.
bool RequestPasses::begin_fetch(Request& request) {
  if (!request.is(RequestState::kWaiting)) return false;
  const int rows = parts_.admissions->most().prompt_rows;
  return parts_.prefixes->begin_fetch(request, parts_.admissions->rates().rates().seconds(rows, 0) / rows);
}

// Gives a request a sequence: its own from the swap file, one that continues its session or a cached prefix, or an
// empty one. Errors: kResourceExhausted.
Status RequestPasses::start(Request& request) {
  KVASIR_RETURN_IF_ERROR(open_rows(request));
  if (request.is(RequestState::kSwapped)) return parts_.preemption->swap_in(request);
  if (request.group().session.base != nullptr) return start_behind_session(request);
  parts_.prefixes->start(request);
  return {};
}

// Takes the memory for the rows that a request with a promise of quality compares. Errors: kResourceExhausted.
Status RequestPasses::open_rows(Request& request) {
  if (request.quality == nullptr || request.quality->meter().is_open()) return {};
  MemoryBudget& budget = parts_.runner->cache()->budget();
  const std::uint64_t bytes = request.quality->terms().rows_bytes;
  while (!budget.make_available(bytes))
    if (!parts_.preemption->may_evict_for(request) || !parts_.prefixes->evict_one())
      return kv_memory_full(budget, bytes);
  KVASIR_CHECK(request.quality->meter().open());
  return {};
}

Status RequestPasses::start_behind_session(Request& request) {
  const SessionBase& base = *request.group().session.base;
  Result<SessionBase::Copy> copy = base.copy();
  while (!copy.ok() && parts_.preemption->may_evict_for(request) && parts_.prefixes->evict_one()) copy = base.copy();
  KVASIR_RETURN_IF_ERROR(copy.status());
  request.start(std::move(copy->sequence), std::move(copy->pages));
  return {};
}

// Makes room for a request that could not start although nothing else runs or leaves. If no swapped request can give
// way, the request fails.
void RequestPasses::give_way_to(Request& unstarted, const Status& why) {
  if (unstarted.is(RequestState::kSwapped)) {
    parts_.preemption->give_up_swap(unstarted, why.message());
  } else if (!parts_.preemption->give_up_one_swapped() && !parts_.shadows->give_up_one(unstarted)) {
    unstarted.task().fail(why);
  }
}

// Gives generated tokens rows for their drafts where the pass is small: the more rows, the more a row that comes to
// nothing costs.
void RequestPasses::add_drafts(Pass& pass) {
  const auto generating = std::ranges::count_if(pass.turns, [](const Turn& turn) { return !turn.task->reads(); });
  if (generating == 0) return;
  const auto most = std::max(static_cast<int>(kRowsWithDrafts / generating) - 1, 0);
  // Passes that make drafts keep the others waiting.
  const auto wanting =
      std::ranges::count_if(pass.turns, [](const Turn& turn) { return turn.task->drafts_wanted() > 0; });
  if (2 * wanting >= std::ssize(pass.turns)) {
    // A text whose drafting was given up halfway ends with an error at its next turn.
    static_cast<void>(guarded([&] {
      parts_.runner->draft(pass.turns, most);
      return Status();
    }));
  }
  if (std::ranges::none_of(pass.turns, [](const Turn& turn) { return turn.task->drafts() > 0; })) return;
  const auto set_drafts = [&](int bound) {
    for (Turn& turn : pass.turns)
      if (const int drafts = turn.task->drafts(); drafts > 0) turn.most_rows = 1 + std::clamp(bound, 0, drafts);
  };
  set_drafts(most);
  if (parts_.runner->plan(pass.turns).bytes > parts_.memory->available()) set_drafts(0);
}

// Drops turns without room: the bytes of starting requests were estimates.
void RequestPasses::fit(Pass& pass) {
  const BatchRunner& runner = *parts_.runner;
  while (pass.estimated && pass.turns.size() > 1 && runner.plan(pass.turns).bytes > parts_.memory->available()) {
    if (pass.starts.back()) pass.requests.back()->release();
    pass.pop_back();
  }
  if (parts_.preemption->swapping()) drop_what_waits_for_swap(pass);
  const bool fits = runner.cache()->budget().make_available(runner.plan(pass.turns).bytes);
  // A request that starts alone keeps its place: the next round rejects it if even its first rows do not fit.
  if (pass.turns.size() == 1 && pass.starts.front() && !fits) pass.pop_back();
}

// The scheduler counts leaving pages as free: turns without room wait until they are.
void RequestPasses::drop_what_waits_for_swap(Pass& pass) {
  if (pass.turns.empty() || parts_.runner->plan(pass.turns).bytes <= parts_.memory->available()) return;
  Pass left;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pass.turns.size(); ++i) {
    const std::uint64_t more = parts_.runner->plan(pass.turns[i]).bytes;
    if (bytes + more <= parts_.memory->available()) {
      bytes += more;
      left.turns.push_back(pass.turns[i]);
      left.requests.push_back(pass.requests[i]);
      left.starts.push_back(pass.starts[i]);
    } else if (pass.starts[i]) {
      pass.requests[i]->release();
    }
  }
  pass.turns = std::move(left.turns);
  pass.requests = std::move(left.requests);
  pass.starts = std::move(left.starts);
}

RequestPasses::Rows RequestPasses::rows_of(const Pass& pass) {
  Rows rows;
  for (const Turn& turn : pass.turns) {
    // The time of a pass is learnt by its tokens: drafts are extra.
    (turn.task->reads() ? rows.prompt : rows.other) += turn.task->drafts() > 0 ? 1 : turn.most_rows;
    rows.left += turn.task->left() - turn.task->repeated();
  }
  return rows;
}

void RequestPasses::count(const Pass& pass, const Rows& rows) {
  RequestCounters& counters = *parts_.counters;
  ++counters.passes;
  for (const Turn& turn : pass.turns) counters.prepared += turn.prepares ? 1 : 0;
  counters.most_running = std::max(counters.most_running, pass.turns.size());
  counters.most_rows = std::max(counters.most_rows, rows.prompt);
  if (!rows.mixed()) return;
  ++counters.mixed;
  counters.mixed_rows += rows.prompt;
  counters.most_mixed_rows = std::max(counters.most_mixed_rows, rows.prompt);
  if (rows.prompt <= kLeastPromptRows) return;
  const double expected = parts_.admissions->expected_seconds(rows.prompt, rows.other);
  counters.longest_expected = std::max(counters.longest_expected, expected);
}

// Runs the pass and gives each request its results.
void RequestPasses::run(const Pass& pass) {
  const Rows rows = rows_of(pass);
  count(pass, rows);
  const auto began = RequestClock::now();
  for (const Request* request : pass.requests)
    if (auto& started = request->group().started; !started) started = began;
  const Status status = guarded([&] { return parts_.runner->pass(pass.turns); });
  const double seconds = seconds_between(began, RequestClock::now());
  if (rows.mixed()) parts_.counters->longest_mixed = std::max(parts_.counters->longest_mixed, seconds);
  // At the end of a chunk a prompt runs fewer rows than it may. Other rows that run known tokens again are in `run`,
  // too.
  std::int64_t run = rows.left;
  for (const Request* request : pass.requests) run -= request->task().left() - request->task().repeated();
  const int prompt_rows = std::min(rows.prompt, static_cast<int>(run));
  if (status.ok()) parts_.admissions->note_pass(prompt_rows, rows.other, seconds);
  for (Request* request : pass.requests) {
    if (!status.ok()) request->task().fail(status);  // no system memory: the pass was abandoned halfway
    take_results(*request);
  }
}

// Reports what a pass gave a request, and puts a prefix into the cache.
void RequestPasses::take_results(Request& request) {
  RequestGroup& group = request.group();
  const Task& task = request.task();
  RequestCounters& counters = *parts_.counters;
  counters.recomputed_tokens += request.progress.note_run(task.known_tokens() - task.left());
  if (group.is_shadow()) {
    const std::int64_t had = std::max(group.told, request.prefix.start_tokens);
    counters.shadow_tokens += std::max<std::int64_t>(task.prompt_done() - had, 0);
    group.told = std::max(group.told, task.prompt_done());
    parts_.prefixes->publish(request);
    return completion_->end_if_done(request);
  }
  if (const std::int64_t tokens = task.generation().tokens(); tokens > request.progress.generated) {
    counters.generated_tokens += tokens - request.progress.generated;
    request.progress.generated = tokens;
    request.progress.spared = false;
  }
  if (task.status().ok() && task.prompt_done() > group.told) {
    counters.prompt_tokens += task.prompt_done() - group.told;
    group.told = task.prompt_done();
    parts_.events->add_prompt(request);
    if (group.has_read_prompt()) {
      group.read = RequestClock::now();
      fork_samples(group, parts_.admissions->most().ahead);
    }
  }
  parts_.events->add_text(request);
  parts_.prefixes->publish(request);
  completion_->end_if_done(request);
  if (!request.is(RequestState::kEnded)) request.task().add_forced();
}

}  // namespace kvasir
