// Spill files for parts of several sizes, one for each size, which together have a bounded number of bytes on the disk.
// Thread-safety: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tiers/spill_file.h"

namespace kvasir {

class SpillFiles {
 public:
  // Makes a file when the first part of a size comes.
  using Make = std::function<Result<std::unique_ptr<AsyncFile>>()>;

  // What the caller is told where there is no room: "the file for <what> may have ...; <mend>".
  struct Words {
    std::string what;
    std::string mend;
  };

  // `buffers`: of each file.
  SpillFiles(Make make, std::size_t buffers, Words words)
      : make_(std::move(make)), buffers_(buffers), words_(std::move(words)) {}

  struct Room {
    SpillFile* file = nullptr;  // lives as long as this
    std::shared_ptr<SpilledParts> parts;
  };
  // Returns room for so many parts while all files together have at most `capacity` bytes on the disk. Cuts off what is
  // free at the ends of the files where it must. Errors: kResourceExhausted, those of Make.
  Result<Room> reserve(std::size_t part_bytes, std::size_t parts, std::uint64_t capacity);

  void poll(std::chrono::milliseconds wait);
  std::uint64_t used() const;        // bytes of parts
  std::uint64_t disk_bytes() const;  // bytes of the files, with places that are free
  void clear() { files_.clear(); }   // REQUIRES: no parts are left

 private:
  Make make_;
  std::size_t buffers_;
  Words words_;
  std::map<std::size_t, std::unique_ptr<SpillFile>> files_;  // by bytes of a part
};

}  // namespace kvasir
