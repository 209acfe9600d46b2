#include "tiers/cold_tier.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double worked_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::size_t parts_in(std::size_t bytes, std::size_t part_bytes) {
  return (bytes + part_bytes - 1) / part_bytes;
}

}  // namespace

ColdBlock::~ColdBlock() {
  if (parts_ == nullptr) return;
  const std::lock_guard lock(tier_->mutex_);
  tier_->used_ -= parts_->size() * file_->part_bytes();
  tier_->discarded_.push_back(std::move(parts_));
  tier_->work_changed_.notify_one();
}

double ColdFetch::wait() {
  std::unique_lock lock(mutex_);
  if (done_) return 0;
  const auto began = Clock::now();
  changed_.wait(lock, [this] { return done_; });
  return worked_since(began);
}

ColdTier::ColdTier(Make make, std::uint64_t capacity)
    : capacity_(capacity),
      files_(std::move(make), kBuffers, {"offloaded keys and values", "give it more, or a policy with offload=off"}) {}

ColdTier::~ColdTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  discarded_.clear();
  files_.clear();
}

Status ColdTier::start() {
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return exhausted("the system refuses a thread for offloaded keys and values: {}; raise the limit on threads",
                     error.what());
  }
  return {};
}

std::shared_ptr<ColdBlock> ColdTier::write(std::vector<std::byte> bytes, std::size_t part_bytes, double* waited) {
  KVASIR_CHECK(!bytes.empty() && part_bytes > 0);
  auto block = std::make_shared<ColdBlock>(this, bytes.size());
  std::unique_lock lock(mutex_);
  if (const Status started = start(); !started.ok()) {
    fail(*block, started);
    return block;
  }
  if (queued_ > kMostQueued) {
    const auto began = Clock::now();
    room_changed_.wait(lock, [this] { return queued_ <= kMostQueued; });
    *waited += worked_since(began);
  }
  queued_ += bytes.size();
  idle_ = false;
  new_writes_.push_back({block, std::move(bytes), part_bytes, 0});
  work_changed_.notify_one();
  return block;
}

std::shared_ptr<ColdFetch> ColdTier::fetch(
    std::vector<Item> items, std::function<void(std::size_t, std::uint32_t, std::span<const std::byte>)> place) {
  auto fetch = std::make_shared<ColdFetch>();
  fetch->place_ = std::move(place);
  for (Item& item : items) {
    fetch->left_ += item.parts.size();
    fetch->wanted_.push_back({std::move(item.block), std::move(item.parts), 0, nullptr});
  }
  if (fetch->left_ == 0) {
    fetch->done_ = true;
    return fetch;
  }
  const std::lock_guard lock(mutex_);
  if (fetch->status_ = start(); !fetch->status_.ok()) {
    fetch->done_ = true;
    return fetch;
  }
  idle_ = false;
  new_fetches_.push_back(fetch);
  work_changed_.notify_one();
  return fetch;
}

void ColdTier::settle() {
  std::unique_lock lock(mutex_);
  room_changed_.wait(lock, [this] { return idle_; });
}

void ColdTier::work() {
  for (;;) {
    std::vector<std::shared_ptr<SpilledParts>> discarded;
    {
      std::unique_lock lock(mutex_);
      const bool busy = !writes_.empty() || !fetches_.empty() || !written_.empty();
      if (!busy && new_writes_.empty() && new_fetches_.empty()) {
        idle_ = true;
        room_changed_.notify_all();
        work_changed_.wait(
            lock, [this] { return stopping_ || !new_writes_.empty() || !new_fetches_.empty() || !discarded_.empty(); });
        if (stopping_ && new_writes_.empty() && new_fetches_.empty()) return;
      }
      for (Write& write : new_writes_) writes_.push_back(std::move(write));
      for (std::shared_ptr<ColdFetch>& fetch : new_fetches_) fetches_.push_back(std::move(fetch));
      new_writes_.clear();
      new_fetches_.clear();
      discarded.swap(discarded_);
    }
    discarded.clear();
    bool progress = advance_writes();
    for (const std::shared_ptr<ColdFetch>& fetch : fetches_) {
      const auto began = Clock::now();
      const bool asked = advance_fetch(*fetch);
      progress = progress || asked;
      if (asked) fetch->seconds_ += worked_since(began);
    }
    files_.poll(std::chrono::milliseconds(progress ? 0 : 1));
    std::erase_if(written_, [](const std::shared_ptr<ColdBlock>& block) {
      if (!block->parts_->status().ok()) fail(*block, block->parts_->status());
      if (block->parts_->written()) block->state_ = ColdBlock::State::kWritten;
      return block->state_ != ColdBlock::State::kQueued;
    });
    for (const std::shared_ptr<ColdFetch>& fetch : fetches_) {
      const auto began = Clock::now();
      collect(*fetch);
      fetch->seconds_ += worked_since(began);
    }
    std::erase_if(fetches_, [this](const std::shared_ptr<ColdFetch>& fetch) {
      if (fetch->left_ > 0) return false;
      finish(*fetch);
      return true;
    });
  }
}

void ColdTier::fail(ColdBlock& block, const Status& why) {
  block.status_ = why;
  block.state_ = ColdBlock::State::kFailed;
}

Status ColdTier::open(Write& write) {
  const std::size_t parts = parts_in(write.bytes.size(), write.part_bytes);
  KVASIR_ASSIGN_OR_RETURN(SpillFiles::Room room, files_.reserve(write.part_bytes, parts, capacity_));
  used_ += std::uint64_t{write.part_bytes} * parts;
  write.block->file_ = room.file;
  write.block->parts_ = std::move(room.parts);
  return {};
}

// Returns whether any write began.
bool ColdTier::advance_writes() {
  bool progress = false;
  while (!writes_.empty()) {
    Write& write = writes_.front();
    Status status;
    try {
      if (write.block->parts_ == nullptr) status = open(write);
    } catch (const std::bad_alloc&) {
      status = exhausted("the system has no memory for the buffers of the file for offloaded keys and values");
    }
    if (status.ok()) {
      SpillFile& file = *write.block->file_;
      const std::size_t parts = parts_in(write.bytes.size(), write.part_bytes);
      for (; write.next < parts; ++write.next) {
        const std::span<std::byte> buffer = file.buffer();
        if (buffer.empty()) return progress;
        const std::size_t first = write.next * write.part_bytes;
        const std::size_t bytes = std::min(write.part_bytes, write.bytes.size() - first);
        std::memcpy(buffer.data(), write.bytes.data() + first, bytes);
        file.write(write.block->parts_, write.next, buffer, bytes);
        progress = true;
      }
      written_.push_back(write.block);
    } else {
      fail(*write.block, status);
    }
    {
      const std::lock_guard lock(mutex_);
      queued_ -= write.bytes.size();
    }
    room_changed_.notify_all();
    // This may destroy the block, which takes the lock.
    writes_.pop_front();
  }
  return progress;
}

// Begins reads of parts. Returns whether it made progress.
bool ColdTier::advance_fetch(ColdFetch& fetch) {
  bool progress = false;
  for (; fetch.next_ < fetch.wanted_.size(); ++fetch.next_) {
    ColdFetch::Wanted& wanted = fetch.wanted_[fetch.next_];
    ColdBlock& block = *wanted.block;
    if (block.state_ == ColdBlock::State::kFailed) {
      if (fetch.status_.ok()) {
        fetch.status_ = block.status_;
        fetch.unwritten_ = true;
      }
      fetch.left_ -= wanted.parts.size() - wanted.asked;
      wanted.parts.resize(wanted.asked);
      progress = true;
      continue;
    }
    if (block.state_ != ColdBlock::State::kWritten) return progress;
    if (wanted.reading == nullptr) wanted.reading = std::make_shared<SpillReading>(block.file_);
    for (; wanted.asked < wanted.parts.size(); ++wanted.asked) {
      if (!block.file_->read(block.parts_, wanted.parts[wanted.asked], wanted.reading)) return progress;
      progress = true;
    }
  }
  return progress;
}

// Places the parts that have arrived.
void ColdTier::collect(ColdFetch& fetch) {
  const std::size_t end = std::min(fetch.next_ + 1, fetch.wanted_.size());
  while (fetch.placed_ < fetch.next_ && fetch.wanted_[fetch.placed_].parts.empty()) ++fetch.placed_;
  for (std::size_t i = fetch.placed_; i < end; ++i) {
    ColdFetch::Wanted& wanted = fetch.wanted_[i];
    if (wanted.reading == nullptr) continue;
    while (const auto part = wanted.reading->take()) {
      fetch.place_(i, static_cast<std::uint32_t>(part->part), part->bytes);
      fetch.bytes_ += part->bytes.size();
      --fetch.left_;
      std::erase(wanted.parts, static_cast<std::uint32_t>(part->part));
      --wanted.asked;
    }
    const bool all_asked = wanted.asked == wanted.parts.size();
    if (wanted.reading->under_way() > 0 || !all_asked) continue;
    // The remaining parts were not read.
    if (!wanted.reading->status().ok() && fetch.status_.ok()) fetch.status_ = wanted.reading->status();
    fetch.left_ -= wanted.parts.size();
    wanted.parts.clear();
    wanted.asked = 0;
    wanted.reading.reset();
  }
}

void ColdTier::finish(ColdFetch& fetch) {
  // This may destroy blocks: not under the fetch's lock.
  fetch.wanted_.clear();
  const std::lock_guard lock(fetch.mutex_);
  fetch.done_ = true;
  fetch.changed_.notify_all();
}

}  // namespace kvasir
