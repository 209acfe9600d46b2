#include "tiers/spill_file.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

Hash128 hash_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.digest();
}

}  // namespace

SpilledParts::SpilledParts(SpillFile* file, std::size_t parts) : file_(file), parts_(parts) {
  const std::size_t most = std::size_t{file->end_places_} + parts;
  if (most > file->taken_.size()) {
    // Grows by at least half, so that many blocks cost linear time.
    const std::size_t places = std::max(most, file->taken_.size() * 3 / 2);
    file->free_places_.reserve(places);
    file->taken_.resize(places);
  }
  // Nothing throws from here on; neither does freeing the places.
  for (Part& part : parts_) part.place = file->take_place();
  file->used_places_ += static_cast<std::uint32_t>(parts);
}

SpilledParts::~SpilledParts() {
  for (const Part& part : parts_) file_->give_place(part.place);
  file_->used_places_ -= static_cast<std::uint32_t>(parts_.size());
}

SpillReading::~SpillReading() {
  release_taken();
  for (const Arrived& arrived : arrived_) file_->free_buffers_.push_back(arrived.buffer);
}

void SpillReading::release_taken() {
  if (taken_) file_->free_buffers_.push_back(*taken_);
  taken_.reset();
}

std::optional<SpillReading::Part> SpillReading::take() {
  release_taken();
  if (arrived_.empty()) return {};
  const Arrived arrived = arrived_.front();
  arrived_.pop_front();
  taken_ = arrived.buffer;
  return Part{arrived.part, file_->bytes_of(arrived.buffer).first(arrived.bytes)};
}

Result<std::unique_ptr<SpillFile>> SpillFile::create(std::unique_ptr<AsyncFile> file, std::uint64_t capacity,
                                                     const Layout& layout) {
  std::unique_ptr<SpillFile> spill(new SpillFile(layout));
  spill->memory_.ensure(layout.part_bytes * layout.buffers);
  spill->uses_.resize(layout.buffers);
  spill->free_buffers_.resize(layout.buffers);
  std::iota(spill->free_buffers_.begin(), spill->free_buffers_.end(), std::size_t{0});
  const std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  spill->places_ = static_cast<std::uint32_t>(std::min(capacity / layout.part_bytes, most));
  spill->file_ = std::move(file);
  return spill;
}

SpillFile::~SpillFile() {
  // Owners kept alive by transfers under way free their room when these end.
  while (std::ranges::any_of(uses_, [](const Use& use) { return use.parts != nullptr; }))
    poll(std::chrono::milliseconds(1000));
  KVASIR_CHECK(used_places_ == 0);
}

std::shared_ptr<SpilledParts> SpillFile::reserve(std::size_t parts) {
  if (!has_room(parts)) return nullptr;
  return std::make_shared<SpilledParts>(this, parts);
}

// Takes the first free place, so that files stay short.
std::uint32_t SpillFile::take_place() {
  while (!free_places_.empty()) {
    std::ranges::pop_heap(free_places_, std::greater());
    const std::uint32_t place = free_places_.back();
    free_places_.pop_back();
    if (place >= end_places_) continue;
    taken_[place] = 1;
    return place;
  }
  taken_[end_places_] = 1;
  disk_places_ = std::max(disk_places_, end_places_ + 1);
  return end_places_++;
}

void SpillFile::give_place(std::uint32_t place) {
  taken_[place] = 0;
  free_places_.push_back(place);
  std::ranges::push_heap(free_places_, std::greater());
  while (end_places_ > 0 && taken_[end_places_ - 1] == 0) --end_places_;
}

std::uint64_t SpillFile::growth(std::size_t parts) const {
  const std::uint64_t end = std::max<std::uint64_t>(end_places_, std::uint64_t{used_places_} + parts);
  return (std::max<std::uint64_t>(end, disk_places_) - disk_places_) * layout_.part_bytes;
}

void SpillFile::trim() {
  if (end_places_ == disk_places_) return;
  file_->truncate(std::uint64_t{end_places_} * layout_.part_bytes);
  disk_places_ = end_places_;
}

std::span<std::byte> SpillFile::buffer() {
  if (free_buffers_.empty()) return {};
  const std::size_t buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return bytes_of(buffer);
}

std::size_t SpillFile::index_of(std::span<const std::byte> buffer) const {
  return static_cast<std::size_t>(buffer.data() - memory_.data()) / layout_.part_bytes;
}

void SpillFile::release(std::span<std::byte> buffer) {
  free_buffers_.push_back(index_of(buffer));
}

void SpillFile::write(const std::shared_ptr<SpilledParts>& parts, std::size_t part, std::span<std::byte> buffer,
                      std::size_t bytes) {
  SpilledParts::Part& written = parts->parts_[part];
  const std::span<const std::byte> from = buffer.first(bytes);
  written.bytes = static_cast<std::uint32_t>(bytes);
  written.hash = hash_of(from);
  const std::size_t index = index_of(buffer);
  file_->write(index, std::uint64_t{written.place} * layout_.part_bytes, from);
  uses_[index] = {parts, part, nullptr};
}

bool SpillFile::read(const std::shared_ptr<SpilledParts>& parts, std::size_t part,
                     const std::shared_ptr<SpillReading>& reading) {
  const std::span<std::byte> into = buffer();
  if (into.empty()) return false;
  const SpilledParts::Part& written = parts->parts_[part];
  const std::size_t index = index_of(into);
  file_->read(index, std::uint64_t{written.place} * layout_.part_bytes, into.first(written.bytes));
  uses_[index] = {parts, part, reading};
  ++reading->under_way_;
  return true;
}

void SpillFile::poll(std::chrono::milliseconds wait) {
  for (const FinishedTransfer& transfer : file_->finished(wait))
    end(static_cast<std::size_t>(transfer.tag), transfer.status);
}

void SpillFile::end(std::size_t buffer, const Status& status) {
  const Use use = std::exchange(uses_[buffer], {});
  if (use.reading == nullptr) {
    if (status.ok()) ++use.parts->written_;
    if (!status.ok() && use.parts->status_.ok()) use.parts->status_ = status;
    free_buffers_.push_back(buffer);
    return;
  }
  SpillReading& reading = *use.reading;
  const SpilledParts::Part& part = use.parts->parts_[use.part];
  --reading.under_way_;
  Status result = status;
  if (result.ok() && hash_of(bytes_of(buffer).first(part.bytes)) != part.hash)
    result = data_loss("the scratch file is damaged: a checksum is wrong");
  if (result.ok()) {
    reading.arrived_.push_back({use.part, buffer, part.bytes});
    return;
  }
  if (reading.status_.ok()) reading.status_ = result;
  free_buffers_.push_back(buffer);
}

}  // namespace kvasir
