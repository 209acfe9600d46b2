// Spill files for parts of several sizes, one file per size, whose bytes on disk are bounded together.
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
  // Makes a file when the first part of a size is written.
  using Make = std::function<Result<std::unique_ptr<AsyncFile>>()>;

  // Words of the error when there is no room: "the file for <what> may have ...; <mend>".
  struct Words {
    std::string what;
    std::string mend;
  };

  // `buffers`: per file.
  SpillFiles(Make make, std::size_t buffers, Words words)
      : make_(std::move(make)), buffers_(buffers), words_(std::move(words)) {}

  struct Room {
    SpillFile* file = nullptr;  // lives as long as this object
    std::shared_ptr<SpilledParts> parts;
  };
  // Returns room for `parts` parts if all files together then have at most `capacity` bytes on disk. Truncates free
  // ends of files if it must. Errors: kResourceExhausted, those of Make.
  Result<Room> reserve(std::size_t part_bytes, std::size_t parts, std::uint64_t capacity);

  void poll(std::chrono::milliseconds wait);
  std::uint64_t used() const;        // bytes of parts
  std::uint64_t disk_bytes() const;  // of the files, free places included
  void clear() { files_.clear(); }   // REQUIRES: no parts exist

 private:
  Make make_;
  std::size_t buffers_;
  Words words_;
  std::map<std::size_t, std::unique_ptr<SpillFile>> files_;  // by bytes of a part
};

}  // namespace kvasir
