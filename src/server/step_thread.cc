#include "server/step_thread.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"

namespace kvasir::server {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kIdle{1};

}  // namespace

class StepThread::Backlog {
 public:
  // Waits until little is left, or for the end.
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
  thread_ = std::thread([this] { run(); });
}

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  backlog_->end();
  thread_.join();
}

Result<Ticket> StepThread::submit(RequestOptions options, Listener listener) {
  Ticket ticket{};
  {
    const std::lock_guard lock(mutex_);
    if (asked_.size() >= options_.queue)
      return exhausted("{} requests are waiting already; try again later", options_.queue);
    ticket = Ticket{next_++};
    asked_.push_back({ticket, std::move(options), std::move(listener)});
    report_.queued = static_cast<std::int64_t>(asked_.size());
  }
  wake_.notify_all();
  return ticket;
}

void StepThread::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(asked_, [&](const Asked& asked) { return asked.ticket == ticket; }) > 0) return;
    cancelled_.push_back(ticket);
  }
  wake_.notify_all();
}

Status StepThread::ask(std::function<void(Engine&)> question) {
  {
    const std::lock_guard lock(mutex_);
    if (questions_.size() >= options_.queue)
      return exhausted("{} questions are waiting already; try again later", options_.queue);
    questions_.push_back(std::move(question));
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
  bool idle = false;  // all requests wait for sessions to be given up
  while (true) {
    std::deque<Asked> asked;
    std::vector<Ticket> cancelled;
    std::vector<std::function<void(Engine&)>> questions;
    std::vector<std::shared_ptr<Session>> retired;
    {
      std::unique_lock lock(mutex_);
      const auto is_asked = [&] {
        return stopping_ || !asked_.empty() || !cancelled_.empty() || !questions_.empty() || !retired_.empty();
      };
      if (idle) wake_.wait_for(lock, kIdle, is_asked);
      wake_.wait(lock, [&] { return is_asked() || engine_->unfinished() > 0; });
      if (stopping_) return;
      asked.swap(asked_);
      cancelled.swap(cancelled_);
      questions.swap(questions_);
      retired.swap(retired_);
    }
    pass_began_ = Clock::now().time_since_epoch().count();
    for (Asked& each : asked) {
      // One that was cancelled since it was taken from the queue.
      if (std::ranges::find(cancelled, each.ticket) == cancelled.end()) take(std::move(each));
    }
    for (const Ticket ticket : cancelled) drop(ticket);
    for (const auto& question : questions) question(*engine_);
    questions.clear();
    retired.clear();
    if (engine_->unfinished() > 0) pass();
    if (options_.after_pass) options_.after_pass(*engine_);
    const std::int64_t passes = report_.engine.passes;
    publish();
    idle = engine_->unfinished() > 0 && report_.engine.passes == passes;
    pass_began_ = 0;
  }
}

void StepThread::take(Asked asked) {
  const auto listener = std::make_shared<Listener>(std::move(asked.listener));
  const Result<RequestId> id = engine_->submit(asked.options);
  if (id.ok()) {
    known_[asked.ticket] = {*id, asked.options.samples, listener};
    tickets_[*id] = asked.ticket;
  }
  tell([listener, status = id.status()] { listener->accepted(status); });
}

void StepThread::drop(Ticket ticket) {
  const auto known = known_.find(ticket);
  if (known == known_.end()) return;
  [[maybe_unused]] const Status unknown = engine_->cancel(known->second.id);  // where it has just ended
  tickets_.erase(known->second.id);
  known_.erase(known);
}

void StepThread::pass() {
  const auto began = Clock::now();
  Result<std::vector<Event>> events = engine_->poll();
  ++passes_;
  pass_seconds_ += std::chrono::duration<double>(Clock::now() - began).count();
  if (!events.ok()) {
    // The system refused memory: the events come with the next call. Perhaps it has some then.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
  std::vector<std::pair<std::shared_ptr<Listener>, Event>> told;
  for (Event& event : *events) {
    const auto ticket = tickets_.find(event.request);
    if (ticket == tickets_.end()) continue;  // cancelled
    const auto known = known_.find(ticket->second);
    const bool last = event.kind == Event::Kind::kFinished || event.kind == Event::Kind::kFailed;
    told.emplace_back(known->second.listener, std::move(event));
    if (last && --known->second.samples == 0) {
      known_.erase(known);
      tickets_.erase(ticket);
    }
  }
  if (told.empty()) return;
  tell([told = std::move(told)] {
    for (const auto& [listener, event] : told) listener->happened(event);
  });
}

void StepThread::tell(std::function<void()> function) {
  backlog_->add();
  options_.post([function = std::move(function),
                 backlog = std::shared_ptr<void>(nullptr, [of = backlog_](void*) { of->remove(); })] { function(); });
}

void StepThread::publish() {
  const std::lock_guard lock(mutex_);
  report_.running = static_cast<std::int64_t>(known_.size());
  report_.queued = static_cast<std::int64_t>(asked_.size());
  report_.engine = engine_->report();
  report_.passes = passes_;
  report_.pass_seconds = pass_seconds_;
}

}  // namespace kvasir::server
