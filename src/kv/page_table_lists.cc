// Page tables of lists: any tokens leave, some move between runs, and what is left is masked, then compacted.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// Adds a move, or extends the last one by it.
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

std::uint64_t slots_in(std::span<const SlotMove> moves) {
  std::uint64_t slots = 0;
  for (const SlotMove& move : moves) slots += static_cast<std::uint64_t>(std::popcount(move.slots));
  return slots;
}

}  // namespace

std::uint64_t PageTable::sharing_reserve(bool append_first) const {
  if (!lists_) return 0;
  std::uint64_t columns = pages_.shared() / static_cast<std::uint64_t>(lanes_);
  std::uint64_t open = columns;
  if (layout_.encoded() && columns > 0) {
    open = 0;
    for_each_open([&](std::uint32_t column) { open += is_shared(column); });
    for (std::size_t r = 1; r < runs_.size(); ++r)
      open += tail_[r] != kNone && !column_[tail_[r]].sealed && is_shared(tail_[r]);
  }
  const std::uint32_t tail = tail_.front();
  const bool has_room = tail != kNone && column_[tail].used < static_cast<std::int32_t>(slots_);
  if (append_first && has_room && is_shared(tail)) --columns, --open;
  // Compaction writes what stays open into fresh pages, where that may be more than one column.
  const auto fresh = static_cast<std::uint64_t>(layout_.recent > 0 && runs_.size() == 1 ? open_capacity() : 0);
  return bytes_of_columns(columns, open) + bytes_of_columns(fresh, fresh);
}

void PageTable::apply_single(std::span<const IndexRange> drop) {
  if (original_) {
    mask_original(drop);
    trim_tail(0);
    if (compaction_due()) {
      gather_columns();
      pack(true, most_frames() / 2);
    }
    return;
  }
  gather_columns();
  mask_columns(drop);
  trim_tail(0);
  const bool fits = rebuild_frames();
  if (!fits || compaction_due()) pack(false, most_frames() / 2);
}

// Original positions: one frame, one entry for each column.
void PageTable::mask_original(std::span<const IndexRange> drop) {
  Frame& frame = frames_.front();
  std::vector<PageEntry>& entries = runs_.front().entries;
  auto entry = entries.begin() + frame.begin;
  const auto end = entries.begin() + frame.end;
  auto first_empty = end;
  for (const IndexRange& range : drop) {
    // The last entry that begins at or before the range may hold tokens of it.
    const std::size_t before = columns_up_to(frame, range.begin, static_cast<std::uint32_t>(entry - entries.begin()));
    entry += before > 0 ? static_cast<std::ptrdiff_t>(before) - 1 : 0;
    for (auto at = entry; at != end && column_[at->column].first < range.end; ++at) {
      const SlotMask leaves = at->live & slots_of(at->column, range.begin, range.end);
      const std::int64_t count = std::popcount(leaves);
      at->live &= ~leaves;
      column_[at->column].live = at->live;
      frame.tokens -= count;
      length_ -= count;
      if (at->live == 0) first_empty = std::min(first_empty, at);
    }
  }
  if (first_empty == end) return;
  auto to = first_empty;
  for (auto from = first_empty; from != end; ++from) {
    if (from->live == 0) {
      unlink_entry(0, from->column);
    } else {
      entry_first_[static_cast<std::size_t>(to - entries.begin())] = column_[from->column].first;
      *to++ = *from;
    }
  }
  frame.end = static_cast<std::uint32_t>(to - entries.begin());
  entries.resize(frame.end);
  entry_first_.resize(frame.end);
}

// The columns of run 0, oldest first, into the scratch.
void PageTable::gather_columns() {
  std::vector<std::uint32_t>& order = pool_->scratch().columns;
  order.clear();
  for (const Frame& frame : frames_)
    for (const PageEntry& entry : entries_of(frame))
      if (order.empty() || order.back() != entry.column) order.push_back(entry.column);
}

// Masks tokens out of the gathered columns; those that come to be empty go. The entries are stale afterwards.
void PageTable::mask_columns(std::span<const IndexRange> drop) {
  std::vector<std::uint32_t>& order = pool_->scratch().columns;
  auto column = order.begin();
  for (const IndexRange& range : drop) {
    column = std::partition_point(column, order.end(),
                                  [&](std::uint32_t c) { return index(c, column_[c].used - 1) < range.begin; });
    for (auto at = column; at != order.end() && column_[*at].first < range.end; ++at) {
      const SlotMask leaves = column_[*at].live & slots_of(*at, range.begin, range.end);
      column_[*at].live &= ~leaves;
      length_ -= std::popcount(leaves);
    }
  }
  std::erase_if(order, [&](std::uint32_t c) {
    if (column_[c].live != 0) return false;
    column_[c].entries = 1;
    unlink_entry(0, c);
    return true;
  });
}

// The dead end of a run's newest column is free again, so that a ring whose newest token is replaced has no hole.
void PageTable::trim_tail(int run) {
  const auto r = static_cast<std::size_t>(run);
  if (runs_.size() == 1 && !original_) {
    const std::vector<std::uint32_t>& order = pool_->scratch().columns;
    tail_[r] = order.empty() ? kNone : order.back();
  } else {
    tail_[r] = kNone;
    for (const Frame& frame : frames_)
      if (frame.run == run && frame.begin != frame.end) tail_[r] = runs_[r].entries[frame.end - 1].column;
  }
  if (tail_[r] == kNone) return;
  Column& tail = column_[tail_[r]];
  if (tail.sealed) return;  // tokens to come begin a column
  const auto used = static_cast<std::int32_t>(std::bit_width(tail.live));
  written_ -= tail.used - used;
  tail.used = used;
}

// Lays the live slots of the gathered columns out in entries and frames. False where they are too many.
bool PageTable::rebuild_frames() {
  Run& run = runs_.front();
  run.entries.clear();
  frames_.clear();
  Position position = 0;
  for (const std::uint32_t c : pool_->scratch().columns) {
    Column& column = column_[c];
    column.entries = 0;
    for (SlotMask left = column.live; left != 0;) {
      const int slot = std::countr_zero(left);
      const int count = std::countr_one(left >> slot);
      const Position origin = position - (column.base + slot);
      if (frames_.empty() || frames_.back().origin != origin) {
        if (frames_.size() == static_cast<std::size_t>(most_frames())) return false;
        const auto begin = static_cast<std::uint32_t>(run.entries.size());
        frames_.push_back({origin, 0, 0, 0, begin, begin});
      }
      if (column.entries == most_column_entries()) return false;
      const SlotMask slots = slot_range(slot, slot + count);
      push_entry(frames_.back(), {slots, column.ordinal, c});
      frames_.back().tokens += count;
      position += count;
      left &= ~slots;
    }
  }
  if (frames_.empty()) frames_.push_back({});
  return true;
}

bool PageTable::compaction_due() const {
  std::int64_t entries = 0;
  for (const Frame& frame : frames_) entries += frame.end - frame.begin;
  return (written_ - length_) * 4 > written_ ||
         (!layout_.packs() && entries > 2 * static_cast<std::int64_t>(runs_.front().columns));
}

void PageTable::compact() {
  KVASIR_CHECK(lists_ && runs_.size() == 1);
  gather_columns();
  pack(original_, kPackedFrames);
}

void PageTable::make_positions_compact() {
  KVASIR_CHECK(lists_ && runs_.size() == 1);
  if (!original_) return;
  gather_columns();
  pack(false, most_frames() / 2);
}

// Compacts the gathered columns.
void PageTable::pack(bool original, int most_frames) {
  if (layout_.packs()) {
    pack_columns(original, most_frames);
  } else {
    compact_columns(original);
  }
}

// Moves the live slots to the front of the gathered columns, in place: no slot moves backwards. With compact positions
// the keys come to be rotated by their new position and one offset: that of the oldest tokens. In front of the first
// hole nothing changes then; behind it tokens are copied anyway. So what stays for long, in front of what comes and
// goes, is not rotated again and again, each time with a rounding of 16-bit keys.
void PageTable::compact_columns(bool original) {
  const auto slots = static_cast<int>(slots_);
  TableScratch& scratch = pool_->scratch();
  const std::vector<std::uint32_t>& order = scratch.columns;
  // Calls visit(column, slot, count, rotation of the first) for series of slots that are rotated consecutively.
  const auto for_each_series = [&](const auto& visit) {
    for (const std::uint32_t c : order) {
      for (SlotMask left = column_[c].live; left != 0;) {
        const int slot = std::countr_zero(left);
        int count = std::countr_one(left >> slot);
        if (original_ && !original)
          for (int next = 1; next < count; ++next)
            if (index(c, slot + next) != index(c, slot) + next) count = next;
        visit(c, slot, count, original_ ? index(c, slot) : column_[c].base + slot);
        left &= ~slot_range(slot, slot + count);
      }
    }
  };
  Position offset = 0;
  if (!original && !order.empty()) {
    const std::uint32_t oldest = order.front();
    const int slot = std::countr_zero(column_[oldest].live);
    offset = original_ ? index(oldest, slot) : column_[oldest].base + slot;
  }
  // Calls visit(position, from, slot, to, to_slot, count, shift) for each series of slots that stay together.
  const auto for_each_part = [&](const auto& visit) {
    std::int64_t position = 0;
    for_each_series([&](std::uint32_t from, int slot, int count, Position rotation) {
      while (count > 0) {
        const auto to = static_cast<std::size_t>(position / slots);
        const int to_slot = static_cast<int>(position % slots);
        const int part = std::min(count, slots - to_slot);
        visit(from, slot, to, to_slot, part, original ? 0 : position + offset - rotation);
        position += part;
        rotation += part;
        slot += part;
        count -= part;
      }
    });
  };
  const auto stays = [&](std::uint32_t from, int slot, std::size_t to, int to_slot, Position shift) {
    return order[to] == from && to_slot == slot && shift == 0;
  };
  scratch.indices.clear();
  scratch.moves.clear();
  for_each_part([&](std::uint32_t from, int slot, std::size_t, int, int count, Position) {
    for (int s = slot; s < slot + count; ++s) scratch.indices.push_back(index(from, s));
  });
  std::size_t last_owned = order.size();
  for_each_part([&](std::uint32_t from, int slot, std::size_t to, int to_slot, int count, Position shift) {
    if (stays(from, slot, to, to_slot, shift)) return;
    if (std::exchange(last_owned, to) != to) own_column(order[to]);
    add_move(scratch.moves,
             {pages_of(from).data(), slot_range(slot, slot + count), pages_of(order[to]).data(), to_slot, shift});
  });
  move_slots(scratch.moves);

  original_ = original;
  Run& run = runs_.front();
  run.entries.clear();
  entry_first_.clear();
  run.columns = 0;
  run.next_ordinal = 0;
  tail_.front() = kNone;
  written_ = 0;
  frames_.assign(1, {original ? 0 : -offset, 0, length_, 0, 0, 0});
  std::size_t used = 0;
  for (const std::uint32_t c : order) {
    const std::size_t count = std::min(scratch.indices.size() - used, slots_);
    if (count == 0) {
      release_column(c);
      continue;
    }
    start_column(c, 0, scratch.indices[used], offset + static_cast<Position>(used));
    Column& column = column_[c];
    for (std::size_t s = 0; s < count; ++s)
      this->offset(c)[s] = static_cast<std::uint32_t>(scratch.indices[used + s] - column.first);
    column.used = static_cast<std::int32_t>(count);
    column.live = slot_range(0, column.used);
    column.entries = 0;
    push_entry(frames_.front(), {column.live, column.ordinal, c});
    written_ += column.used;
    used += count;
  }
}

// From the last run on: what a run hands on is copied before its columns are given back.
void PageTable::apply_runs(const KeepPlan& plan) {
  std::vector<IndexRange>& leaving = pool_->scratch().ranges;
  leaving.assign(plan.drop.begin(), plan.drop.end());
  for (const KeepPlan::Move& move : plan.moves) leaving.push_back({move.index, move.index + 1});
  std::ranges::sort(leaving, {}, &IndexRange::begin);
  const std::int64_t length = length_;
  std::int64_t moved = 0;
  for (int r = runs() - 1; r >= 0; --r) {
    for (std::size_t f = 0; f < frames_.size(); ++f) {
      if (frames_[f].run != r) continue;
      for (const IndexRange& range : leaving) {
        const std::size_t before = frames_.size();
        drop_from_frame(f, range, tokens_of(frames_[f], 0));
        // Later ranges lie behind the hole.
        f += frames_.size() - before;
      }
    }
    trim_tail(r);
    if (r > 0) {
      const std::int64_t held = length_;
      receive_moves(r, plan.moves);
      moved += length_ - held;
    }
  }
  KVASIR_CHECK(moved == static_cast<std::int64_t>(plan.moves.size()) && length_ <= length);
  order_frames_of_runs();
}

PageTable::Place PageTable::locate(TokenIndex token, int runs) const {
  for (const Frame& frame : frames_) {
    if (frame.run >= runs) continue;
    const std::uint32_t found = find_entry(frame, token);
    if (found == frame.end) continue;
    const PageEntry& entry = runs_[static_cast<std::size_t>(frame.run)].entries[found];
    if (const SlotMask slot = entry.live & slots_of(entry.column, token, token + 1); slot != 0)
      return {entry.column, std::countr_zero(slot)};
  }
  KVASIR_CHECK(false);
  return {};
}

void PageTable::move_slots(std::span<const SlotMove> moves) {
  slots_moved_ += slots_in(moves);
  if (pool_->store() != nullptr && !moves.empty()) pool_->store()->move(lanes_, moves);
}

// A column with pages: one that was kept ready, or what a run has just given back.
std::uint32_t PageTable::take_spare(bool sealed) {
  const auto found = std::ranges::find_if(spare_, [&](std::uint32_t c) { return column_[c].sealed == sealed; });
  if (found != spare_.end()) {
    const std::uint32_t column = *found;
    spare_.erase(found);
    return column;
  }
  PageRefs pages(pool_);
  KVASIR_CHECK(
      pages.try_allocate(static_cast<std::size_t>(lanes_), sealed ? layout_.classes.sealed : layout_.classes.open));
  const std::uint32_t column = take_column(pages, 0);
  column_[column].sealed = sealed;
  return column;
}

// A column with open pages for a ring whose newest one is full, which is sealed.
std::uint32_t PageTable::next_ring_column(int run) {
  const std::uint32_t full = tail_[static_cast<std::size_t>(run)];
  if (!layout_.encoded() || full == kNone || column_[full].sealed) return take_spare(false);
  const std::uint32_t next = take_spare(true);
  const PageSeal seal{pages_of(full).data(), pages_of(next).data(), column_[full].live};
  if (pool_->store() != nullptr) pool_->store()->seal(lanes_, std::span(&seal, 1));
  pages_.exchange(first_page(full), first_page(next), static_cast<std::size_t>(lanes_));
  count_encodings(full, column_[full].live);
  column_[full].sealed = true;
  column_[next].sealed = false;
  own_column(next);
  return next;
}

void PageTable::receive_moves(int number, std::span<const KeepPlan::Move> plan) {
  const auto r = static_cast<std::size_t>(number);
  std::vector<SlotMove>& moves = pool_->scratch().moves;
  moves.clear();
  auto frame = std::ranges::find(frames_, number, &Frame::run);
  for (const KeepPlan::Move& move : plan) {
    if (move.run != number) continue;
    if (frame == frames_.end()) {
      KVASIR_CHECK(frames_.size() < static_cast<std::size_t>(kMaxFrames));
      frames_.push_back({0, 0, 0, number, 0, 0});  // order_frames_of_runs gives it its place
      frame = std::prev(frames_.end());
    }
    if (tail_[r] == kNone || column_[tail_[r]].used == static_cast<std::int32_t>(slots_)) {
      // The column that is full now is written before it is sealed.
      move_slots(moves);
      moves.clear();
      const std::uint32_t column = next_ring_column(number);
      start_column(column, number, move.index,
                   tail_[r] != kNone ? column_[tail_[r]].base + static_cast<Position>(slots_) : 0);
    }
    own_column(tail_[r]);
    const Place from = locate(move.index, number);
    Column& to = column_[tail_[r]];
    const int slot = to.used++;
    offset(tail_[r])[slot] = static_cast<std::uint32_t>(move.index - to.first);
    if (layout_.encoded()) encodings(tail_[r])[slot] = encodings(from.column)[from.slot];
    if (frame->begin == frame->end || runs_[r].entries[frame->end - 1].column != tail_[r])
      push_entry(*frame, {0, to.ordinal, tail_[r]});
    runs_[r].entries[frame->end - 1].live |= slot_range(slot, slot + 1);
    to.live |= slot_range(slot, slot + 1);
    ++frame->tokens;
    ++length_;
    ++written_;
    add_move(moves, {pages_of(from.column).data(), slot_range(from.slot, from.slot + 1), pages_of(tail_[r]).data(),
                     slot, to.base + slot - (column_[from.column].base + from.slot)});
  }
  move_slots(moves);
}

// Tokens of run 0 that never leave it, then the other runs from the last to the first, then the rest of run 0; all at
// consecutive positions.
void PageTable::order_frames_of_runs() {
  std::erase_if(frames_, [](const Frame& frame) { return frame.begin == frame.end; });
  TokenIndex oldest = std::numeric_limits<TokenIndex>::max();  // of the tokens that were handed on
  for (const Frame& frame : frames_)
    if (frame.run > 0) oldest = std::min(oldest, first_live(entries_of(frame).front()));
  const auto place = [&](const Frame& frame) {
    if (frame.run > 0) return runs() - frame.run;
    return first_live(entries_of(frame).front()) < oldest ? 0 : runs();
  };
  std::ranges::stable_sort(frames_, {}, place);
  Position position = 0;
  for (Frame& frame : frames_) {
    const PageEntry& first = entries_of(frame).front();
    frame.origin = position - (column_[first.column].base + std::countr_zero(first.live));
    position += frame.tokens;
  }
  if (!frames_.empty() && frames_.back().run == 0) {
    // Without tokens in other runs, the frames of run 0 all come before `oldest`.
    return;
  }
  // Tokens to come need a frame of run 0.
  KVASIR_CHECK(frames_.size() < static_cast<std::size_t>(kMaxFrames));
  const std::uint32_t tail = tail_.front();
  const auto end = static_cast<std::uint32_t>(runs_.front().entries.size());
  const Position origin = tail != kNone ? length_ - (column_[tail].base + column_[tail].used) : 0;
  frames_.push_back({origin, 0, 0, 0, end, end});
}

}  // namespace kvasir
