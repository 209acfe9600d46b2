// Where demoted pages go that leave memory: files without names in one folder, one for each size of page, of bounded
// size together.
// Thread-safety: one caller at a time, the one of the sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "tiers/spill_file.h"

namespace kvasir {

class DemotionFile {
 public:
  static constexpr std::size_t kBuffers = 32;  // of a page each, for each size of page

  // `make` makes a file when the first page of a size leaves. Holds `capacity` bytes at the most.
  using Make = std::function<Result<std::unique_ptr<AsyncFile>>()>;
  DemotionFile(Make make, std::uint64_t capacity) : make_(std::move(make)), capacity_(capacity) {}

  // Room for so many pages. Errors: kResourceExhausted (the files are as large as they may be), those of `make`.
  struct Room {
    SpillFile* file = nullptr;  // lives as long as this
    std::shared_ptr<SpilledParts> parts;
  };
  Result<Room> reserve(std::size_t page_bytes, std::size_t pages);

  std::uint64_t capacity() const { return capacity_; }
  // From now on; what is in use stays.
  void resize(std::uint64_t capacity) { capacity_ = capacity; }
  std::uint64_t used() const;

 private:
  Make make_;
  std::uint64_t capacity_;
  std::map<std::size_t, std::unique_ptr<SpillFile>> files_;  // by bytes of a page
};

}  // namespace kvasir
