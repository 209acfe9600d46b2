// The thread that runs the engine: it takes requests from a bounded queue, runs one forward pass after the other for
// all of them, and passes the events to the I/O thread.
//
// Thread-safety: any thread may call; callbacks run through Options::post.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvasir/engine.h"
#include "server/threads/post.h"

namespace kvasir::server {

// Names a request of a StepThread; never used twice.
enum class Ticket : std::uint64_t {};

// The state of the engine as of the newest pass.
struct StepReport {
  std::int64_t running = 0;  // requests that the engine has taken from the queue
  std::int64_t queued = 0;   // requests that the engine has not taken yet
  EngineReport engine;
  std::uint64_t passes = 0;
  double pass_seconds = 0;  // total of all passes
};

class StepThread {
 public:
  struct Options {
    Post post;  // posts to the thread that callbacks run on
    // Most waiting requests: not taken yet, without KV memory, or in their first pass.
    std::size_t queue = 1024;
    // Optional: runs on the step thread after every pass, and after questions.
    std::function<void(Engine&)> after_pass;
  };
  // Callbacks of a request, in order. `accepted` comes first, once; after an error nothing else follows.
  struct Listener {
    std::function<void(const Status&)> accepted;
    std::function<void(const Event&)> happened;
  };

  StepThread(std::unique_ptr<Engine> engine, Options options);
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;
  // As stop().
  ~StepThread();

  // Ends the thread after the pass under way; no callback follows for requests that have not ended, and waiting
  // questions do not run.
  void stop();

  const ModelSummary& model() const { return summary_; }
  // See Engine; for any thread.
  const ModelText& text() const { return engine_->text(); }
  // See Engine; for any thread. REQUIRES: the engine has made its cache.
  Result<RequestPlan> plan(const PlanRequest& request) const { return engine_->plan(request); }
  Result<Engine::LoadedSession> open_session(const std::string& path) const { return engine_->open_session(path); }

  // Queues a request. Errors: kResourceExhausted while the queue is full. A tenant (RequestOptions::tenant other than
  // 0) may have as many waiting requests as there are free places: a single tenant gets half of the queue.
  Result<Ticket> submit(RequestOptions options, Listener listener);
  // Ends a request between two passes; its listener is not called again.
  void cancel(Ticket ticket);

  // Runs a function on the step thread between two passes, not necessarily the next two. It passes its results on by
  // Options::post. If it throws an exception, `failed` (may be empty) is posted. Errors: kResourceExhausted while the
  // queue is full.
  Status ask(std::function<void(Engine&)> question, std::function<void()> failed = {});

  // Destroys a session between two passes; the caller must keep no reference. Never refused.
  void retire(std::shared_ptr<Session> session);

  // Runs a function on the thread that callbacks run on.
  void post(std::function<void()> function) const { options_.post(std::move(function)); }

  StepReport report() const;
  // The time since the pass under way began; 0 between passes.
  std::chrono::steady_clock::duration busy() const;

 private:
  struct Asked {
    Ticket ticket{};
    RequestOptions options;
    std::shared_ptr<Listener> listener;
  };
  struct Question {
    std::function<void(Engine&)> run;
    std::shared_ptr<std::function<void()>> failed;  // null: failure is not reported
  };
  // Counts posted functions that have not run yet. If the I/O thread falls behind, the step thread waits for it.
  class Backlog;
  struct Known {
    RequestId id{};
    std::int64_t samples = 1;  // that have not ended
    std::shared_ptr<Listener> listener;
  };

  void run();
  void take(Asked asked);
  Result<RequestId> submit_to_engine(const Asked& asked);
  void answer_questions();
  void answer(Question question);
  void drop(Ticket ticket);
  void pass();
  template <class Function>
  void tell(const Function& function);
  void publish();

  const Options options_;
  const std::unique_ptr<Engine> engine_;
  const ModelSummary summary_;
  const std::shared_ptr<Backlog> backlog_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Asked> asked_;
  std::vector<Ticket> cancelled_;
  std::size_t taken_ = 0;  // of the requests that the engine has, those taken since report_
  std::deque<Question> questions_;
  std::map<Ticket, int> waiters_;  // tenant of each request without an event so far
  std::vector<std::shared_ptr<Session>> retired_;
  bool stopping_ = false;
  std::uint64_t next_ = 1;
  StepReport report_;
  std::atomic<std::chrono::steady_clock::rep> pass_began_{0};

  // Used only by the step thread.
  std::map<Ticket, Known> known_;
  std::map<RequestId, Ticket> tickets_;
  std::uint64_t passes_ = 0;
  double pass_seconds_ = 0;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace kvasir::server
