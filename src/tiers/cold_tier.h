// A file written in blocks and read in small parts while other threads compute. The tier's own thread reads the parts,
// checks them and passes them on.
//
//   auto block = tier.write(bytes, part_bytes);            // queued; waits only if much is queued
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

// Parts written together. The last owner frees their room. The tier outlives it.
class ColdBlock {
 public:
  ColdBlock(ColdTier* tier, std::uint64_t bytes) : tier_(tier), bytes_(bytes) {}
  ColdBlock(const ColdBlock&) = delete;
  ColdBlock& operator=(const ColdBlock&) = delete;
  ~ColdBlock();

  std::uint64_t bytes() const { return bytes_; }
  enum class State : int { kQueued, kWritten, kFailed };
  State state() const { return state_; }
  // Why the block could not be written. REQUIRES: state() is kFailed.
  const Status& status() const { return status_; }
  // Returns the memory that a block of `parts` parts takes.
  static std::uint64_t memory_bytes(std::size_t parts) {
    return sizeof(ColdBlock) + SpilledParts::bytes_for(parts) + 4 * sizeof(void*);
  }

 private:
  friend class ColdTier;
  ColdTier* tier_;
  std::uint64_t bytes_;
  // Used only by the tier's thread.
  SpillFile* file_ = nullptr;
  std::shared_ptr<SpilledParts> parts_;
  Status status_;  // why the block was not written; set before state_
  std::atomic<State> state_ = State::kQueued;
};

// A read of parts under way.
class ColdFetch {
 public:
  // Waits until all parts are placed or the fetch has failed. Returns the seconds waited.
  double wait();
  // Status of the first part that could not be read. REQUIRES: wait() has returned.
  const Status& status() const { return status_; }
  // Returns whether status() is that of a block that could not be written.
  bool unwritten() const { return unwritten_; }
  std::uint64_t bytes() const { return bytes_; }  // of parts placed
  double seconds() const { return seconds_; }     // of work on the tier's thread

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
  std::size_t next_ = 0;    // the first item whose parts are not all asked for
  std::size_t placed_ = 0;  // all items before it are done
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
  static constexpr std::size_t kBuffers = 64;  // per size of part; each holds one part
  // Queued bytes beyond which write() waits.
  static constexpr std::uint64_t kMostQueued = std::uint64_t{4} << 20;

  // `make` makes a file when the first part of a size is written. `capacity`: most bytes held.
  using Make = SpillFiles::Make;
  ColdTier(Make make, std::uint64_t capacity);
  // REQUIRES: no block and no fetch exists.
  ~ColdTier();

  // Begins to write bytes in parts of `part_bytes` (the last may be shorter). If writing fails, the block's status()
  // says why, and fetches of the block fail. Adds the seconds waited for room to `waited`.
  std::shared_ptr<ColdBlock> write(std::vector<std::byte> bytes, std::size_t part_bytes, double* waited);

  struct Item {
    std::shared_ptr<ColdBlock> block;
    std::vector<std::uint32_t> parts;
  };
  // Begins to read parts. Calls place(item, part, bytes) for each, in any order, on the tier's thread.
  std::shared_ptr<ColdFetch> fetch(std::vector<Item> items,
                                   std::function<void(std::size_t, std::uint32_t, std::span<const std::byte>)> place);

  std::uint64_t used() const { return used_; }
  std::uint64_t capacity() const { return capacity_; }
  void resize(std::uint64_t capacity) { capacity_ = capacity; }
  // Waits until all queued bytes are written. For tests.
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
  std::condition_variable room_changed_;  // for callers that wait for room in the queue
  std::deque<Write> new_writes_;
  std::deque<std::shared_ptr<ColdFetch>> new_fetches_;
  std::vector<std::shared_ptr<SpilledParts>> discarded_;
  std::uint64_t queued_ = 0;  // bytes of writes not yet begun
  bool idle_ = true;
  bool stopping_ = false;
  std::thread thread_;

  // Used only by the tier's thread.
  SpillFiles files_;
  std::deque<Write> writes_;
  std::vector<std::shared_ptr<ColdBlock>> written_;  // under way
  std::deque<std::shared_ptr<ColdFetch>> fetches_;
};

}  // namespace kvasir
