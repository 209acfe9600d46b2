#include "backend/cpu/cpu_page_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

RotationTable::RotationTable(std::vector<double> inverse_frequencies)
    : inverse_frequencies_(std::move(inverse_frequencies)) {}

const float* RotationTable::of(std::int64_t position) {
  const std::size_t pairs = inverse_frequencies_.size();
  if (cached_position_.empty()) {
    cached_position_.assign(kCached, std::numeric_limits<std::int64_t>::min());
    cached_.resize(kCached * 2 * pairs);
  }
  const auto at = static_cast<std::size_t>(position & (kCached - 1));
  float* rotation = cached_.data() + at * 2 * pairs;
  if (cached_position_[at] != position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies_[i];
      rotation[i] = static_cast<float>(std::cos(angle));
      rotation[pairs + i] = static_cast<float>(std::sin(angle));
    }
    cached_position_[at] = position;
  }
  return rotation;
}

CpuPageStore::CpuPageStore(const PageFormat& format, const KernelTable* kernels, ThreadPool* threads,
                           std::vector<double> inverse_frequencies)
    : format_(format),
      kernels_(*kernels),
      threads_(*threads),
      rotations_(std::move(inverse_frequencies)),
      page_bytes_(format.bytes()) {}

CpuPageStore::~CpuPageStore() {
  if (data_ != nullptr) ::munmap(data_, count_ * page_bytes_);
}

// Address space for all pages; they become resident when first written.
Status CpuPageStore::reserve(std::uint64_t count) {
  KVASIR_CHECK(data_ == nullptr);
  void* memory =
      ::mmap(nullptr, count * page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return exhausted("the system has no room for {} pages of {} bytes; give the cache less memory", count, page_bytes_)
        .about({"kv_memory"});
  data_ = static_cast<std::byte*>(memory);
  count_ = count;
  return {};
}

void CpuPageStore::clear(std::span<const PageId> pages) {
  for (const PageId page : pages) std::memset(data(page), 0, page_bytes_);
}

void CpuPageStore::copy(std::span<const PageId> from, std::span<const PageId> to) {
  for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(data(to[i]), data(from[i]), page_bytes_);
}

void CpuPageStore::move(int lanes, std::span<const SlotMove> moves) {
  const std::size_t floats = rotations_.floats();
  turns_.resize(moves.size() * floats);
  for (std::size_t m = 0; m < moves.size(); ++m)
    if (moves[m].shift != 0) std::copy_n(rotations_.of(moves[m].shift), floats, turns_.data() + m * floats);
  const auto move_lane = [&](int lane) {
    for (std::size_t m = 0; m < moves.size(); ++m) {
      const SlotMove& move = moves[m];
      const float* turn = move.shift != 0 ? turns_.data() + m * floats : nullptr;
      kernels_.move_slots(format_, data(move.from[lane]), move.slots, data(move.to[lane]), move.to_slot,
                          rotations_.rotary(), turn, turn != nullptr ? turn + floats / 2 : nullptr);
    }
  };
  // One token's move is done sooner than other threads wake.
  if (moves.size() < 4) {
    for (int lane = 0; lane < lanes; ++lane) move_lane(lane);
  } else {
    threads_.parallel_for(lanes, move_lane);
  }
}

void CpuPageStore::rotate(int lanes, std::span<const SlotRotation> rotations, std::int64_t shift) {
  const float* turn = rotations_.of(shift);
  threads_.parallel_for(lanes, [&](int lane) {
    for (const SlotRotation& rotation : rotations)
      kernels_.rotate_keys(format_, data(rotation.pages[lane]), rotation.slots, rotations_.rotary(), turn,
                           turn + rotations_.floats() / 2);
  });
}

void CpuPageStore::read(PageId page, std::span<std::byte> out) const {
  KVASIR_CHECK(out.size() == page_bytes_);
  std::memcpy(out.data(), data(page), page_bytes_);
}

void CpuPageStore::write(PageId page, std::span<const std::byte> in) {
  KVASIR_CHECK(in.size() == page_bytes_);
  std::memcpy(data(page), in.data(), page_bytes_);
}

}  // namespace kvasir
