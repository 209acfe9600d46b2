// An asynchronous blob store: one thread reads, another writes.
//
//   queue.read(tag, key, std::move(buffer), check);      ... for (BlobAnswer& answer : queue.answers(wait)) ...
//
// Measures how long the store takes, as cost() reports.
// Thread-safety: one caller at a time; the store's threads run beside it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "tiers/blob_store.h"

namespace kvasir {

// Bytes with shared ownership.
class BlobBuffer {
 public:
  explicit BlobBuffer(std::size_t size) { memory_.ensure(size); }
  std::size_t size() const { return memory_.size(); }
  std::span<std::byte> bytes() { return {memory_.data(), memory_.size()}; }

 private:
  AlignedBuffer<std::byte> memory_;
};

struct BlobAnswer {
  enum class Kind { kSizes, kRead, kWrite };
  Kind kind = Kind::kRead;
  std::uint64_t tag = 0;
  BlobKey key;  // unless kSizes
  Status status;
  std::vector<std::uint64_t> sizes;    // of kSizes
  std::shared_ptr<BlobBuffer> buffer;  // unless kSizes
};

class BlobQueue {
 public:
  using Check = std::function<Status(std::span<const std::byte>)>;

  explicit BlobQueue(std::unique_ptr<BlobStore> store);
  BlobQueue(const BlobQueue&) = delete;
  BlobQueue& operator=(const BlobQueue&) = delete;
  // Drops jobs that have not begun, except writes to a store that answers at once: these are finished.
  ~BlobQueue();

  void sizes(std::uint64_t tag, std::vector<BlobKey> keys);
  // Reads buffer->size() bytes and runs `check` on the reading thread. Removes a blob for which the store or `check`
  // returns kDataLoss or kNotFound.
  void read(std::uint64_t tag, const BlobKey& key, std::shared_ptr<BlobBuffer> buffer, Check check);
  void write(std::uint64_t tag, const BlobKey& key, std::shared_ptr<BlobBuffer> buffer);

  // Returns the answers since the last call. If there is none and jobs are under way, waits up to `wait` for one.
  std::vector<BlobAnswer> answers(std::chrono::milliseconds wait);

  BlobStore& store() { return *store_; }
  const BlobStore& store() const { return *store_; }

  // Returns the expected seconds for reading `bytes` bytes: latency() + bytes / rate().
  double cost(std::uint64_t bytes) const;
  double latency() const;
  double rate() const;  // bytes per second
  // Moves the measured figures a little towards the initial assumptions. Called when they forbid a read, so that a
  // place that was slow is tried again eventually.
  void doubt_figures();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    BlobAnswer answer;
    std::vector<BlobKey> keys;  // of kSizes
    Check check;
    bool removes = false;  // removes the blob of answer.key; gives no answer
    bool told = false;
    Clock::time_point asked = Clock::now();
  };
  struct Lane {
    std::deque<Job> waiting;
    std::condition_variable changed;
    std::thread thread;
  };

  void begin(Lane& lane, Job job);
  void work(Lane& lane, bool to_the_end);
  void run(Job& job);
  void run_reads(std::vector<Job>& jobs);
  void tell(Job& job);
  void note_read(std::uint64_t bytes, double seconds);

  std::unique_ptr<BlobStore> store_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<BlobAnswer> answers_;
  std::size_t under_way_ = 0;  // begun, and not yet returned by answers()
  bool stopping_ = false;
  double first_latency_ = 0;  // seconds, assumed before anything was measured
  double first_per_byte_ = 0;
  double latency_ = 0;
  double per_byte_ = 0;
  Lane reads_;
  Lane writes_;
};

}  // namespace kvasir
