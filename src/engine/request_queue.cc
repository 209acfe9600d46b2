#include "engine/request_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "engine/guarded.h"
#include "engine/kv_report.h"
#include "engine/memory_plan.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

struct RequestQueue::Member {
  Member(Request* of, int number) : request(of), sample(number) {}

  Request* request;
  int sample;
  TextState text;
  std::optional<Task> task;
  std::uint64_t bytes_to_start = 0;  // while it holds no pages
  std::optional<KvReport> released;  // of the sequence that it gave up last, until it holds as much again
  bool ended = false;
};

struct RequestQueue::Request {
  RequestId id{};
  RequestTag tag;
  int samples = 1;
  std::uint64_t seed = 0;
  std::unique_ptr<RetentionPolicy> policy;  // as it stands at its start
  std::vector<std::unique_ptr<Member>> members;
  std::int64_t told = 0;  // prompt tokens that events told of
  Clock::time_point submitted = Clock::now();
  Clock::time_point read = submitted;  // when the prompt was
};

RequestQueue::RequestQueue(std::shared_ptr<Driver> driver, const ScheduleLimits& limits)
    : driver_(std::move(driver)), limits_(limits) {}

RequestQueue::~RequestQueue() = default;

RequestId RequestQueue::add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                            std::optional<int> chunk) {
  const LoadedModel& model = *driver_->model();
  const GenerateOptions generate = with_seed(options.generate);
  auto request = std::make_unique<Request>();
  request->id = RequestId{next_id_};
  request->tag = {options.label, options.tenant, options.inspect};
  request->samples = options.samples;
  request->seed = generate.sampling.seed;
  request->policy = std::move(policy);
  auto member = std::make_unique<Member>(request.get(), 0);
  member->text.chunk = chunk.value_or(model.options.chunk);
  Generation generation(*model.tokenizer, generate, text.stops, text.tokens);
  member->task.emplace(&member->text, std::move(text.tokens), std::move(generation));
  member->bytes_to_start = bytes_to_start(*member);
  request->members.push_back(std::move(member));
  requests_.push_back(std::move(request));
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

// Bytes that all tokens of the member take, and some more: see ScheduleLimits::ahead.
std::uint64_t RequestQueue::bytes_to_start(const Member& member) const {
  MemoryRequest request;
  request.tokens = std::min(member.task->known_tokens() + limits_.ahead, kMostPlannedTokens);
  request.prompt = std::min(member.task->prompt_tokens(), kMostPlannedTokens);
  request.chunk = member.text.chunk;
  return plan_kv_memory(driver_->cache()->shape(), *member.request->policy, request).bytes;
}

void RequestQueue::start(Member& member) const {
  member.text.sequence =
      std::make_unique<Sequence>(driver_->model(), driver_->cache(), member.request->policy->clone());
}

// Runs one pass, if any request has work. A round without a pass has made tasks give up pages, or end.
void RequestQueue::advance() {
  while (!requests_.empty() && !run_pass()) {
  }
}

std::vector<int> RequestQueue::rows_of(std::span<Member* const> all) const {
  std::vector<RowDemand> demands;
  for (const Member* member : all) {
    const bool reads = member->task->reads();
    const std::int64_t chunk = prompt_chunk(*member->request->policy, member->text.chunk);
    demands.push_back({reads, reads ? static_cast<int>(std::min(member->task->left(), chunk)) : 1});
  }
  return share_rows(demands, limits_.prompt_rows);
}

bool RequestQueue::run_pass() {
  for (Member* member : members()) settle(*member);
  remove_ended();
  const std::vector<Member*> all = members();
  if (all.empty()) return false;
  if (all.front()->text.sequence == nullptr) start(*all.front());
  const std::vector<int> rows = rows_of(all);
  const std::vector<Decision> decisions = decide(all, rows);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (decisions[i] != Decision::kPreempt) continue;
    ++counters_.preempted;
    all[i]->released = report_of(*all[i]);
    all[i]->task->release();
    all[i]->bytes_to_start = bytes_to_start(*all[i]);
  }
  std::vector<Turn> turns;
  std::vector<Member*> running;
  bool estimated = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (decisions[i] == Decision::kReject) {
      ++counters_.rejected;
      const Step::Plan plan = driver_->plan(Turn{&*all[i]->task, rows[i]});
      all[i]->task->finish(FinishReason::kKvMemory);
      end(*all[i], kv_memory_full(driver_->cache()->budget(), plan.bytes));
    } else if (decisions[i] == Decision::kRun) {
      if (all[i]->text.sequence == nullptr) {
        start(*all[i]);
        estimated = true;
      }
      turns.push_back({&*all[i]->task, rows[i]});
      running.push_back(all[i]);
    }
  }
  // The bytes of a task that starts were an estimate.
  while (estimated && turns.size() > 1 && !driver_->plan(turns).fits) {
    if (turns.back().task->at_start()) turns.back().task->release();
    turns.pop_back();
    running.pop_back();
  }
  if (!turns.empty()) run(turns, running);
  remove_ended();
  return !turns.empty();
}

std::vector<Decision> RequestQueue::decide(std::span<Member* const> all, std::span<const int> rows) const {
  std::vector<ScheduleTask> tasks;
  std::uint64_t wanted = 0;
  const std::uint64_t available = driver_->cache()->budget().available();
  for (std::size_t i = 0; i < all.size(); ++i) {
    ScheduleTask task;
    task.holds = all[i]->text.sequence != nullptr;
    task.rows = rows[i];
    task.bytes = all[i]->bytes_to_start;
    if (task.holds) task.bytes = rows[i] > 0 ? driver_->plan(Turn{&*all[i]->task, rows[i]}).bytes : 0;
    wanted += task.rows > 0 ? std::min(task.bytes, available) : 0;
    tasks.push_back(task);
  }
  // Pages are only counted when they may have to be given up.
  for (std::size_t i = 0; i < all.size() && wanted > available; ++i)
    if (tasks[i].holds) tasks[i].held = bytes_freed_without(*all[i]->text.sequence);
  return schedule(tasks, available, limits_.running);
}

void RequestQueue::run(std::span<const Turn> turns, std::span<Member* const> running) {
  int prompt_rows = 0;
  bool generates = false;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Task& task = *turns[i].task;
    if (task.reads()) prompt_rows += turns[i].most_rows;
    generates = generates || !task.reads();
  }
  ++counters_.passes;
  counters_.mixed += prompt_rows > 0 && generates ? 1 : 0;
  counters_.most_running = std::max(counters_.most_running, turns.size());
  counters_.most_rows = std::max(counters_.most_rows, prompt_rows);
  const Status status = guarded([&] { return driver_->pass(turns); });
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (!status.ok()) running[i]->task->fail(status);  // the system's memory: the pass was given up halfway
    collect(*running[i]);
  }
}

void RequestQueue::collect(Member& member) {
  Request& request = *member.request;
  Task& task = *member.task;
  if (task.status().ok() && task.prompt_done() > request.told) {
    Event event = event_of(member, Event::Kind::kPrompt);
    request.told = event.done = task.prompt_done();
    event.total = task.prompt_tokens();
    events_.push_back(std::move(event));
    if (request.told == task.prompt_tokens()) {
      request.read = Clock::now();
      fork_samples(request);
    }
  }
  if (Event event = event_of(member, Event::Kind::kText); !(event.text = task.take_text()).empty())
    events_.push_back(std::move(event));
  settle(member);
}

// Makes the samples behind the first. One that finds no room for its page tables reads the prompt itself, later.
void RequestQueue::fork_samples(Request& request) {
  const Member& first = *request.members.front();
  while (static_cast<int>(request.members.size()) < request.samples) {
    const auto number = static_cast<int>(request.members.size());
    auto member = std::make_unique<Member>(&request, number);
    if (first.text.sequence != nullptr && request.told == first.task->prompt_tokens())
      if (auto copy = first.text.sequence->fork(); copy.ok()) member->text.sequence = std::move(*copy);
    member->text.newest = first.text.newest;
    member->text.logits = first.text.logits;
    member->text.chunk = first.text.chunk;
    member->released = first.released;
    member->task.emplace(first.task->fork(&member->text, request.seed + static_cast<std::uint64_t>(number)));
    member->bytes_to_start = bytes_to_start(*member);
    request.members.push_back(std::move(member));
  }
}

// The report of what the member holds; while it has not caught up with what it gave up, of that.
KvReport RequestQueue::report_of(Member& member) const {
  if (member.text.sequence == nullptr && member.released) return *member.released;
  if (member.text.sequence == nullptr) start(member);  // never held anything: a report of zeros
  KvReport now = kv_report(*member.text.sequence);
  return member.released && member.released->seen > now.seen ? *member.released : now;
}

// Ends a member that has nothing left to run.
void RequestQueue::settle(Member& member) {
  if (!member.ended && !member.task->prepare()) end(member);
}

// Ends a member; if its prompt was not read to the end, the samples that would have forked it end in the same way.
void RequestQueue::end(Member& member, const Status& why) {
  Request& request = *member.request;
  const std::size_t made = request.members.size();
  fork_samples(request);
  tell_end(member, why);
  for (std::size_t sample = made; sample < request.members.size(); ++sample) tell_end(*request.members[sample], why);
}

void RequestQueue::tell_end(Member& member, const Status& why) {
  if (member.request->tag.inspect) ended_views_.add(state_of(member));
  Task& task = *member.task;
  const Request& request = *member.request;
  const auto now = Clock::now();
  if (!task.status().ok()) {
    Event event = event_of(member, Event::Kind::kFailed);
    event.status = task.status();
    events_.push_back(std::move(event));
  } else {
    for (std::string text = task.flush(); !text.empty(); text = task.flush()) {
      events_.push_back(event_of(member, Event::Kind::kText));
      events_.back().text = std::move(text);
    }
    Event event = event_of(member, Event::Kind::kFinished);
    event.status = why;
    const Generation& generation = task.generation();
    const bool read = request.told == task.prompt_tokens();
    GenerateResult& result = event.result;
    result.text = generation.text();
    result.choices = generation.choices();
    result.prompt_tokens = task.prompt_tokens();
    result.tokens = generation.tokens();
    result.prompt_seconds = seconds_between(request.submitted, read ? request.read : now);
    result.seconds = read ? seconds_between(request.read, now) : 0;
    result.finish_reason = *generation.finish_reason();
    result.seed = request.seed + static_cast<std::uint64_t>(member.sample);
    result.kv = report_of(member);
    events_.push_back(std::move(event));
  }
  member.ended = true;
  member.text.sequence.reset();
}

void RequestQueue::remove_ended() {
  untold_ += static_cast<std::int64_t>(std::erase_if(requests_, [](const std::unique_ptr<Request>& request) {
    return std::ranges::all_of(request->members, [](const auto& member) { return member->ended; });
  }));
}

void RequestQueue::each_sample(const std::function<void(const SampleState&)>& visit) const {
  for (const auto& request : requests_)
    for (const auto& member : request->members)
      if (!member->ended) visit(state_of(*member));
}

SampleState RequestQueue::state_of(const Member& member) const {
  const Request& request = *member.request;
  return {request.id,
          &request.tag,
          member.sample,
          &*member.task,
          member.text.sequence.get(),
          &*request.policy,
          member.text.sequence == nullptr && member.released.has_value()};
}

Event RequestQueue::event_of(const Member& member, Event::Kind kind) const {
  Event event;
  event.request = member.request->id;
  event.sample = member.sample;
  event.kind = kind;
  return event;
}

}  // namespace kvasir
