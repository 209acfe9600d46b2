#include "tiers/blob_queue.h"

#include <algorithm>
#include <csignal>
#include <new>
#include <utility>

namespace kvasir {
namespace {

constexpr double kWeight = 0.25;  // of a new measurement

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

BlobQueue::BlobQueue(std::unique_ptr<BlobStore> store) : store_(std::move(store)) {
  first_latency_ = latency_ = store_->answers_at_once() ? 0.0005 : 0.002;
  first_per_byte_ = per_byte_ = store_->answers_at_once() ? 1 / 500e6 : 1 / 100e6;
  reads_.thread = std::thread([this] { work(reads_, false); });
  writes_.thread = std::thread([this] { work(writes_, store_->answers_at_once()); });
}

BlobQueue::~BlobQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  reads_.changed.notify_all();
  reads_.thread.join();
  writes_.changed.notify_all();
  writes_.thread.join();
}

void BlobQueue::sizes(std::uint64_t tag, std::vector<BlobKey> keys) {
  Job job;
  job.answer.kind = BlobAnswer::Kind::kSizes;
  job.answer.tag = tag;
  job.keys = std::move(keys);
  begin(reads_, std::move(job));
}

void BlobQueue::read(std::uint64_t tag, const BlobKey& key, std::shared_ptr<BlobBuffer> buffer, Check check) {
  Job job;
  job.answer.kind = BlobAnswer::Kind::kRead;
  job.answer.tag = tag;
  job.answer.key = key;
  job.answer.buffer = std::move(buffer);
  job.check = std::move(check);
  begin(reads_, std::move(job));
}

void BlobQueue::write(std::uint64_t tag, const BlobKey& key, std::shared_ptr<BlobBuffer> buffer) {
  Job job;
  job.answer.kind = BlobAnswer::Kind::kWrite;
  job.answer.tag = tag;
  job.answer.key = key;
  job.answer.buffer = std::move(buffer);
  begin(writes_, std::move(job));
}

void BlobQueue::begin(Lane& lane, Job job) {
  {
    const std::lock_guard lock(mutex_);
    under_way_ += job.removes ? 0 : 1;
    lane.waiting.push_back(std::move(job));
  }
  lane.changed.notify_one();
}

std::vector<BlobAnswer> BlobQueue::answers(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  if (answers_.empty() && under_way_ > 0) answered_.wait_for(lock, wait, [this] { return !answers_.empty(); });
  under_way_ -= answers_.size();
  return std::exchange(answers_, {});
}

void BlobQueue::work(Lane& lane, bool to_the_end) {
  // Other threads handle signals; a broken connection is reported as an error.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    lane.changed.wait(lock, [&] { return stopping_ || !lane.waiting.empty(); });
    if (lane.waiting.empty() || (stopping_ && !to_the_end)) return;
    // Batches the reads that wait together.
    std::vector<Job> jobs;
    const auto is_read = [](const Job& job) { return !job.removes && job.answer.kind == BlobAnswer::Kind::kRead; };
    do {
      jobs.push_back(std::move(lane.waiting.front()));
      lane.waiting.pop_front();
    } while (is_read(jobs.back()) && !lane.waiting.empty() && is_read(lane.waiting.front()));
    lock.unlock();
    try {
      if (is_read(jobs.front())) {
        run_reads(jobs);
      } else {
        run(jobs.front());
      }
    } catch (const std::bad_alloc&) {
      for (Job& job : jobs) {
        if (job.told || job.removes) continue;
        job.answer.status = Status(StatusCode::kResourceExhausted, "the system has no memory for it");
        tell(job);
      }
    }
    lock.lock();
  }
}

void BlobQueue::tell(Job& job) {
  job.told = true;
  {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(job.answer));
  }
  answered_.notify_one();
}

void BlobQueue::run(Job& job) {
  BlobAnswer& answer = job.answer;
  if (job.removes) return store_->remove(answer.key);
  if (answer.kind == BlobAnswer::Kind::kWrite) {
    answer.status = store_->write(answer.key, answer.buffer->bytes());
  } else {
    Result<std::vector<std::uint64_t>> sizes = store_->sizes(job.keys);
    answer.status = sizes.status();
    if (sizes.ok()) answer.sizes = std::move(*sizes);
    const double seconds = seconds_since(job.asked);
    const std::lock_guard lock(mutex_);
    latency_ += kWeight * (seconds - latency_);
  }
  tell(job);
}

void BlobQueue::run_reads(std::vector<Job>& jobs) {
  std::vector<BlobRead> reads;
  for (const Job& job : jobs) reads.push_back({job.answer.key, job.answer.buffer->bytes(), {}});
  auto began = Clock::now();
  store_->read_all(reads, [&](std::size_t i) {
    BlobAnswer& answer = jobs[i].answer;
    answer.status = std::move(reads[i].status);
    note_read(answer.buffer->size(), seconds_since(std::exchange(began, Clock::now())));
    if (answer.status.ok()) answer.status = jobs[i].check(answer.buffer->bytes());
    const StatusCode code = answer.status.code();
    if (code == StatusCode::kDataLoss || code == StatusCode::kNotFound) {
      Job removal;
      removal.removes = true;
      removal.answer.key = answer.key;
      begin(writes_, std::move(removal));
    }
    tell(jobs[i]);
  });
}

void BlobQueue::note_read(std::uint64_t bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  const double rest = std::max(seconds - latency_, seconds / 10);
  per_byte_ += kWeight * (rest / static_cast<double>(std::max<std::uint64_t>(bytes, 1)) - per_byte_);
}

double BlobQueue::cost(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return latency_ + static_cast<double>(bytes) * per_byte_;
}

double BlobQueue::latency() const {
  const std::lock_guard lock(mutex_);
  return latency_;
}

double BlobQueue::rate() const {
  const std::lock_guard lock(mutex_);
  return 1 / per_byte_;
}

void BlobQueue::doubt_figures() {
  const std::lock_guard lock(mutex_);
  latency_ += 0.1 * (first_latency_ - latency_);
  per_byte_ += 0.1 * (first_per_byte_ - per_byte_);
}

}  // namespace kvasir
