#include "server/threads/step_thread.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "base/status.h"

namespace kvasir::server {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kIdle{1};
constexpr std::chrono::milliseconds kSettling{20};
// Time for questions between two passes; the question being answered may exceed it.
constexpr std::chrono::milliseconds kAnswering{2};

}  // namespace

class StepThread::Backlog {
 public:
  // Waits until fewer than kMost are left, or for the end.
  void add() {
    std::unique_lock lock(mutex_);
    less_.wait(lock, [&] { return ended_ || count_ < kMost; });
    ++count_;
  }
  void remove() {
    {
      const std::lock_guard lock(mutex_);
      --count_;
    }
    less_.notify_one();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    less_.notify_one();
  }

 private:
  static constexpr int kMost = 1024;
  std::mutex mutex_;
  std::condition_variable less_;
  int count_ = 0;
  bool ended_ = false;
};

StepThread::StepThread(std::unique_ptr<Engine> engine, Options options)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      summary_(engine_->model()),
      backlog_(std::make_shared<Backlog>()) {
  report_.engine = engine_->report();  // the report until the first pass
  thread_ = std::thread([this] { run(); });
}

StepThread::~StepThread() {
  stop();
}

void StepThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  backlog_->end();
  if (thread_.joinable()) thread_.join();
}

Result<Ticket> StepThread::submit(RequestOptions options, Listener listener) {
  Ticket ticket{};
  {
    const std::lock_guard lock(mutex_);
    const std::size_t waiting = asked_.size() + taken_ + static_cast<std::size_t>(report_.engine.waiting);
    if (waiting >= options_.queue)  // does not reveal how many more
      return exhausted("{} requests are waiting already; try again later", options_.queue);
    const int tenant = options.tenant;
    const auto own = std::ranges::count(waiters_, tenant, [](const auto& waiter) { return waiter.second; });
    if (tenant != 0 && own > 0 && static_cast<std::size_t>(own) >= options_.queue - waiting)
      return exhausted("too many requests of this tenant are waiting already; try again later");
    ticket = Ticket{next_++};
    asked_.push_back({ticket, std::move(options), std::make_shared<Listener>(std::move(listener))});
    waiters_[ticket] = tenant;
    report_.queued = static_cast<std::int64_t>(asked_.size());
  }
  wake_.notify_all();
  return ticket;
}

void StepThread::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(asked_, [&](const Asked& asked) { return asked.ticket == ticket; }) > 0)
      return static_cast<void>(waiters_.erase(ticket));
    cancelled_.push_back(ticket);
  }
  wake_.notify_all();
}

Status StepThread::ask(std::function<void(Engine&)> question, std::function<void()> failed) {
  const auto held = failed ? std::make_shared<std::function<void()>>(std::move(failed)) : nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (questions_.size() >= options_.queue)
      return exhausted("{} questions are waiting already; try again later", options_.queue);
    questions_.push_back({std::move(question), held});
  }
  wake_.notify_all();
  return {};
}

void StepThread::retire(std::shared_ptr<Session> session) {
  if (session == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(session));
  }
  wake_.notify_all();
}

StepReport StepThread::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

Clock::duration StepThread::busy() const {
  const auto began = pass_began_.load();
  return began == 0 ? Clock::duration::zero() : Clock::now().time_since_epoch() - Clock::duration(began);
}

void StepThread::run() {
  bool idle = false;  // all requests wait for sessions to be retired
  while (true) {
    std::deque<Asked> asked;
    std::vector<Ticket> cancelled;
    std::vector<std::shared_ptr<Session>> retired;
    {
      std::unique_lock lock(mutex_);
      const auto is_asked = [&] {
        return stopping_ || !asked_.empty() || !cancelled_.empty() || !questions_.empty() || !retired_.empty();
      };
      if (idle) wake_.wait_for(lock, kIdle, is_asked);
      if (engine_->unfinished() == 0 && engine_->settling()) {
        wake_.wait_for(lock, kSettling, is_asked);
      } else {
        wake_.wait(lock, [&] { return is_asked() || engine_->unfinished() > 0; });
      }
      if (stopping_) return;
      asked.swap(asked_);
      taken_ = asked.size();
      cancelled.swap(cancelled_);
      retired.swap(retired_);
    }
    pass_began_ = Clock::now().time_since_epoch().count();
    for (Asked& each : asked) {
      // Omits a request that was cancelled after it was taken from the queue.
      if (std::ranges::find(cancelled, each.ticket) == cancelled.end()) take(std::move(each));
    }
    for (const Ticket ticket : cancelled) drop(ticket);
    answer_questions();
    retired.clear();
    const std::int64_t passes = report_.engine.passes;
    if (engine_->unfinished() > 0) {
      pass();
    } else {
      if (engine_->settling()) static_cast<void>(engine_->poll());
      publish();
    }
    try {
      if (options_.after_pass) options_.after_pass(*engine_);
    } catch (const std::bad_alloc&) {  // tried again after the next pass
    }
    idle = engine_->unfinished() > 0 && report_.engine.passes == passes;
    pass_began_ = 0;
  }
}

// Posts a function. Waits while too many posted functions have not run.
template <class Function>
void StepThread::tell(const Function& function) {
  std::shared_ptr<void> counted;
  until_there_is_memory([&] {
    backlog_->add();
    counted = std::shared_ptr<void>(nullptr, [of = backlog_](void*) { of->remove(); });  // also called if this throws
  });
  until_there_is_memory([&] { options_.post([function, counted] { function(); }); });
}

void StepThread::take(Asked asked) {
  Status status;
  try {
    status = submit_to_engine(asked).status();
  } catch (const std::bad_alloc&) {
    until_there_is_memory([&] {
      status = make_status(StatusCode::kIo, "the system has no memory for this request now; try again later");
    });
  }
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    waiters_.erase(asked.ticket);
  }
  tell([listener = std::move(asked.listener), status = std::move(status)] { listener->accepted(status); });
}

// Leaves no trace if it throws.
Result<RequestId> StepThread::submit_to_engine(const Asked& asked) {
  const Result<RequestId> id = engine_->submit(asked.options);
  if (!id.ok()) return id;
  try {
    known_[asked.ticket] = {*id, asked.options.samples, asked.listener};
    tickets_[*id] = asked.ticket;
  } catch (const std::bad_alloc&) {
    known_.erase(asked.ticket);
    [[maybe_unused]] const Status gone = engine_->cancel(*id);
    throw;
  }
  return id;
}

// Answers questions in order. Those for which there is no time wait for the end of the next pass.
void StepThread::answer_questions() {
  const auto began = Clock::now();
  do {
    Question question;
    {
      const std::lock_guard lock(mutex_);
      if (questions_.empty()) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    answer(std::move(question));
  } while (engine_->unfinished() == 0 || Clock::now() - began < kAnswering);
}

void StepThread::answer(Question question) {
  try {
    question.run(*engine_);
  } catch (const std::exception&) {  // such as no memory: fails only this question
    question.run = nullptr;
    if (question.failed != nullptr) post_surely(options_.post, question.failed);
  }
}

void StepThread::drop(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    waiters_.erase(ticket);
  }
  const auto known = known_.find(ticket);
  if (known == known_.end()) return;
  [[maybe_unused]] const Status unknown = engine_->cancel(known->second.id);  // if the request has just ended
  tickets_.erase(known->second.id);
  known_.erase(known);
}

void StepThread::pass() {
  const auto began = Clock::now();
  Result<std::vector<Event>> events = engine_->poll();
  ++passes_;
  pass_seconds_ += std::chrono::duration<double>(Clock::now() - began).count();
  if (!events.ok()) {
    // The system refused memory: the events come with the next call, after a pause.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return publish();
  }
  using Told = std::vector<std::pair<std::shared_ptr<Listener>, Event>>;
  std::shared_ptr<Told> told;
  until_there_is_memory([&] {  // no event may be lost
    told = std::make_shared<Told>();
    told->reserve(events->size());
  });
  {
    const std::lock_guard lock(mutex_);
    for (const Event& event : *events)
      if (const auto ticket = tickets_.find(event.request); ticket != tickets_.end()) waiters_.erase(ticket->second);
  }
  for (Event& event : *events) {
    const auto ticket = tickets_.find(event.request);
    if (ticket == tickets_.end()) continue;  // cancelled
    const auto known = known_.find(ticket->second);
    const bool last = event.kind == Event::Kind::kFinished || event.kind == Event::Kind::kFailed;
    told->emplace_back(known->second.listener, std::move(event));
    if (last && --known->second.samples == 0) {
      known_.erase(known);
      tickets_.erase(ticket);
    }
  }
  publish();  // first, so that whoever hears of an end finds its place in the queue free
  if (told->empty()) return;
  tell([told] {
    for (const auto& [listener, event] : *told) listener->happened(event);
  });
}

void StepThread::publish() {
  std::optional<EngineReport> engine;
  try {
    engine = engine_->report();
  } catch (const std::bad_alloc&) {  // the earlier report stays
  }
  const std::lock_guard lock(mutex_);
  taken_ = 0;
  report_.running = static_cast<std::int64_t>(known_.size());
  report_.queued = static_cast<std::int64_t>(asked_.size());
  if (engine) report_.engine = std::move(*engine);
  report_.passes = passes_;
  report_.pass_seconds = pass_seconds_;
}

}  // namespace kvasir::server
