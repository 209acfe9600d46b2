// A file of bounded size that holds bytes which left memory, in parts with checksums.
//
// Bytes go through a fixed number of buffers: whoever wants to write asks for one, fills it and hands it over; whoever
// reads is handed one when its bytes have come and their checksum was found right. Nobody waits but who asks to.
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

// Parts in a spill file; their room is given back with the last owner. The file outlives it.
class SpilledParts {
 public:
  // Takes places of the file. REQUIRES: it has room.
  SpilledParts(SpillFile* file, std::size_t parts);
  SpilledParts(const SpilledParts&) = delete;
  SpilledParts& operator=(const SpilledParts&) = delete;
  ~SpilledParts();

  std::size_t size() const { return parts_.size(); }
  // Memory that it takes.
  static std::uint64_t bytes_for(std::size_t parts);
  bool written() const { return status_.ok() && written_ == parts_.size(); }
  // Of the first write that failed.
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

// Parts on their way back. Gives back what nobody took when it is destroyed. The file outlives it.
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
  // A part that has come, in any order; none: no further one has. Valid until the next call.
  std::optional<Part> take();
  int under_way() const { return under_way_; }
  // Of the first read that failed, or of the first part whose checksum was wrong.
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
  std::optional<std::size_t> taken_;  // the buffer of what take() returned last
  int under_way_ = 0;
  Status status_;
};

class SpillFile {
 public:
  static constexpr std::size_t kPartBytes = std::size_t{1} << 20;
  static constexpr std::size_t kBuffers = 16;
  // Memory of the buffers.
  static constexpr std::size_t kBufferBytes = kPartBytes * kBuffers;

  // How a file is divided: the room of a part, and how many of them are on their way at once.
  struct Layout {
    std::size_t part_bytes = kPartBytes;
    std::size_t buffers = kBuffers;
  };

  // Holds `capacity` bytes at the most. Errors: kResourceExhausted.
  static Result<std::unique_ptr<SpillFile>> create(std::unique_ptr<AsyncFile> file, std::uint64_t capacity,
                                                   const Layout& layout);
  static Result<std::unique_ptr<SpillFile>> create(std::unique_ptr<AsyncFile> file, std::uint64_t capacity) {
    return create(std::move(file), capacity, Layout());
  }
  // REQUIRES: no SpilledParts and no SpillReading is left.
  ~SpillFile();

  // Returns room for so many parts; null: there is not so much.
  std::shared_ptr<SpilledParts> reserve(std::size_t parts);
  bool has_room(std::size_t parts) const { return parts <= places_ - used_places_; }
  // Bytes by which the file grows with so many parts more.
  std::uint64_t growth(std::size_t parts) const;
  // Bytes of the file, with places that are free.
  std::uint64_t disk_bytes() const { return std::uint64_t{disk_places_} * layout_.part_bytes; }
  // Cuts off the places at its end that are free.
  void trim();

  // A buffer of part_bytes() to fill, and then to write or to release; empty: all are in use.
  std::span<std::byte> buffer();
  void release(std::span<std::byte> buffer);
  // Begins to write the first `bytes` of a buffer as a part that was not written before.
  void write(const std::shared_ptr<SpilledParts>& parts, std::size_t part, std::span<std::byte> buffer,
             std::size_t bytes);
  // Begins to read a part. False: all buffers are in use. REQUIRES: the part was written.
  bool read(const std::shared_ptr<SpilledParts>& parts, std::size_t part, const std::shared_ptr<SpillReading>& reading);

  // Ends transfers that have come to their end; where none has, waits for one up to this long.
  void poll(std::chrono::milliseconds wait);

  std::size_t part_bytes() const { return layout_.part_bytes; }
  std::uint64_t buffer_bytes() const { return std::uint64_t{layout_.part_bytes} * layout_.buffers; }
  std::uint64_t capacity() const { return std::uint64_t{places_} * layout_.part_bytes; }
  std::uint64_t used() const { return std::uint64_t{used_places_} * layout_.part_bytes; }
  std::string_view method() const { return file_->method(); }

 private:
  friend class SpilledParts;
  friend class SpillReading;
  // A transfer under way. What it belongs to lives until it ends.
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
  std::uint32_t end_places_ = 0;            // places before the end: the last of them is taken
  std::uint32_t disk_places_ = 0;           // places before the end of the file
  std::vector<char> taken_;                 // [place]
  std::vector<std::uint32_t> free_places_;  // a heap, the first place on top; those from end_places_ on are void
  std::unique_ptr<AsyncFile> file_;         // destroyed first: its transfers use the buffers
};

}  // namespace kvasir
