// A sequence that leaves memory for a spill file and comes back with the same bits, while passes go on.
//
//   auto swap = SwappedSequence::leave(&file, sequence);     // null: not now
//   ... swap->advance() between passes, until state() is kOut or kFailed: then destroy the sequence
//   ... swap->arrive(model, cache, policy), then swap->advance() until state() is kBack or kFailed
//
// Each advance() copies what the file's buffers take, without waiting. The sequence must not be changed or run while it
// leaves or comes.
// Thread-safety: one caller at a time, the one of the sequence and of the file.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/page_pool.h"
#include "sequence/sequence.h"
#include "tiers/spill_file.h"

namespace kvasir {

// The measured speed of leaving and coming, from sequences that fill the buffers several times (for smaller ones the
// time is mostly that of passes). Rates that keep a queue from swapping move back to the initial assumption, so that a
// file that was slow or full is tried again.
class SwapRates {
 public:
  void note_out(std::uint64_t bytes, double seconds) { note(&out_, bytes, seconds); }
  void note_in(std::uint64_t bytes, double seconds) { note(&in_, bytes, seconds); }
  void note_failure() {
    out_ = std::min(4 * out_, kSlowest);
    in_ = std::min(4 * in_, kSlowest);
  }
  // Notes that recomputing was chosen as the faster way.
  void note_unused() {
    out_ += (kUnknown - out_) / 16;
    in_ += (kUnknown - in_) / 16;
  }
  // Returns the seconds for `bytes` bytes to leave and come back.
  double seconds(std::uint64_t bytes) const { return static_cast<double>(bytes) * (out_ + in_); }
  double out() const { return 1 / out_; }  // bytes per second
  double in() const { return 1 / in_; }

 private:
  static constexpr std::uint64_t kLeast = 4 * SpillFile::kBufferBytes;
  static constexpr double kUnknown = 1 / 500e6;
  static constexpr double kSlowest = 1 / 1e6;
  static void note(double* seconds_per_byte, std::uint64_t bytes, double seconds) {
    if (bytes < kLeast) return;
    *seconds_per_byte += 0.25 * (seconds / static_cast<double>(bytes) - *seconds_per_byte);
  }

  double out_ = kUnknown;  // seconds per byte
  double in_ = kUnknown;
};

class SwappedSequence {
 public:
  enum class State { kLeaving, kOut, kComing, kBack, kFailed };

  // Begins to write the sequence's pages and its layers' states, and changes neither. The rest of it (write_sequence)
  // stays in memory, charged to the cache's budget. Returns null where the file or the budget has no room for it, where
  // a chunk is under way, and where tokens were demoted or offloaded, which no swap file holds. The file must outlive
  // the object; the sequence must live until state() is no longer kLeaving.
  static std::unique_ptr<SwappedSequence> leave(SpillFile* file, const Sequence& sequence);

  // Returns whether leave() would find room.
  static bool has_room(const SpillFile& file, const Sequence& sequence);

  // Begins to read the sequence into a new one, under `policy` in its initial state. Errors: kResourceExhausted:
  // nothing has changed. REQUIRES: kOut.
  Result<std::unique_ptr<Sequence>> arrive(const std::shared_ptr<LoadedModel>& model,
                                           const std::shared_ptr<KvCache>& cache,
                                           std::unique_ptr<RetentionPolicy> policy);

  // Stops coming back: the file still has everything, and the new sequence may be destroyed. REQUIRES: kComing.
  void turn_back();

  void advance();

  State state() const { return state_; }
  const Status& status() const { return status_; }  // why state() is kFailed
  std::uint64_t bytes() const { return bytes_; }    // of the content of pages and layers' states
  // Bytes of tables and pages that the sequence takes when it is back.
  std::uint64_t bytes_back() const { return bytes_back_; }
  // Seconds from leave() to kOut, and from arrive() to kBack.
  double seconds_leaving() const { return seconds_leaving_; }
  double seconds_coming() const { return seconds_coming_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Part {
    std::size_t first = 0;  // in pages_
    std::size_t end = 0;
    std::size_t first_state = 0;  // or of the states' bytes
    std::size_t end_state = 0;
  };

  SwappedSequence(SpillFile* file, const Sequence& sequence);
  void plan_parts(std::size_t states);
  void write_parts();
  void read_parts();
  void fail(const Status& why);

  SpillFile* file_;
  const PagePool* pool_;
  KvCodec codec_;
  std::vector<AppliedAdapter> adapters_;
  State state_ = State::kLeaving;
  Status status_;
  std::vector<std::byte> saved_;       // by write_sequence
  MemoryCharge charge_;                // of saved_
  std::vector<PageId> pages_;          // while it leaves or comes
  std::span<const std::byte> states_;  // of layers, while it leaves
  std::span<std::byte> states_to_;     // while it comes
  std::vector<Part> parts_;
  std::shared_ptr<SpilledParts> spilled_;
  std::shared_ptr<SpillReading> reading_;
  std::size_t next_ = 0;  // part to write or to ask for
  std::size_t left_ = 0;  // parts that have not come yet
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_back_ = 0;
  Clock::time_point began_ = Clock::now();
  double seconds_leaving_ = 0;
  double seconds_coming_ = 0;
};

}  // namespace kvasir
