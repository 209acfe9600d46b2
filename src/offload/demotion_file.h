// Holds the demoted pages that leave memory: in unnamed files, one for each page size, whose total size is bounded.
// Thread-safety: one caller at a time, the one that runs the sequences.
#pragma once

#include <cstdint>

#include "tiers/spill_files.h"

namespace kvasir {

class DemotionFile {
 public:
  static constexpr std::size_t kBuffers = 32;  // per page size; each holds one page

  // `make` makes a file when the first page of a size leaves. `capacity`: most bytes of all files.
  using Make = SpillFiles::Make;
  DemotionFile(Make make, std::uint64_t capacity);

  // Reserves room for `pages` pages. Errors: kResourceExhausted (the capacity is reached), those of `make`.
  using Room = SpillFiles::Room;
  Result<Room> reserve(std::size_t page_bytes, std::size_t pages) {
    return files_.reserve(page_bytes, pages, capacity_);
  }

  std::uint64_t capacity() const { return capacity_; }
  // Sets the capacity of later reservations.
  void resize(std::uint64_t capacity) { capacity_ = capacity; }
  std::uint64_t used() const { return files_.used(); }

 private:
  std::uint64_t capacity_;
  SpillFiles files_;
};

}  // namespace kvasir
