// A file of bounded size for bytes that leave memory, in parts with checksums.
//
// Bytes pass through a fixed number of buffers. A writer takes a buffer, fills it and hands it over; a reader gets a
// buffer once its bytes have arrived and their checksum is right. Only poll() with a wait blocks.
//
//   auto spilled = file.reserve(parts);                              // room for that many parts
//   if (Buffer buffer = file.buffer(); !buffer.empty()) file.write(spilled, part, buffer, bytes);
//   file.poll(wait);                                                 // ends transfers
//   if (spilled->written()) ... file.read(spilled, part, reading); file.poll(wait); reading->take() ...
//
// Thread-safety: one caller at a time; transfers run beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/hash.h"
#include "kvasir/status.h"
#include "tiers/async_file.h"

namespace kvasir {

class SpillFile;

// Parts in a spill file. The last owner frees their room. The file outlives it.
class SpilledParts {
 public:
  // Takes places of the file. REQUIRES: it has room.
  SpilledParts(SpillFile* file, std::size_t parts);
  SpilledParts(const SpilledParts&) = delete;
  SpilledParts& operator=(const SpilledParts&) = delete;
  ~SpilledParts();

  std::size_t size() const { return parts_.size(); }
  // Returns the memory that it takes.
  static std::uint64_t bytes_for(std::size_t parts);
  bool written() const { return status_.ok() && written_ == parts_.size(); }
  // Status of the first write that failed.
  const Status& status() const { return status_; }

 private:
  friend class SpillFile;
  struct Part {
    std::uint32_t place = 0;
    std::uint32_t bytes = 0;
    Hash128 hash;
  };
  SpillFile* file_;
  std::vector<Part> parts_;
  std::size_t written_ = 0;
  Status status_;
};

inline std::uint64_t SpilledParts::bytes_for(std::size_t parts) {
  return sizeof(SpilledParts) + parts * sizeof(Part);
}

// A read of parts under way. Its destructor frees the parts not taken. The file outlives it.
class SpillReading {
 public:
  explicit SpillReading(SpillFile* file) : file_(file) {}
  SpillReading(const SpillReading&) = delete;
  SpillReading& operator=(const SpillReading&) = delete;
  ~SpillReading();

  struct Part {
    std::size_t part = 0;
    std::span<const std::byte> bytes;
  };
  // Returns a part that has arrived, in any order; nullopt if there is none. Valid until the next call.
  std::optional<Part> take();
  int under_way() const { return under_way_; }
  // Status of the first read that failed, or of the first part with a wrong checksum.
  const Status& status() const { return status_; }

 private:
  friend class SpillFile;
  struct Arrived {
    std::size_t part;
    std::size_t buffer;
    std::size_t bytes;
  };
  void release_taken();

  SpillFile* file_;
  std::deque<Arrived> arrived_;
  std::optional<std::size_t> taken_;  // buffer of the last part that take() returned
  int under_way_ = 0;
  Status status_;
};

class SpillFile {
 public:
  static constexpr std::size_t kPartBytes = std::size_t{1} << 20;
  static constexpr std::size_t kBuffers = 16;
  static constexpr std::size_t kBufferBytes = kPartBytes * kBuffers;

  // The division of a file: bytes per part, and number of transfers at a time.
  struct Layout {
    std::size_t part_bytes = kPartBytes;
    std::size_t buffers = kBuffers;
  };

  // `capacity`: most bytes held. Errors: kResourceExhausted.
  static Result<std::unique_ptr<SpillFile>> create(std::unique_ptr<AsyncFile> file, std::uint64_t capacity,
                                                   const Layout& layout);
  static Result<std::unique_ptr<SpillFile>> create(std::unique_ptr<AsyncFile> file, std::uint64_t capacity) {
    return create(std::move(file), capacity, Layout());
  }
  // REQUIRES: no SpilledParts and no SpillReading exists.
  ~SpillFile();

  // Returns room for `parts` parts; null if there is not enough.
  std::shared_ptr<SpilledParts> reserve(std::size_t parts);
  bool has_room(std::size_t parts) const { return parts <= places_ - used_places_; }
  // Returns the bytes by which the file grows with `parts` more parts.
  std::uint64_t growth(std::size_t parts) const;
  // Returns the bytes of the file, free places included.
  std::uint64_t disk_bytes() const { return std::uint64_t{disk_places_} * layout_.part_bytes; }
  // Truncates the free places at its end.
  void trim();

  // Returns a buffer of part_bytes(), to be passed to write() or release(); empty if all are in use.
  std::span<std::byte> buffer();
  void release(std::span<std::byte> buffer);
  // Begins to write the first `bytes` of a buffer as a part that was not written before.
  void write(const std::shared_ptr<SpilledParts>& parts, std::size_t part, std::span<std::byte> buffer,
             std::size_t bytes);
  // Begins to read a part. Returns false if all buffers are in use. REQUIRES: the part was written.
  bool read(const std::shared_ptr<SpilledParts>& parts, std::size_t part, const std::shared_ptr<SpillReading>& reading);

  // Ends the transfers that are complete; if none is, waits up to `wait` for one.
  void poll(std::chrono::milliseconds wait);

  std::size_t part_bytes() const { return layout_.part_bytes; }
  std::uint64_t buffer_bytes() const { return std::uint64_t{layout_.part_bytes} * layout_.buffers; }
  std::uint64_t capacity() const { return std::uint64_t{places_} * layout_.part_bytes; }
  std::uint64_t used() const { return std::uint64_t{used_places_} * layout_.part_bytes; }
  std::string_view method() const { return file_->method(); }

 private:
  friend class SpilledParts;
  friend class SpillReading;
  // A transfer under way, which keeps its owner alive.
  struct Use {
    std::shared_ptr<SpilledParts> parts;
    std::size_t part = 0;
    std::shared_ptr<SpillReading> reading;  // null: it writes
  };

  explicit SpillFile(const Layout& layout) : layout_(layout) {}
  std::span<std::byte> bytes_of(std::size_t buffer) {
    return {memory_.data() + buffer * layout_.part_bytes, layout_.part_bytes};
  }
  std::size_t index_of(std::span<const std::byte> buffer) const;
  void end(std::size_t buffer, const Status& status);
  std::uint32_t take_place();
  void give_place(std::uint32_t place);

  Layout layout_;
  AlignedBuffer<std::byte> memory_;  // [buffers][part_bytes]
  std::vector<std::size_t> free_buffers_;
  std::vector<Use> uses_;  // [buffers]
  std::uint32_t places_ = 0;
  std::uint32_t used_places_ = 0;
  std::uint32_t end_places_ = 0;            // places up to the last one taken
  std::uint32_t disk_places_ = 0;           // places in the file on disk
  std::vector<char> taken_;                 // [place]
  std::vector<std::uint32_t> free_places_;  // a min-heap; entries from end_places_ on are void
  std::unique_ptr<AsyncFile> file_;         // destroyed first: its transfers use the buffers
};

}  // namespace kvasir
