// Page tables of ranges: holes that grow, and the frames on either side of them.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kv/page_table.h"

namespace kvasir {

// Masks the tokens of `range` out of a frame whose tokens lie in `held` (tokens_of). If tokens on both sides remain,
// the frame ends before the hole and a new one begins behind it, with the same origin and rotation. The frame may come
// to be empty. Returns how many were dropped, those without pages included.
std::int64_t PageTable::drop_from_frame(std::size_t number, IndexRange range, IndexRange held) {
  Frame& frame = frames_[number];
  if (held.begin >= range.end || held.end <= range.begin || frame.tokens == 0) return 0;
  make_entry_room(frame.run);  // a hole within a column makes two entries of one
  std::vector<PageEntry>& entries = runs_[static_cast<std::size_t>(frame.run)].entries;
  const auto at = [&](std::uint32_t i) -> PageEntry& { return entries[i]; };
  const std::uint32_t first = find_entry(frame, range.begin);
  std::uint32_t last = first;  // entry behind the last one concerned
  std::int64_t count = 0;
  SlotMask low = 0, high = 0;
  for (; last < frame.end && first_live(at(last)) < range.end; ++last) {
    const std::uint32_t column = at(last).column;
    const SlotMask leaves = at(last).live & slots_of(column, range.begin, range.end);
    if (last == first) low = at(last).live & slots_of(column, 0, range.begin);
    high = at(last).live & slots_of(column, range.end, next_index_);
    count += std::popcount(leaves);
    column_[column].live &= ~leaves;
  }
  if (!lists_) count = IndexRange{std::max(held.begin, range.begin), std::min(held.end, range.end)}.size();
  if (count == 0) return 0;
  const bool left = held.begin < range.begin;
  const bool right = held.end > range.end;
  // What stays of the entries concerned: at most the first one, and the last one.
  for (std::uint32_t e = first; e < last; ++e) {
    const bool stays = (e == first && low != 0) || (e == last - 1 && high != 0);
    if (!stays) unlink_entry(frame.run, at(e).column);
  }
  std::uint32_t left_end = first;
  std::uint32_t right_begin = last;
  if (low != 0 && high != 0 && first == last - 1) {
    PageEntry upper = at(first);
    upper.live = high;
    at(first).live = low;
    entries.insert(entries.begin() + first + 1, upper);
    ++column_[upper.column].entries;
    for (std::size_t f = number; f < frames_.size(); ++f)
      if (frames_[f].run == frame.run) frames_[f].end += 1, frames_[f].begin += f > number ? 1 : 0;
    left_end = right_begin = first + 1;
  } else {
    if (low != 0) at(left_end++).live = low;
    if (high != 0) at(--right_begin).live = high;
  }
  frame.tokens -= count;
  length_ -= count;
  if (left && right) {
    KVASIR_CHECK(frames_.size() < static_cast<std::size_t>(kMaxFrames));
    Frame behind = frame;
    behind.begin = right_begin;
    behind.tokens = 0;
    if (!lists_) {
      behind.tokens = held.end - range.end;
    } else {
      for (std::uint32_t e = behind.begin; e < behind.end; ++e) behind.tokens += std::popcount(at(e).live);
    }
    frame.tokens -= behind.tokens;
    frame.end = left_end;
    frames_.insert(frames_.begin() + static_cast<std::ptrdiff_t>(number) + 1, behind);
  } else if (right) {
    frame.begin = right_begin;
  } else if (left) {
    frame.end = left_end;
  } else {
    frame.begin = frame.end;
  }
  return count;
}

void PageTable::give_back() {
  if (lists_ || layout_.window <= 0) return;
  const auto slots = static_cast<TokenIndex>(slots_);
  const TokenIndex begin = (layout_.sinks + slots - 1) / slots * slots;
  // The next token's distance from token t is next_index_ - t, and that of later ones is more.
  const TokenIndex end = std::max<TokenIndex>(next_index_ - layout_.window + 1, 0) / slots * slots;
  if (end <= std::max(begin, given_back_.end)) return;
  give_back_range({begin, end});
}

void PageTable::give_back_to(TokenIndex end) {
  KVASIR_CHECK(!lists_ && layout_.window == 0 && length_ == next_index_ && end <= next_index_ &&
               end % static_cast<TokenIndex>(slots_) == 0);
  if (end > given_back_.end) give_back_range({0, end});
}

// All before range.end that was not given back yet.
void PageTable::give_back_range(IndexRange range) {
  const TokenIndex from = std::max(range.begin, given_back_.end);
  std::vector<PageEntry>& entries = runs_.front().entries;
  for (Frame& frame : frames_) {
    const std::uint32_t first = find_entry(frame, from);
    std::uint32_t last = first;
    for (; last < frame.end && column_[entries[last].column].first < range.end; ++last) {
      column_[entries[last].column].live &= ~entries[last].live;
      unlink_entry(0, entries[last].column);
    }
    // Few entries stand before those that go: the sinks'.
    std::move_backward(entries.begin() + frame.begin, entries.begin() + first, entries.begin() + last);
    frame.begin += last - first;
  }
  given_back_ = range;
}

Status PageTable::check_hole(IndexRange range) const {
  const std::uint32_t tail = tail_.front();
  const bool has_room = tail != kNone && column_[tail].used < static_cast<int>(slots_);
  std::size_t frames = frames_.size();
  bool fits = true;
  const auto too_many = [&](int entries) { fits = fits && entries <= kMaxColumnEntries; };
  // Frames and entries of boundary columns as they will be.
  bool newest_in_tail = false;
  std::int32_t tail_entries = has_room ? column_[tail].entries : 0;
  std::int64_t tokens_before = 0;
  bool splits = false;
  // The last frame with tokens before the hole keeps them; tokens behind it need a frame of their own.
  const auto begins_before = [&](std::size_t f) {
    return f < frames_.size() && frames_[f].tokens > 0 && first_token(f) < range.begin;
  };
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    const bool newest = f + 1 == frames_.size();
    const IndexRange held = tokens_of(frames_[f], tokens_before);
    tokens_before += frames_[f].tokens;
    const bool before = !held.empty() && held.begin < range.begin;
    const bool behind = !held.empty() && held.end > range.end;
    const auto entries = entries_of(frames_[f]);
    const auto inside = entries.begin() + (find_entry(frames_[f], range.begin) - frames_[f].begin);
    bool behind_in_tail = false;
    bool before_in_tail = inside != entries.begin() && std::prev(inside)->column == tail;
    auto entry = inside;
    for (; entry != entries.end() && first_live(*entry) < range.end; ++entry) {
      const SlotMask low = entry->live & slots_of(entry->column, 0, range.begin);
      const SlotMask high = entry->live & slots_of(entry->column, range.end, next_index_);
      const int change = (low != 0) + (high != 0) - 1;
      if (change > 0) too_many(column_[entry->column].entries + change);
      if (entry->column == tail) {
        tail_entries += change;
        before_in_tail = before_in_tail || low != 0;
        behind_in_tail = behind_in_tail || high != 0;
      }
    }
    if (entry != entries.end()) behind_in_tail = behind_in_tail || entries.back().column == tail;
    const bool is_split = before && !begins_before(f + 1);
    const bool splits_off = is_split && (behind || newest);
    if (splits_off) ++frames;
    splits = splits || (is_split && (newest || held.end > range.end));
    if (!before && !behind && !newest) --frames;
    if (newest) newest_in_tail = splits_off ? behind_in_tail : (before_in_tail || behind_in_tail);
  }
  // The open column keeps a place for the tokens to come.
  if (has_room) too_many(tail_entries + (newest_in_tail ? 0 : 1));
  // Frames are counted before empty ones are removed: a split needs its place first.
  fits = fits && !(splits && frames_.size() == static_cast<std::size_t>(kMaxFrames));
  if (!fits) return unsupported("too many holes in one run of tokens: the cache is due for compaction");
  return {};
}

void PageTable::drop_range(IndexRange range, Realign realign) {
  std::int64_t dropped = 0;
  std::int64_t tokens_before = 0;  // of the frames so far, as they were
  const auto shift = [&](Frame& frame, std::int64_t by) {
    (realign == Realign::kFrames ? frame.origin : frame.rotation) -= by;
  };
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    const IndexRange held = tokens_of(frames_[f], tokens_before);
    tokens_before += frames_[f].tokens;
    shift(frames_[f], dropped);
    const std::size_t before = frames_.size();
    const std::int64_t count = drop_from_frame(f, range, held);
    dropped += count;
    if (frames_.size() > before) {
      shift(frames_[++f], count);  // made with the frame's own
      continue;
    }
    const bool newest = f + 1 == frames_.size();
    if (frames_[f].tokens == 0) {
      if (newest) {
        shift(frames_[f], count);
      } else if (count > 0) {
        frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(f--));
      }
    } else if (count > 0 && held.begin >= range.begin) {
      shift(frames_[f], count);
    } else if (newest && count > 0) {
      // The newest tokens left: those to come need a frame of their own.
      Frame next = frames_[f];
      next.begin = next.end;
      next.tokens = 0;
      shift(next, count);
      frames_.push_back(next);
      break;
    }
  }
}

// Rotates the keys of all tokens behind a hole by what it closes. REQUIRES: their pages are the table's own.
void PageTable::rotate_behind(IndexRange hole) {
  if (pool_->store() == nullptr) return;
  std::vector<SlotRotation> rotations;
  for (const Frame& frame : frames_)
    for (const PageEntry& entry : entries_of(frame))
      if (const SlotMask slots = entry.live & slots_of(entry.column, hole.end, next_index_); slots != 0) {
        KVASIR_CHECK(!is_shared(entry.column));
        if (column_[entry.column].sealed) count_encodings(entry.column, slots);
        rotations.push_back({pages_of(entry.column).data(), slots,
                             column_[entry.column].live & ~slots_of(entry.column, hole.begin, hole.end)});
      }
  pool_->store()->rotate(lanes_, rotations, -retained_in(hole));
}

}  // namespace kvasir
