// Page tables of ranges: holes that grow, and the frames on either side of them.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kv/page_table.h"

namespace kvasir {

// Masks the tokens of `range` out of a frame. If tokens on both sides remain, the frame ends before the hole and a new
// one begins behind it, with the same origin and rotation. The frame may come to be empty. Returns how many were
// masked.
std::int64_t PageTable::drop_from_frame(std::size_t number, IndexRange range) {
  Frame& frame = frames_[number];
  if (frame.begin == frame.end) return 0;
  make_entry_room(frame.run);  // a hole within a column makes two entries of one
  std::vector<PageEntry>& entries = runs_[static_cast<std::size_t>(frame.run)].entries;
  const auto at = [&](std::uint32_t i) -> PageEntry& { return entries[i]; };
  const std::uint32_t first = find_entry(frame, range.begin);
  if (first == frame.end || first_live(at(first)) >= range.end) return 0;
  const SlotMask low = at(first).live & slots_of(at(first).column, 0, range.begin);
  std::uint32_t last = first;  // entry behind the last one concerned
  std::int64_t count = 0;
  SlotMask high = 0;
  for (; last < frame.end && first_live(at(last)) < range.end; ++last) {
    const std::uint32_t column = at(last).column;
    const SlotMask leaves = at(last).live & slots_of(column, range.begin, range.end);
    high = at(last).live & slots_of(column, range.end, next_index_);
    count += std::popcount(leaves);
    column_[column].live &= ~leaves;
  }
  const bool left = first > frame.begin || low != 0;
  const bool right = last < frame.end || high != 0;
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
    // Counts the shorter part: sinks, or what came after the hole.
    const auto count_tokens = [&](std::uint32_t from, std::uint32_t to) {
      std::int64_t tokens = 0;
      for (std::uint32_t e = from; e < to; ++e) tokens += std::popcount(at(e).live);
      return tokens;
    };
    behind.tokens = left_end - frame.begin < behind.end - right_begin
                        ? frame.tokens - count_tokens(frame.begin, left_end)
                        : count_tokens(right_begin, behind.end);
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

Status PageTable::check_hole(IndexRange range) const {
  // The frame that holds tokens before the hole keeps them; tokens behind it need a frame of their own.
  std::size_t split = frames_.size();
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    const auto entries = entries_of(frames_[f]);
    if (!entries.empty() && first_live(entries.front()) < range.begin) split = f;
  }
  const std::uint32_t tail = tail_.front();
  const bool has_room = tail != kNone && column_[tail].used < static_cast<int>(slots_);
  std::size_t frames = frames_.size();
  bool fits = true;
  const auto too_many = [&](int entries) { fits = fits && entries <= kMaxColumnEntries; };
  // Frames and entries of boundary columns as they will be.
  bool newest_in_tail = false;
  std::int32_t tail_entries = has_room ? column_[tail].entries : 0;
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    const bool newest = f + 1 == frames_.size();
    const auto entries = entries_of(frames_[f]);
    bool before = false, behind = false;
    bool behind_in_tail = false, before_in_tail = false;
    const auto inside = entries.begin() + (find_entry(frames_[f], range.begin) - frames_[f].begin);
    before = inside != entries.begin();
    before_in_tail = before && std::prev(inside)->column == tail;
    auto entry = inside;
    for (; entry != entries.end() && first_live(*entry) < range.end; ++entry) {
      const SlotMask low = entry->live & slots_of(entry->column, 0, range.begin);
      const SlotMask high = entry->live & slots_of(entry->column, range.end, next_index_);
      before = before || low != 0;
      behind = behind || high != 0;
      const int change = (low != 0) + (high != 0) - 1;
      if (change > 0) too_many(column_[entry->column].entries + change);
      if (entry->column == tail) {
        tail_entries += change;
        before_in_tail = before_in_tail || low != 0;
        behind_in_tail = behind_in_tail || high != 0;
      }
    }
    if (entry != entries.end()) {
      behind = true;
      behind_in_tail = behind_in_tail || entries.back().column == tail;
    }
    const bool splits = f == split && (behind || newest);
    if (splits) ++frames;
    if (!before && !behind && !newest) --frames;
    if (newest) newest_in_tail = splits ? behind_in_tail : (before_in_tail || behind_in_tail);
  }
  // The open column keeps a place for the tokens to come.
  if (has_room) too_many(tail_entries + (newest_in_tail ? 0 : 1));
  // Frames are counted before empty ones are removed: a split needs its place first.
  if (split < frames_.size()) {
    const auto entries = entries_of(frames_[split]);
    const bool splits = split + 1 == frames_.size() || last_live(entries.back()) >= range.end;
    fits = fits && !(splits && frames_.size() == static_cast<std::size_t>(kMaxFrames));
  }
  if (!fits) return unsupported("too many holes in one run of tokens: the cache is due for compaction");
  return {};
}

void PageTable::drop_range(IndexRange range, Realign realign) {
  std::int64_t dropped = 0;
  const auto shift = [&](Frame& frame, std::int64_t by) {
    (realign == Realign::kFrames ? frame.origin : frame.rotation) -= by;
  };
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    shift(frames_[f], dropped);
    const std::size_t before = frames_.size();
    const std::int64_t count = drop_from_frame(f, range);
    dropped += count;
    if (frames_.size() > before) {
      shift(frames_[++f], count);  // made with the frame's own
      continue;
    }
    const auto entries = entries_of(frames_[f]);
    const bool newest = f + 1 == frames_.size();
    if (entries.empty()) {
      if (newest) {
        shift(frames_[f], count);
      } else if (count > 0) {
        frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(f--));
      }
    } else if (count > 0 && first_live(entries.front()) >= range.end) {
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
        rotations.push_back({pages_of(entry.column).data(), slots});
      }
  pool_->store()->rotate(lanes_, rotations, -retained_in(hole));
}

}  // namespace kvasir
