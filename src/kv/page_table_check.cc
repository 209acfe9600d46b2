// What must hold of a page table at all times.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {

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
      given_back_.begin < 0 || given_back_.end > next_index_ || (lists_ && given_back_.end != 0))
    return false;
  if (!(!frames_.empty() && frames_.size() <= static_cast<std::size_t>(kMaxFrames))) return false;
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
    if (!(column.entries <= kMaxColumnEntries)) return false;
    for (int s = 1; s < column.used; ++s)
      if (!(index(c, s) > index(c, s - 1))) return false;
    written += column.used;
  }
  int of_runs = 0;
  for (const Run& run : runs_) of_runs += run.columns;
  if (!(count == columns_ && in_runs == of_runs && live_tokens == length_ && retained == length_ &&
        written == written_))
    return false;
  if (!(columns_ <= peak_columns_)) return false;
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
                        bytes_of(frames_) + bytes_of(column_) + pages_.capacity() * sizeof(PageId) +
                        bytes_of(offsets_) + bytes_of(free_) + bytes_of(entry_first_) + bytes_of(spare_);
  for (const Run& run : runs_) bytes += bytes_of(run.entries);
  return bytes;
}

void PageTable::check_invariants(std::span<std::uint32_t> references) const {
  KVASIR_CHECK(is_sound());
  KVASIR_CHECK(bytes_ == (peak_columns_ > 0 ? allocated_bytes() : 0));
  std::vector<bool> unused(column_.size(), false);
  for (const std::uint32_t column : free_) unused[column] = true;
  for (std::uint32_t c = 0; c < column_.size(); ++c)
    if (!unused[c])
      for (const PageId page : pages_of(c)) {
        ++references[static_cast<std::size_t>(page)];
        KVASIR_CHECK(pool_->references(page) == pool_->references(pages_of(c).front()));
      }
}

}  // namespace kvasir
