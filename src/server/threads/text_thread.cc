#include "server/threads/text_thread.h"

#include <algorithm>
#include <exception>

#include "base/status.h"
#include "server/threads/spare_memory.h"

namespace kvasir::server {
namespace {

constexpr std::size_t kLargeText = 256 << 10;
constexpr std::uint64_t kJobBytes = 4096;  // cost of a job besides its text

}  // namespace

TextThread::TextThread(Options options) : options_(std::move(options)) {
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { serve(); });
}

TextThread::~TextThread() {
  stop();
}

void TextThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

Status TextThread::run(std::size_t bytes, std::function<void()> work, std::function<void()> done,
                       const std::string& caller) {
  {
    const std::lock_guard lock(mutex_);
    Waiting& waiting = waiting_[caller];
    if (waiting.jobs > 0 && (waiting.jobs >= options_.jobs || waiting.bytes + bytes > options_.bytes))
      return exhausted("{} requests with {} bytes of text are waiting to be read; try again later", waiting.jobs,
                       waiting.bytes);
    Queue& queue = queues_[{caller, bytes > kLargeText}];
    if (queue.jobs.empty()) queue.turn = std::max(queue.turn, clock_);
    queue.jobs.push_back({bytes, std::move(work), std::make_shared<std::function<void()>>(std::move(done))});
    ++waiting.jobs;
    waiting.bytes += bytes;
  }
  wake_.notify_all();
  return {};
}

// Takes the next job, and removes empty queues that have had no more than their share. Returns false at the end.
bool TextThread::next(Job& job) {
  std::unique_lock lock(mutex_);
  auto first = queues_.end();
  wake_.wait(lock, [&] {
    for (auto queue = queues_.begin(); queue != queues_.end(); ++queue)
      if (!queue->second.jobs.empty() && (first == queues_.end() || queue->second.turn < first->second.turn))
        first = queue;
    return stopping_ || first != queues_.end();
  });
  if (stopping_) return false;
  Queue& queue = first->second;
  job = std::move(queue.jobs.front());
  queue.jobs.pop_front();
  clock_ = queue.turn;
  queue.turn += job.bytes + kJobBytes;
  const auto waiting = waiting_.find(first->first.first);
  waiting->second.bytes -= job.bytes;
  if (--waiting->second.jobs == 0) waiting_.erase(waiting);
  std::erase_if(queues_, [&](const auto& each) { return each.second.jobs.empty() && each.second.turn <= clock_; });
  return true;
}

void TextThread::serve() {
  for (Job job; next(job);) {
    keep_spare_memory();
    try {
      job.work();
    } catch (const std::exception&) {  // such as no memory: other jobs go on, and `done` sees that it failed
    }
    job.work = {};
    post_surely(options_.post, job.done);
  }
}

}  // namespace kvasir::server
