#include "tiers/spill_files.h"

#include <limits>

#include "base/status.h"

namespace kvasir {

std::uint64_t SpillFiles::used() const {
  std::uint64_t sum = 0;
  for (const auto& [bytes, file] : files_) sum += file->used();
  return sum;
}

std::uint64_t SpillFiles::disk_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [bytes, file] : files_) sum += file->disk_bytes();
  return sum;
}

void SpillFiles::poll(std::chrono::milliseconds wait) {
  for (auto& [bytes, file] : files_) file->poll(wait);
}

Result<SpillFiles::Room> SpillFiles::reserve(std::size_t part_bytes, std::size_t parts, std::uint64_t capacity) {
  const auto found = files_.find(part_bytes);
  const auto grows_by = [&] {
    return found == files_.end() ? std::uint64_t{part_bytes} * parts : found->second->growth(parts);
  };
  const auto fits = [&] { return disk_bytes() <= capacity && grows_by() <= capacity - disk_bytes(); };
  if (!fits())
    for (auto& [bytes, file] : files_) file->trim();
  if (!fits())
    return exhausted("the file for {} may have {} bytes, {} are in use and {} more are needed; {}", words_.what,
                     capacity, disk_bytes(), std::uint64_t{part_bytes} * parts, words_.mend)
        .about({"demote_size"});
  SpillFile* file = found == files_.end() ? nullptr : found->second.get();
  if (file == nullptr) {
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> made, make_());
    // `capacity` above bounds the bytes instead.
    constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<SpillFile> spill,
                            SpillFile::create(std::move(made), kAny, {part_bytes, buffers_}));
    file = files_.emplace(part_bytes, std::move(spill)).first->second.get();
  }
  std::shared_ptr<SpilledParts> room = file->reserve(parts);
  if (room == nullptr) return exhausted("the file for {} is full; {}", words_.what, words_.mend).about({"demote_size"});
  return Room{file, std::move(room)};
}

}  // namespace kvasir
