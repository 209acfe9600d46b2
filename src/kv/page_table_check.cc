// What must hold of a page table at all times.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {

// Whether the columns of each run are numbered as append and moves number them, and hold what their numbers say.
// REQUIRES: entries lie within their runs, and refer to columns.
bool PageTable::columns_are_sound() const {
  const auto slots = static_cast<TokenIndex>(slots_);
  std::vector<std::size_t> run_of(column_.size(), runs_.size());
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    std::uint32_t previous = kNone;
    for (const Frame& frame : frames_) {
      if (frame.run != static_cast<int>(r)) continue;
      std::uint32_t previous_of_frame = kNone;
      for (const PageEntry& entry : entries_of(frame)) {
        const std::uint32_t c = entry.column;
        const Column& column = column_[c];
        if (column.ordinal >= runs_[r].next_ordinal || (run_of[c] != runs_.size() && run_of[c] != r)) return false;
        run_of[c] = r;
        if (c == previous_of_frame || (original_ && column.entries != 1)) return false;
        if (previous != kNone && c != previous) {
          // Ordinals and indices ascend. A column of a ring may have become empty, and its place is left out.
          const Column& before = column_[previous];
          if (before.ordinal >= column.ordinal || index(previous, before.used - 1) >= column.first) return false;
          if (r > 0 && (before.base >= column.base || (column.base - before.base) % slots != 0)) return false;
        }
        previous = previous_of_frame = c;
      }
    }
    // No index is that of a token to come.
    if (previous != kNone && index(previous, column_[previous].used - 1) >= next_index_) return false;
  }
  if (lists_) return true;
  // Ranges: column i has held the tokens from i * slots on, and is where it was written.
  const std::uint64_t next = runs_.front().next_ordinal;
  if (next != static_cast<std::uint64_t>((next_index_ + slots - 1) / slots)) return false;
  const auto is_column = [&](std::uint32_t c) {
    const Column& column = column_[c];
    return column.ordinal < next && column.first == static_cast<TokenIndex>(column.ordinal) * slots &&
           column.base == column.first && column.used == std::min(slots, next_index_ - column.first);
  };
  for (const Frame& frame : frames_)
    for (const PageEntry& entry : entries_of(frame))
      if (!is_column(entry.column) || (entry.column != tail_.front() && column_[entry.column].ordinal + 1 == next))
        return false;
  const std::uint32_t tail = tail_.front();
  if (tail == kNone) return next_index_ % slots == 0;
  return is_column(tail) && column_[tail].ordinal + 1 == next &&
         (column_[tail].entries > 0 || column_[tail].used < static_cast<std::int32_t>(slots_));
}

// Whether there are the frames that holes make, and no others. REQUIRES: as columns_are_sound.
bool PageTable::frames_are_sound() const {
  if (original_ && !(frames_.size() == 1 && frames_.front().origin == 0)) return false;
  std::int64_t before = 0;
  TokenIndex end = -1;  // of the frame before
  for (std::size_t f = 0; f < frames_.size(); ++f) {
    const Frame& frame = frames_[f];
    if (lists_) {
      if (frame.rotation != 0) return false;
      if (runs_.size() == 1 && f > 0 && frames_[f - 1].run == frame.run && frames_[f - 1].origin == frame.origin)
        return false;
      continue;
    }
    // A hole lies between two frames.
    const IndexRange tokens = tokens_of(frame, before);
    before += frame.tokens;
    if (tokens.begin <= end || tokens.begin < 0 || tokens.end > next_index_) return false;
    end = tokens.end;
    for (const PageEntry& entry : entries_of(frame))
      if (first_live(entry) < tokens.begin || last_live(entry) >= tokens.end) return false;
  }
  // The next token is written behind the newest one, at the next position.
  if (!lists_ || original_ || tail_.front() == kNone) return true;
  const Column& tail = column_[tail_.front()];
  if (tail.sealed) return true;  // it begins a column, wherever the dead end of this one lies
  return tail.base + tail.used + newest_frame().origin == length_;
}

bool PageTable::is_sound() const {
  std::int64_t live_tokens = 0, written = 0;
  std::vector<std::int32_t> entries_of_column(column_.size(), 0);
  std::vector<SlotMask> live_of_column(column_.size(), 0);
  std::vector<std::pair<TokenIndex, Position>> tokens;  // index, position
  std::int64_t retained = 0;                            // by the frames so far
  std::int64_t without_pages = 0;                       // of these
  std::vector<std::int64_t> without_pages_before;       // [tokens]
  const auto slots = static_cast<TokenIndex>(slots_);
  if (given_back_.end < given_back_.begin || given_back_.begin % slots != 0 || given_back_.end % slots != 0 ||
      given_back_.begin < 0 || given_back_.end > next_index_ ||
      ((lists_ || given_back_.empty()) && given_back_.end != 0))
    return false;
  // Neither sinks nor what the next token attends to.
  if (!given_back_.empty() && (given_back_.begin < layout_.sinks || given_back_.begin - layout_.sinks >= slots ||
                               given_back_.end > next_index_ - layout_.window + 1))
    return false;
  if (!(!frames_.empty() && frames_.size() <= static_cast<std::size_t>(most_frames()))) return false;
  if (!(frames_.back().run == 0)) return false;
  const std::vector<PageEntry>& entered = runs_.front().entries;
  if (!(entry_first_.size() == (original_ ? entered.size() : 0))) return false;
  for (std::size_t e = 0; e < entry_first_.size(); ++e)
    if (!(entry_first_[e] == column_[entered[e].column].first)) return false;
  std::vector<std::uint32_t> reached(runs_.size(), 0);  // entries of each run, frame by frame
  for (const Frame& frame : frames_) {
    const auto r = static_cast<std::size_t>(frame.run);
    if (!(frame.begin >= reached[r] && frame.end >= frame.begin && frame.end <= runs_[r].entries.size())) return false;
    reached[r] = frame.end;
    if (!(frame.tokens > 0 || &frame == &frames_.back())) return false;
    // Nothing but tokens of ranges can be without a page.
    const IndexRange of_frame = lists_ ? IndexRange{} : tokens_of(frame, retained);
    std::int64_t held =
        IndexRange{std::max(of_frame.begin, given_back_.begin), std::min(of_frame.end, given_back_.end)}.size();
    without_pages += held;
    retained += frame.tokens;
    for (const PageEntry& entry : entries_of(frame)) {
      const Column& column = column_[entry.column];
      if (!(entry.live != 0 && (entry.live & ~slot_range(0, column.used)) == 0)) return false;
      if (!((entry.live & live_of_column[entry.column]) == 0 && entry.ordinal == column.ordinal)) return false;
      live_of_column[entry.column] |= entry.live;
      ++entries_of_column[entry.column];
      for (SlotMask left = entry.live; left != 0; left &= left - 1, ++held) {
        const int slot = std::countr_zero(left);
        const TokenIndex token = index(entry.column, slot);
        if (token >= given_back_.begin && token < given_back_.end) return false;
        tokens.emplace_back(token, stored_rotation(entry.column, slot, frame) + frame.origin);
        without_pages_before.push_back(without_pages);
      }
    }
    if (!(held == frame.tokens)) return false;
    if (!(frame.run == 0 || held <= runs_[r].capacity)) return false;
    live_tokens += held;
  }
  // What pads a sealed column has the index of its last token.
  const auto is_padding = [&](std::uint32_t c, int slot) {
    return column_[c].sealed && layout_.packs() && column_[c].live >> slot == 0 && index(c, slot) == index(c, slot - 1);
  };
  std::vector<bool> unused(column_.size(), false);
  for (const std::uint32_t column : free_) unused[column] = true;
  std::vector<bool> spare(column_.size(), false);
  for (const std::uint32_t column : spare_) spare[column] = true;
  int count = 0, in_runs = 0;
  for (std::uint32_t c = 0; c < column_.size(); ++c) {
    if (unused[c]) continue;
    ++count;
    if (spare[c]) continue;
    ++in_runs;
    const Column& column = column_[c];
    if (!(column.live == live_of_column[c] && column.entries == entries_of_column[c])) return false;
    if (!(column.used > 0 && column.used <= static_cast<int>(slots_))) return false;
    if (!(column.entries > 0 || (!lists_ && c == tail_.front()))) return false;
    if (!(column.entries <= most_column_entries())) return false;
    if (column.sealed && (!layout_.encoded() || column.used != static_cast<int>(slots_))) return false;
    for (int s = 1; s < column.used; ++s)
      if (!(index(c, s) > index(c, s - 1)) && !is_padding(c, s)) return false;
    written += column.used;
  }
  int of_runs = 0;
  for (const Run& run : runs_) of_runs += run.columns;
  if (!(count == columns_ && in_runs == of_runs && live_tokens == length_ && retained == length_ &&
        written == written_))
    return false;
  if (!(columns_ <= peak_columns_)) return false;
  if (!columns_are_sound() || !frames_are_sound()) return false;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    std::uint32_t newest = kNone;
    for (const Frame& frame : frames_)
      if (frame.run == static_cast<int>(r) && frame.begin < frame.end) newest = entries_of(frame).back().column;
    const bool open = !lists_ && tail_[r] != kNone && column_[tail_[r]].used < static_cast<std::int32_t>(slots_);
    if (lists_ && tail_[r] != newest) return false;
    if (open && column_[tail_[r]].first + column_[tail_[r]].used != next_index_) return false;
  }
  // Frames are in order of token, and each retained token stands behind all retained tokens with smaller indices.
  if (!(std::ranges::is_sorted(tokens))) return false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    // A frame may begin with sinks and go on behind tokens without pages.
    const std::int64_t missing = tokens[i].first < given_back_.begin ? 0 : without_pages_before[i];
    if (!(tokens[i].second == (original_ ? tokens[i].first : static_cast<Position>(i) + missing))) return false;
  }
  if (!lists_)
    if (!(next_index_ + newest_frame().rotation + newest_frame().origin == length_)) return false;
  return true;
}

std::uint64_t PageTable::allocated_bytes() const {
  const auto bytes_of = [](const auto& values) { return values.capacity() * sizeof(values[0]); };
  std::uint64_t bytes = sizeof(PageTable) + bytes_of(layout_.run_capacities) + bytes_of(runs_) + bytes_of(tail_) +
                        bytes_of(frames_) + bytes_of(column_) +
                        (pages_.capacity() + open_pages_.capacity()) * sizeof(PageId) + bytes_of(offsets_) +
                        bytes_of(encodings_) + bytes_of(free_) + bytes_of(entry_first_) + bytes_of(spare_);
  for (const Run& run : runs_) bytes += bytes_of(run.entries);
  return bytes;
}

void PageTable::check_invariants(PageCounts& references) const {
  KVASIR_CHECK(is_sound());
  KVASIR_CHECK(bytes_ == (peak_columns_ > 0 ? allocated_bytes() : 0));
  std::vector<bool> unused(column_.size(), false);
  for (const std::uint32_t column : free_) unused[column] = true;
  std::uint64_t shared = 0;
  for (std::uint32_t c = 0; c < column_.size(); ++c)
    if (!unused[c])
      for (const PageId page : pages_of(c)) {
        ++references[page];
        KVASIR_CHECK(page_class(page) == class_of(c));
        KVASIR_CHECK(pool_->references(page) == pool_->references(pages_of(c).front()));
        shared += pool_->references(page) > 1 ? 1 : 0;
      }
  KVASIR_CHECK(shared == pages_.shared());
}

}  // namespace kvasir
