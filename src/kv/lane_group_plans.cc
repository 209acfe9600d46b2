// Keep plans: any tokens leave a table, some move between its runs, and what is left is masked, then compacted.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kv/lane_group.h"

namespace kvasir {
namespace {

// Adds a copy, or extends the last one by it.
void add_copy(std::vector<LaneGroup::SlotCopy>& copies, const LaneGroup::SlotCopy& copy) {
  if (!copies.empty()) {
    LaneGroup::SlotCopy& last = copies.back();
    const bool follows = last.to_slot + std::popcount(last.slots) == copy.to_slot && last.slots < copy.slots;
    if (follows && last.from == copy.from && last.to == copy.to && last.shift == copy.shift) {
      last.slots |= copy.slots;
      return;
    }
  }
  copies.push_back(copy);
}

}  // namespace

void LaneGroup::apply(const KeepPlan& plan, const SlotMover& mover) {
  KVASIR_CHECK(dropping_ == Dropping::kPlans);
  if (plan.empty()) return;
  leaving_ = plan.drop;
  for (const KeepPlan::Move& move : plan.moves) leaving_.push_back(move.id);
  std::inplace_merge(leaving_.begin(), leaving_.begin() + static_cast<std::ptrdiff_t>(plan.drop.size()),
                     leaving_.end());
  live_.resize(runs_.size());
  // From the last run on: what a run hands on is copied before its columns are given back.
  for (int r = runs() - 1; r >= 0; --r) {
    release_leaving(runs_[static_cast<std::size_t>(r)], live_[static_cast<std::size_t>(r)]);
    if (r > 0) receive_moves(r, plan.moves, mover);
  }
  length_ = 0;
  for (const std::vector<Live>& run : live_)
    for (const Live& live : run) length_ += std::popcount(live.slots);
  const bool fits = rebuild_frames();
  KVASIR_CHECK(fits || runs() == 1);  // the other runs have no holes
  if (runs() == 1 && (!fits || compaction_due())) compact_live(original_, mover);
}

// Takes the leaving tokens out of a run's columns: `live` is what stays. Empty columns go; the dead end of the newest
// one is free again, so that a ring whose newest token is replaced has no hole.
void LaneGroup::release_leaving(Run& run, std::vector<Live>& live) {
  live.clear();
  auto leaving = leaving_.begin();
  Column** at = &run.head;
  run.tail = nullptr;
  while (*at != nullptr) {
    Column* column = *at;
    SlotMask slots = live_slots(*column);
    leaving = std::lower_bound(leaving, leaving_.end(), column->first);
    const TokenIndex last = column->id(column->used - 1);
    for (; leaving != leaving_.end() && *leaving <= last; ++leaving) slots &= ~column->slots_of(*leaving, *leaving + 1);
    if (slots == 0) {
      *at = column->next;
      destroy_column(column);
      --run.columns;
    } else {
      live.push_back({column, slots});
      run.tail = column;
      at = &column->next;
    }
  }
  if (!live.empty()) live.back().column->used = static_cast<int>(std::bit_width(live.back().slots));
}

LaneGroup::Place LaneGroup::locate(TokenIndex id, int runs) const {
  for (int r = 0; r < runs; ++r)
    for (Column* column = runs_[static_cast<std::size_t>(r)].head; column != nullptr; column = column->next)
      if (const SlotMask slot = column->slots_of(id, id + 1) & live_slots(*column); slot != 0)
        return {column, std::countr_zero(slot)};
  KVASIR_CHECK(false);
  return {};
}

void LaneGroup::receive_moves(int number, std::span<const KeepPlan::Move> moves, const SlotMover& mover) {
  Run& run = runs_[static_cast<std::size_t>(number)];
  std::vector<Live>& live = live_[static_cast<std::size_t>(number)];
  copies_.clear();
  for (const KeepPlan::Move& move : moves) {
    if (move.run != number) continue;
    if (run.tail == nullptr || run.tail->used == pool_->shape().slots) {
      KVASIR_CHECK(spare_ != nullptr || (budget_->available() >= column_bytes()));
      Column* column = nullptr;
      if (spare_ != nullptr) {
        column = std::exchange(spare_, spare_->next);
        --spares_;
      } else {
        // A column that this run has just given back: the ring has come round.
        KVASIR_CHECK(budget_->try_charge(column_bytes()));
        column = make_column();
        KVASIR_CHECK(pool_->try_allocate({mutable_pages(column), column->pages.size()}));
      }
      column->base = run.tail != nullptr ? run.tail->base + pool_->shape().slots : 0;
      column->first = move.id;
      column->used = 0;
      link(run, column);
      live.push_back({column, 0});
    }
    Column& to = *run.tail;
    const Place from = locate(move.id, number);
    const int slot = to.used++;
    mutable_offsets(&to)[slot] = static_cast<std::uint32_t>(move.id - to.first);
    live.back().slots |= slot_range(slot, slot + 1);
    add_copy(copies_, {from.column, slot_range(from.slot, from.slot + 1), &to, slot,
                       to.base + slot - (from.column->base + from.slot)});
  }
  if (mover && !copies_.empty()) mover(copies_);
}

// Lays the live slots out in entries and frames anew. False where they are too many.
bool LaneGroup::rebuild_frames() {
  for (const std::vector<Live>& run : live_)
    for (const Live& live : run) live.column->entry_count = 0;
  if (original_) {
    for (const Live& live : live_.front()) {
      live.column->entries[0] = {live.slots, 0};
      live.column->entry_count = 1;
    }
    return true;
  }
  frame_count_ = 0;
  constexpr TokenIndex kEnd = std::numeric_limits<TokenIndex>::max();
  TokenIndex oldest = kEnd;  // of the tokens that were handed on: in run 0, only those that never leave are older
  for (std::size_t r = 1; r < runs_.size(); ++r)
    if (!live_[r].empty()) {
      const Live& first = live_[r].front();
      oldest = std::min(oldest, first.column->id(std::countr_zero(first.slots)));
    }
  Position position = 0;
  bool fits = place_in_frames(0, 0, oldest, position);
  for (int r = runs() - 1; r > 0; --r) fits = fits && place_in_frames(r, 0, kEnd, position);
  if (oldest != kEnd) fits = fits && place_in_frames(0, oldest, kEnd, position);
  if (!fits) return false;
  if (frame_count_ > 0 && newest_frame().run == 0) return true;
  // Tokens to come need a frame of run 0.
  const Column* tail = runs_.front().tail;
  frames_[static_cast<std::size_t>(frame_count_++)] = {tail != nullptr ? length_ - (tail->base + tail->used) : 0, 0, 0};
  return true;
}

// Places the live tokens of a run with ids in [begin, end) at `position` and behind.
bool LaneGroup::place_in_frames(int run, TokenIndex begin, TokenIndex end, Position& position) {
  for (const Live& live : live_[static_cast<std::size_t>(run)]) {
    Column& column = *live.column;
    SlotMask left = live.slots & column.slots_of(begin, end);
    while (left != 0) {
      const int slot = std::countr_zero(left);
      const int count = std::countr_one(left >> slot);
      const Position origin = position - (column.base + slot);
      if (frame_count_ == 0 || newest_frame().run != run || newest_frame().origin != origin) {
        if (frame_count_ == kMaxFrames) return false;
        frames_[static_cast<std::size_t>(frame_count_++)] = {origin, 0, run};
      }
      if (column.entry_count == kMaxColumnEntries) return false;
      const SlotMask slots = slot_range(slot, slot + count);
      column.entries[static_cast<std::size_t>(column.entry_count++)] = {slots, frame_count_ - 1};
      position += count;
      left &= ~slots;
    }
  }
  return true;
}

bool LaneGroup::compaction_due() const {
  std::int64_t written = 0;
  std::int64_t entries = 0;
  for (const Live& live : live_.front()) {
    written += live.column->used;
    entries += live.column->entry_count;
  }
  return (written - length_) * 4 > written || entries > 2 * static_cast<std::int64_t>(live_.front().size());
}

void LaneGroup::gather_live() {
  live_.resize(runs_.size());
  live_.front().clear();
  for (Column* column = runs_.front().head; column != nullptr; column = column->next)
    if (const SlotMask slots = live_slots(*column); slots != 0) live_.front().push_back({column, slots});
}

void LaneGroup::compact(const SlotMover& mover) {
  KVASIR_CHECK(dropping_ == Dropping::kPlans && runs() == 1);
  gather_live();
  compact_live(original_, mover);
}

void LaneGroup::make_positions_compact(const SlotMover& mover) {
  KVASIR_CHECK(dropping_ == Dropping::kPlans && runs() == 1);
  if (!original_) return;
  gather_live();
  compact_live(false, mover);
}

// Moves the live slots to the front of the columns they are in, in place: no slot moves backwards. With compact
// positions the keys come to be rotated by their new position and one offset: that of the oldest tokens. In front of
// the first hole nothing changes then; behind it tokens are copied anyway. So what stays for long, in front of what
// comes and goes, is not rotated again and again, each time with a rounding of 16-bit keys.
void LaneGroup::compact_live(bool original, const SlotMover& mover) {
  const int slots = pool_->shape().slots;
  std::vector<Live>& live = live_.front();
  // Calls visit(column, slot, count, rotation of the first) for series of slots that are rotated consecutively.
  const auto for_each_series = [&](const auto& visit) {
    for (const Live& part : live) {
      for (SlotMask left = part.slots; left != 0;) {
        const int slot = std::countr_zero(left);
        int count = std::countr_one(left >> slot);
        if (original_ && !original)
          for (int next = 1; next < count; ++next)
            if (part.column->id(slot + next) != part.column->id(slot) + next) count = next;
        visit(*part.column, slot, count, original_ ? part.column->id(slot) : part.column->base + slot);
        left &= ~slot_range(slot, slot + count);
      }
    }
  };
  Position offset = 0;
  if (!original && !live.empty()) {
    const Column& oldest = *live.front().column;
    const int slot = std::countr_zero(live.front().slots);
    offset = original_ ? oldest.id(slot) : oldest.base + slot;
  }
  ids_.clear();
  copies_.clear();
  std::int64_t position = 0;
  for_each_series([&](const Column& from, int slot, int count, Position rotation) {
    while (count > 0) {
      const Live& to = live[static_cast<std::size_t>(position / slots)];
      const int to_slot = static_cast<int>(position % slots);
      const int part = std::min(count, slots - to_slot);
      const Position shift = original ? 0 : position + offset - rotation;
      if (to.column != &from || to_slot != slot || shift != 0)
        add_copy(copies_, {&from, slot_range(slot, slot + part), to.column, to_slot, shift});
      for (int s = slot; s < slot + part; ++s) ids_.push_back(from.id(s));
      position += part;
      rotation += part;
      slot += part;
      count -= part;
    }
  });
  if (mover && !copies_.empty()) mover(copies_);

  Run& run = runs_.front();
  for (Column* column = run.head; column != nullptr;) {
    Column* next = column->next;
    column->entry_count = 0;
    column = next;
  }
  std::size_t used = 0;
  for (const Live& part : live) {
    Column& column = *part.column;
    const std::size_t count = std::min(ids_.size() - used, static_cast<std::size_t>(slots));
    if (count == 0) break;
    column.first = ids_[used];
    column.base = offset + static_cast<Position>(used);
    for (std::size_t s = 0; s < count; ++s)
      mutable_offsets(&column)[s] = static_cast<std::uint32_t>(ids_[used + s] - column.first);
    column.used = static_cast<int>(count);
    column.entries[0] = {slot_range(0, column.used), 0};
    column.entry_count = 1;
    used += count;
  }
  // Those that came to be empty go; the others are as new.
  Column* column = std::exchange(run.head, nullptr);
  run = Run{.capacity = run.capacity};
  while (column != nullptr) {
    Column* next = column->next;
    if (column->entry_count > 0) {
      link(run, column);
    } else {
      destroy_column(column);
    }
    column = next;
  }
  original_ = original;
  frame_count_ = 1;
  frames_[0] = {original ? 0 : -offset, 0, 0};
}

}  // namespace kvasir
