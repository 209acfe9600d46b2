// A file for bytes that come back in small parts while others compute: written in blocks, read part by part, by a
// thread of its own that checks what it reads and hands it on.
//
//   auto block = tier.write(bytes, part_bytes);            // queued; waits only if much is
//   auto fetch = tier.fetch({{block, {3, 4}}, ...}, place);  // begins at once
//   ...
//   fetch->wait();                                         // all parts were placed, or fetch->status() is an error
//
// Thread-safety: one caller at a time; place is called on the tier's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tiers/spill_files.h"

namespace kvasir {

class ColdTier;

// Parts that were written together. Their room is given back with the last owner. The tier outlives it.
class ColdBlock {
 public:
  ColdBlock(ColdTier* tier, std::uint64_t bytes) : tier_(tier), bytes_(bytes) {}
  ColdBlock(const ColdBlock&) = delete;
  ColdBlock& operator=(const ColdBlock&) = delete;
  ~ColdBlock();

  std::uint64_t bytes() const { return bytes_; }
  enum class State : int { kQueued, kWritten, kFailed };
  State state() const { return state_; }
  // Why it could not be written. REQUIRES: state() was kFailed.
  const Status& status() const { return status_; }
  // Memory that a block of so many parts takes.
  static std::uint64_t memory_bytes(std::size_t parts) {
    return sizeof(ColdBlock) + SpilledParts::bytes_for(parts) + 4 * sizeof(void*);
  }

 private:
  friend class ColdTier;
  ColdTier* tier_;
  std::uint64_t bytes_;
  // Of the tier's thread.
  SpillFile* file_ = nullptr;
  std::shared_ptr<SpilledParts> parts_;
  Status status_;  // why it was not written; set before state_
  std::atomic<State> state_ = State::kQueued;
};

// Parts on their way back.
class ColdFetch {
 public:
  // Waits until all parts were placed, or the fetch failed. Returns the seconds waited.
  double wait();
  // REQUIRES: wait() has returned. Of the first part that could not be read.
  const Status& status() const { return status_; }
  // Whether status() is that of a block that could not be written.
  bool unwritten() const { return unwritten_; }
  std::uint64_t bytes() const { return bytes_; }  // of parts that were placed
  double seconds() const { return seconds_; }     // that the tier's thread worked on it

 private:
  friend class ColdTier;
  struct Wanted {
    std::shared_ptr<ColdBlock> block;
    std::vector<std::uint32_t> parts;
    std::size_t asked = 0;
    std::shared_ptr<SpillReading> reading;
  };
  std::function<void(std::size_t, std::uint32_t, std::span<const std::byte>)> place_;
  std::vector<Wanted> wanted_;
  std::size_t next_ = 0;    // the first of which not all parts were asked for
  std::size_t placed_ = 0;  // all before it are done with
  std::size_t left_ = 0;    // parts not placed
  Status status_;
  bool unwritten_ = false;
  std::uint64_t bytes_ = 0;
  double seconds_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

class ColdTier {
 public:
  static constexpr std::size_t kBuffers = 64;  // of a part each, for each size of part
  // Bytes that wait to be written, beyond which write() waits.
  static constexpr std::uint64_t kMostQueued = std::uint64_t{4} << 20;

  // `make` makes a file when the first part of a size is written. Holds `capacity` bytes at the most.
  using Make = SpillFiles::Make;
  ColdTier(Make make, std::uint64_t capacity);
  // REQUIRES: no block and no fetch is left.
  ~ColdTier();

  // Begins to write bytes, in parts of `part_bytes` but for a last one that is shorter. A block that fails says so, and
  // fails who fetches it. `waited` is counted up by the seconds that it took to get room.
  std::shared_ptr<ColdBlock> write(std::vector<std::byte> bytes, std::size_t part_bytes, double* waited);

  struct Item {
    std::shared_ptr<ColdBlock> block;
    std::vector<std::uint32_t> parts;
  };
  // Begins to read parts. place(item, part, bytes) is called for each, in any order, on the tier's thread.
  std::shared_ptr<ColdFetch> fetch(std::vector<Item> items,
                                   std::function<void(std::size_t, std::uint32_t, std::span<const std::byte>)> place);

  std::uint64_t used() const { return used_; }
  std::uint64_t capacity() const { return capacity_; }
  void resize(std::uint64_t capacity) { capacity_ = capacity; }
  // Waits until all that was queued is written. For tests.
  void settle();

 private:
  friend class ColdBlock;
  struct Write {
    std::shared_ptr<ColdBlock> block;
    std::vector<std::byte> bytes;
    std::size_t part_bytes = 0;
    std::size_t next = 0;  // part
  };
  Status start();
  void work();
  bool advance_writes();
  bool advance_fetch(ColdFetch& fetch);
  void collect(ColdFetch& fetch);
  void finish(ColdFetch& fetch);
  Status open(Write& write);
  static void fail(ColdBlock& block, const Status& why);

  std::atomic<std::uint64_t> capacity_;
  std::atomic<std::uint64_t> used_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_changed_;  // for the tier's thread
  std::condition_variable room_changed_;  // for who waits for room in the queue
  std::deque<Write> new_writes_;
  std::deque<std::shared_ptr<ColdFetch>> new_fetches_;
  std::vector<std::shared_ptr<SpilledParts>> discarded_;
  std::uint64_t queued_ = 0;  // bytes of writes that are not under way
  bool idle_ = true;
  bool stopping_ = false;
  std::thread thread_;

  // Of the tier's thread.
  SpillFiles files_;
  std::deque<Write> writes_;
  std::vector<std::shared_ptr<ColdBlock>> written_;  // under way
  std::deque<std::shared_ptr<ColdFetch>> fetches_;
};

}  // namespace kvasir
