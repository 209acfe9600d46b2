#include "kv/column_pages.h"

#include <bit>

#include "base/check.h"

namespace kvasir {

void add_move(std::vector<SlotMove>& moves, const SlotMove& move) {
  if (!moves.empty()) {
    SlotMove& last = moves.back();
    const bool follows = last.to_slot + std::popcount(last.slots) == move.to_slot && last.slots < move.slots;
    if (follows && last.from == move.from && last.to == move.to && last.shift == move.shift) {
      last.slots |= move.slots;
      return;
    }
  }
  moves.push_back(move);
}

void ColumnPages::copy(std::uint32_t column, FreshPages& to, bool sealed) {
  if (pool_->store() != nullptr) pool_->store()->copy(of(column), to.next(sealed));
  take(column, to, sealed);
  pages_copied_ += count();
}

void ColumnPages::own(std::uint32_t column, bool sealed) {
  if (!is_shared(column)) return;
  FreshPages own = fresh();
  KVASIR_CHECK(own.try_allocate(sealed ? 0 : 1, sealed ? 1 : 0));
  copy(column, own, sealed);
}

void ColumnPages::move(std::span<const SlotMove> moves, bool repack) {
  for (const SlotMove& move : moves) slots_moved_ += static_cast<std::uint64_t>(std::popcount(move.slots));
  if (pool_->store() == nullptr || moves.empty()) return;
  if (repack) {
    pool_->store()->repack(lanes_, moves);
  } else {
    pool_->store()->move(lanes_, moves);
  }
}

}  // namespace kvasir
