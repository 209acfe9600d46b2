// Where demoted pages go that leave memory: files without names in one folder, one for each size of page, of bounded
// size together.
// Thread-safety: one caller at a time, the one of the sequences.
#pragma once

#include <cstdint>

#include "tiers/spill_files.h"

namespace kvasir {

class DemotionFile {
 public:
  static constexpr std::size_t kBuffers = 32;  // of a page each, for each size of page

  // `make` makes a file when the first page of a size leaves. They have `capacity` bytes on the disk at the most.
  using Make = SpillFiles::Make;
  DemotionFile(Make make, std::uint64_t capacity);

  // Room for so many pages. Errors: kResourceExhausted (the files are as large as they may be), those of `make`.
  using Room = SpillFiles::Room;
  Result<Room> reserve(std::size_t page_bytes, std::size_t pages) {
    return files_.reserve(page_bytes, pages, capacity_);
  }

  std::uint64_t capacity() const { return capacity_; }
  // From now on; what is in use stays.
  void resize(std::uint64_t capacity) { capacity_ = capacity; }
  std::uint64_t used() const { return files_.used(); }

 private:
  std::uint64_t capacity_;
  SpillFiles files_;
};

}  // namespace kvasir
