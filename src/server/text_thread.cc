#include "server/text_thread.h"

#include <utility>

#include "base/status.h"

namespace kvasir::server {

TextThread::TextThread(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { serve(); });
}

TextThread::~TextThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Status TextThread::run(std::size_t bytes, std::function<void()> work, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    if (!jobs_.empty() && (jobs_.size() >= options_.jobs || bytes_ + bytes > options_.bytes))
      return exhausted("{} requests with {} bytes of text are waiting to be read; try again later", jobs_.size(),
                       bytes_);
    bytes_ += bytes;
    jobs_.push_back({bytes, std::move(work), std::move(done)});
  }
  wake_.notify_all();
  return {};
}

void TextThread::serve() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      bytes_ -= job.bytes;
    }
    job.work();
    job.work = {};
    options_.post(std::move(job.done));
  }
}

}  // namespace kvasir::server
