// Pages in memory, in the layout of the kernel tables (kernels/pages/page_layout.h).
// Thread-safety: as PageStore; data() may be used from many threads while no page is cleared, copied or moved.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/page_store.h"
#include "base/thread_pool.h"

namespace kvasir {

// Computes the rotation of a position: [dims / 2] cosines, then as many sines. Angles are in double: a float angle is
// off by 0.03 at position 1,000,000.
class RotationTable {
 public:
  explicit RotationTable(const Rotation& rotation) : inverse_frequencies_(rotation.inverse_frequencies) {}

  std::size_t floats() const { return 2 * inverse_frequencies_.size(); }
  int rotary() const { return static_cast<int>(floats()); }
  // The result is valid until the next call.
  const float* of(std::int64_t position);

  static constexpr int kCached = 4096;
  static std::uint64_t bytes(int rotary) { return std::uint64_t{kCached} * (static_cast<unsigned>(rotary) * 4u + 8u); }

 private:
  std::vector<double> inverse_frequencies_;
  // A direct-mapped cache: the same neighbouring positions come again and again.
  std::vector<std::int64_t> cached_position_;
  std::vector<float> cached_;  // [kCached][floats]
};

class CpuPageStore final : public PageStore {
 public:
  // `kernels` and `threads` outlive the store.
  CpuPageStore(const KernelTable* kernels, ThreadPool* threads, const std::vector<Rotation>& rotations);
  CpuPageStore(const CpuPageStore&) = delete;
  CpuPageStore& operator=(const CpuPageStore&) = delete;
  ~CpuPageStore() override;

  const PageFormat& format(PageId page) const { return arena(page).format; }
  std::byte* data(PageId page) const {
    const Arena& of = arena(page);
    return of.data + page_number(page) * of.page_bytes;
  }
  // Slots of every page. REQUIRES: a class was reserved.
  int slots() const { return arenas_.front().format.slots; }

  Status reserve(PageClass of, const PageFormat& format, std::uint64_t count) override;
  void give_back(PageClass of, std::uint64_t first, std::uint64_t count) override;
  void clear(std::span<const PageId> pages) override;
  void copy(std::span<const PageId> from, std::span<const PageId> to) override;
  void move(ColumnLanes lanes, std::span<const SlotMove> moves) override;
  void repack(ColumnLanes lanes, std::span<const SlotMove> moves) override;
  void seal(int lanes, std::span<const PageSeal> seals) override;
  void rotate(ColumnLanes lanes, std::span<const SlotRotation> rotations, std::int64_t shift) override;
  void read_keys(PageId page, float* keys) const override;
  void read_values(PageId page, float* values) const override;
  void read_rows(PageId page, int first, int count, std::byte* out) const override;
  void write_rows(PageId page, int first, int count, const std::byte* in) override;
  void put_row(PageId page, int row, const std::byte* in) override;
  void read(PageId page, std::span<std::byte> out) const override;
  void write(PageId page, std::span<const std::byte> in) override;

 private:
  // The pages of a class: one range of addresses.
  struct Arena {
    PageFormat format;
    std::size_t page_bytes = 0;
    std::uint64_t count = 0;
    std::byte* data = nullptr;
  };

  const Arena& arena(PageId page) const { return arenas_[static_cast<std::size_t>(page_class(page))]; }
  // By what a lane's keys are turned.
  struct Turn {
    int rotary = 0;
    const float* cosines = nullptr;  // [rotary / 2], the sines behind them; null: no turn
    const float* sines() const { return cosines != nullptr ? cosines + rotary / 2 : nullptr; }
  };
  // Prepares turn_of for these moves.
  void fill_turns(ColumnLanes lanes, std::span<const SlotMove> moves);
  Turn turn_of(std::size_t move, const SlotMove& what, int rotation) const;
  // Returns the page in the types of `open`: the page itself, or decoded to `room` if it is encoded or in i16.
  const std::byte* opened(PageId page, const PageFormat& open, std::byte* room) const;
  void rotate_open(const PageFormat& open, std::byte* page, SlotMask slots, Turn turn) const;
  void move_slots(const PageFormat& open, const std::byte* from, SlotMask slots, std::byte* to, int to_slot,
                  Turn turn) const;

  const KernelTable& kernels_;
  ThreadPool& threads_;
  std::vector<RotationTable> rotations_;
  std::array<Arena, kMaxPageClasses> arenas_;
  std::vector<std::vector<float>> turns_;  // [rotations_][moves at hand][rotary]; empty: none turns by it
};

}  // namespace kvasir
