// Page tables of ranges: holes that grow, the frames on either side of them, and pages that are given back.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// One change of a table of ranges.
class RangeChange {
 public:
  explicit RangeChange(TableTokens& tokens) : tokens_(tokens), columns_(tokens.columns), frames_(tokens.frames) {}

  // Checks that a hole fits. Errors: kUnsupported if there would be more frames or entries than a table has room for.
  Status check_hole(IndexRange range) const {
    const std::uint32_t tail = tokens_.runs.front().tail;
    const bool has_room = tokens_.room(0) > 0;
    std::size_t frames = frames_.size();
    bool fits = true;
    const auto too_many = [&](int entries) { fits = fits && entries <= PageTableLayout::kMaxColumnEntries; };
    // The rest counts the frames, and the entries of boundary columns, after the change.
    bool newest_in_tail = false;
    std::int32_t tail_entries = has_room ? columns_[tail].entries : 0;
    std::int64_t tokens_before = 0;
    bool splits = false;
    // The last frame with tokens before the hole keeps those; tokens behind the hole need a frame of their own.
    const auto begins_before = [&](std::size_t f) {
      return f < frames_.size() && frames_[f].tokens > 0 && tokens_.first_token(f) < range.begin;
    };
    for (std::size_t f = 0; f < frames_.size(); ++f) {
      const bool newest = f + 1 == frames_.size();
      const IndexRange held = tokens_.tokens_of(frames_[f], tokens_before);
      tokens_before += frames_[f].tokens;
      const bool before = !held.empty() && held.begin < range.begin;
      const bool behind = !held.empty() && held.end > range.end;
      const auto entries = tokens_.entries_of(frames_[f]);
      const auto inside = entries.begin() + (tokens_.find_entry(frames_[f], range.begin) - frames_[f].begin);
      bool behind_in_tail = false;
      bool before_in_tail = inside != entries.begin() && std::prev(inside)->column == tail;
      auto entry = inside;
      for (; entry != entries.end() && columns_.first_live(*entry) < range.end; ++entry) {
        const SlotMask low = entry->live & columns_.slots_of(entry->column, 0, range.begin);
        const SlotMask high = entry->live & columns_.slots_of(entry->column, range.end, tokens_.next_index);
        const int change = (low != 0) + (high != 0) - 1;
        if (change > 0) too_many(columns_[entry->column].entries + change);
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
    // The open column keeps room for the entry of later tokens.
    if (has_room) too_many(tail_entries + (newest_in_tail ? 0 : 1));
    // Frames are counted before empty ones are removed: a split needs its place first.
    fits = fits && !(splits && frames_.size() == static_cast<std::size_t>(PageTableLayout::kMaxFrames));
    if (!fits) return unsupported("too many holes in one run of tokens: the cache is due for compaction");
    return {};
  }

  void drop_range(IndexRange range, Realign realign) {
    std::int64_t dropped = 0;
    std::int64_t tokens_before = 0;  // of the frames so far, before the change
    const auto shift = [&](TableTokens::Frame& frame, std::int64_t by) {
      (realign == Realign::kFrames ? frame.origin : frame.rotation) -= by;
    };
    for (std::size_t f = 0; f < frames_.size(); ++f) {
      const IndexRange held = tokens_.tokens_of(frames_[f], tokens_before);
      tokens_before += frames_[f].tokens;
      shift(frames_[f], dropped);
      const std::size_t before = frames_.size();
      const std::int64_t count = tokens_.drop_from_frame(f, range, held);
      dropped += count;
      if (frames_.size() > before) {
        shift(frames_[++f], count);  // it began as a copy of the frame before
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
        // The newest tokens leave: later tokens need a frame of their own.
        TableTokens::Frame next = frames_[f];
        next.begin = next.end;
        next.tokens = 0;
        shift(next, count);
        frames_.push_back(next);
        break;
      }
    }
  }

  // Rotates the keys of all tokens behind a hole by its retained tokens. REQUIRES: their pages are the table's own.
  void rotate_behind(IndexRange hole) {
    PageStore* store = columns_.pages().pool().store();
    if (store == nullptr) return;
    std::vector<SlotRotation> rotations;
    for (const TableTokens::Frame& frame : frames_)
      for (const PageEntry& entry : tokens_.entries_of(frame))
        if (const SlotMask slots = entry.live & columns_.slots_of(entry.column, hole.end, tokens_.next_index);
            slots != 0) {
          KVASIR_CHECK(!columns_.pages().is_shared(entry.column));
          if (columns_[entry.column].sealed) columns_.count_encodings(entry.column, slots);
          rotations.push_back({columns_.pages().of(entry.column).data(), slots,
                               columns_[entry.column].live & ~columns_.slots_of(entry.column, hole.begin, hole.end)});
        }
    store->rotate(columns_.pages().rotated_lanes(), rotations, -tokens_.retained_in(hole));
  }

  // Gives back the pages of all columns in `range` that still have them.
  void give_back(IndexRange range) {
    const TokenIndex from = std::max(range.begin, tokens_.given_back.end);
    std::vector<PageEntry>& entries = tokens_.runs.front().entries;
    for (TableTokens::Frame& frame : frames_) {
      const std::uint32_t first = tokens_.find_entry(frame, from);
      std::uint32_t last = first;
      for (; last < frame.end && columns_[entries[last].column].first < range.end; ++last) {
        columns_[entries[last].column].live &= ~entries[last].live;
        tokens_.unlink_entry(0, entries[last].column);
      }
      // Few entries, those of the sinks, precede the ones that go.
      std::move_backward(entries.begin() + frame.begin, entries.begin() + first, entries.begin() + last);
      frame.begin += last - first;
    }
    tokens_.given_back = range;
  }

 private:
  TableTokens& tokens_;
  TableColumns& columns_;
  std::vector<TableTokens::Frame>& frames_;
};

}  // namespace

Status PageTable::apply(const KeepPlan& plan) {
  if (plan.empty()) return {};
  if (layout().lists) {
    if (layout().runs() == 1) {
      apply_list(plan.drop);
    } else {
      apply_runs(plan);
    }
    return {};
  }
  KVASIR_CHECK(plan.moves.empty() && plan.drop.size() == 1);
  IndexRange range = plan.drop.front();
  range.end = std::min(range.end, next_index());
  if (range.empty() || tokens_.retained_in(range) == 0) return {};
  RangeChange change(tokens_);
  KVASIR_RETURN_IF_ERROR(change.check_hole(range));
  if (plan.realign == Realign::kRotate) change.rotate_behind(range);
  change.drop_range(range, plan.realign);
  return {};
}

void PageTable::give_back() {
  if (layout().lists || layout().window <= 0) return;
  const auto slots = static_cast<TokenIndex>(columns().slots());
  const TokenIndex begin = (layout().sinks + slots - 1) / slots * slots;
  // The next token lies next_index() - t behind token t, and later tokens lie further behind.
  const TokenIndex end = std::max<TokenIndex>(next_index() - layout().window + 1, 0) / slots * slots;
  if (end > std::max(begin, tokens_.given_back.end)) RangeChange(tokens_).give_back({begin, end});
}

void PageTable::give_back_to(TokenIndex end) {
  KVASIR_CHECK(!layout().lists && layout().window == 0 && length() == next_index() && end <= next_index() &&
               end % static_cast<TokenIndex>(columns().slots()) == 0);
  if (end > tokens_.given_back.end) RangeChange(tokens_).give_back({0, end});
}

}  // namespace kvasir
