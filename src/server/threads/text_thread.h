// The thread that works on text: it parses bodies, renders chat templates, tokenizes, and reads and lists files, so
// that neither the I/O thread nor the step thread waits for an 8 MiB prompt. Grammars, which may take longer to
// compile, have threads of their own. As many jobs run at a time as there are threads.
//
// Each caller has two queues, one of them for large texts. The queue with the fewest bytes processed goes next, so a
// caller waits only for the jobs under way and for its share of the others. Each queue is in order of arrival.
//
// Thread-safety: run() and stop() may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvasir/status.h"
#include "server/threads/post.h"

namespace kvasir::server {

class TextThread {
 public:
  struct Options {
    Post post;  // posts to the thread that `done` runs on
    // Most waiting jobs and bytes of each caller.
    std::size_t jobs = 1024;
    std::size_t bytes = 64ull << 20;  // of text, in all of the caller's jobs
    std::size_t threads = 1;
  };

  explicit TextThread(Options options);
  TextThread(const TextThread&) = delete;
  TextThread& operator=(const TextThread&) = delete;
  // As stop().
  ~TextThread();

  // Ends each thread after its job under way; waiting jobs never run.
  void stop();

  // Runs `work` on a thread, then `done` through Options::post, also where `work` threw an exception. `bytes`:
  // of the job's text. A job of any size is accepted while the caller has no other waiting. Errors: kResourceExhausted
  // while the caller's queues are full.
  Status run(std::size_t bytes, std::function<void()> work, std::function<void()> done, const std::string& caller = {});

 private:
  struct Job {
    std::size_t bytes = 0;
    std::function<void()> work;
    std::shared_ptr<std::function<void()>> done;
  };
  struct Queue {
    std::deque<Job> jobs;
    std::uint64_t turn = 0;  // bytes processed for it, or for others before it had a job
  };
  struct Waiting {
    std::size_t jobs = 0;
    std::size_t bytes = 0;
  };

  bool next(Job& job);
  void serve();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::pair<std::string, bool>, Queue> queues_;  // by caller and whether its texts are large
  std::map<std::string, Waiting> waiting_;                // by caller; no entry: nothing waits
  std::uint64_t clock_ = 0;                               // Queue::turn of the queue that went last
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use the other members
};

}  // namespace kvasir::server
