// The thread that works on text: it parses bodies, renders chat templates, tokenizes, and reads and lists files, so
// that neither the I/O thread nor the step thread waits for an 8 MiB prompt. One job runs at a time, in order of
// arrival, so that requests reach the engine in the order in which their bodies came.
//
// Thread-safety: run() may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kvasir/status.h"

namespace kvasir::server {

class TextThread {
 public:
  struct Options {
    // Runs a function on the thread that answers are for. Must be thread-safe.
    std::function<void(std::function<void()>)> post;
    std::size_t jobs = 1024;          // that may wait
    std::size_t bytes = 64ull << 20;  // of text that may wait, in all jobs
  };

  explicit TextThread(Options options);
  TextThread(const TextThread&) = delete;
  TextThread& operator=(const TextThread&) = delete;
  // Stops after the job under way; those that wait are dropped.
  ~TextThread();

  // Runs `work` on the text thread, then `done` through Options::post. `bytes`: of the text that waits with the job. A
  // job is taken whatever its size while no other waits. Errors: kResourceExhausted while the queue is full.
  Status run(std::size_t bytes, std::function<void()> work, std::function<void()> done);

 private:
  struct Job {
    std::size_t bytes = 0;
    std::function<void()> work;
    std::function<void()> done;
  };

  void serve();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::size_t bytes_ = 0;  // of jobs_
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvasir::server
