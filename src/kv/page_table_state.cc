// The layout of a page table as bytes, and the pages of whole columns that tables share with a cache of prefixes.
#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/status.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// More than any table has: a file that says more is damaged.
constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 32;

Status damaged() {
  return data_loss("the saved page table contradicts itself");
}

}  // namespace

std::vector<std::uint32_t> PageTable::columns_in_order() const {
  std::vector<std::uint32_t> columns;
  std::vector<bool> unused(column_.size(), false);
  for (const std::uint32_t column : free_) unused[column] = true;
  for (const std::uint32_t column : spare_) unused[column] = true;
  for (std::uint32_t column = 0; column < column_.size(); ++column)
    if (!unused[column]) columns.push_back(column);
  // Handles say nothing about age. Columns of different runs may begin with the same token; a restored table has its
  // handles in this order, so the order of those stays what it was.
  std::ranges::stable_sort(columns, {}, [&](std::uint32_t c) { return column_[c].first; });
  return columns;
}

void PageTable::save(ByteWriter& out) const {
  const std::vector<std::uint32_t> columns = columns_in_order();
  std::vector<std::uint32_t> number(column_.size(), kNone);  // as saved
  for (std::uint32_t i = 0; i < columns.size(); ++i) number[columns[i]] = i;
  out.put(next_index_);
  out.put(length_);
  out.put(original_);
  out.put(given_back_.begin);
  out.put(given_back_.end);
  out.put(static_cast<std::uint64_t>(columns.size()));
  if (layout_.encoded())
    for (const std::uint32_t c : columns) out.put(column_[c].sealed);
  for (const std::uint32_t c : columns) {
    const Column& column = column_[c];
    out.put(column.live);
    out.put(column.ordinal);
    out.put(column.first);
    out.put(column.base);
    out.put(column.used);
    if (lists_) out.put_values(std::span(offset(c), static_cast<std::size_t>(column.used)));
    if (layout_.encoded()) out.put_values(std::span(encodings(c), static_cast<std::size_t>(column.used)));
  }
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    out.put(runs_[r].next_ordinal);
    out.put(tail_[r] != kNone ? number[tail_[r]] : kNone);
  }
  out.put(static_cast<std::uint32_t>(frames_.size()));
  for (const Frame& frame : frames_) {
    out.put(frame.origin);
    out.put(frame.rotation);
    out.put(frame.run);
    out.put(frame.tokens);
    out.put(static_cast<std::uint64_t>(frame.end - frame.begin));
    for (const PageEntry& entry : entries_of(frame)) {
      out.put(entry.live);
      out.put(number[entry.column]);
    }
  }
}

Status PageTable::restore(ByteReader& in) {
  KVASIR_RETURN_IF_ERROR(columns_ == 0 && next_index_ == 0 ? Status() : damaged());
  ByteReader ahead = in;
  TokenIndex next = 0;
  std::int64_t length = 0;
  bool original = false;
  IndexRange given_back;
  std::uint64_t columns = 0;
  const std::size_t least = 36 + (lists_ ? sizeof(std::uint32_t) : 0);
  if (!ahead.get(next) || !ahead.get(length) || !ahead.get(original) || !ahead.get(given_back.begin) ||
      !ahead.get(given_back.end) || !ahead.get_count(columns, kMostColumns, least))
    return damaged();
  std::vector<char> sealed(columns, 0);
  if (layout_.encoded())
    for (char& is_sealed : sealed)
      if (bool value = false; ahead.get(value)) is_sealed = value ? 1 : 0;
  if (!ahead.ok()) return damaged();
  const auto count_sealed = static_cast<std::uint64_t>(std::ranges::count(sealed, 1));
  const auto lanes = static_cast<std::uint64_t>(lanes_);
  const std::uint64_t bytes = bytes_of_columns(columns, columns - (layout_.encoded() ? count_sealed : 0)) +
                              bytes_at(lanes_, static_cast<int>(slots_), layout_, static_cast<std::int64_t>(columns));
  if (!pool_->budget().make_available(bytes)) return kv_memory_full(budget(), bytes);
  PageRefs fresh(pool_);
  PageRefs fresh_sealed(pool_);
  constexpr PageContent kUndefined = PageContent::kUndefined;
  if (!fresh.try_allocate_columns(columns - count_sealed, lanes, layout_.classes.open, kUndefined) ||
      !fresh_sealed.try_allocate_columns(count_sealed, lanes, layout_.classes.sealed, kUndefined))
    return kv_memory_full(budget(), bytes);
  reserve_columns(static_cast<std::int64_t>(columns));
  std::uint64_t taken[2] = {0, 0};
  for (std::uint64_t c = 0; c < columns; ++c) {
    const bool is_sealed = sealed[c] != 0;
    const std::uint32_t column =
        take_column(is_sealed ? fresh_sealed : fresh, std::exchange(taken[is_sealed], taken[is_sealed] + lanes));
    column_[column].sealed = is_sealed;
  }
  if (restore_arrays(in) && is_sound()) return {};
  PageTable empty(lanes_, pool_, layout_);
  *this = std::move(empty);
  return damaged();
}

// Into columns 0, 1, ... that have their pages.
bool PageTable::restore_arrays(ByteReader& in) {
  std::uint64_t columns = 0;
  in.get(next_index_);
  in.get(length_);
  in.get(original_);
  in.get(given_back_.begin);
  in.get(given_back_.end);
  in.get(columns);
  if (layout_.encoded())
    for (std::uint64_t c = 0; c < columns; ++c)
      if (bool sealed = false; !in.get(sealed)) return false;
  // Bounds that keep the arithmetic of indices and positions from overflowing.
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  if (!in.ok() || next_index_ < 0 || next_index_ > kMost || (given_back_.end != 0 && layout_.window <= 0) ||
      (original_ && !layout_.original_positions))
    return false;
  written_ = 0;
  for (std::uint32_t c = 0; c < columns; ++c) {
    Column& column = column_[c];
    in.get(column.live);
    in.get(column.ordinal);
    in.get(column.first);
    in.get(column.base);
    in.get(column.used);
    if (!in.ok() || column.used < 1 || column.used > static_cast<std::int32_t>(slots_)) return false;
    if (column.sealed && column.used != static_cast<std::int32_t>(slots_)) return false;
    if (column.first < 0 || column.first > kMost || std::abs(column.base) > kMost) return false;
    if (lists_ && !in.get_values(std::span(offset(c), static_cast<std::size_t>(column.used)))) return false;
    if (layout_.encoded() && !in.get_values(std::span(encodings(c), static_cast<std::size_t>(column.used))))
      return false;
    written_ += column.used;
  }
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    in.get(runs_[r].next_ordinal);
    if (!in.get(tail_[r]) || (tail_[r] != kNone && tail_[r] >= columns)) return false;
  }
  std::uint32_t frames = 0;
  if (!in.get(frames) || frames == 0 || frames > static_cast<std::uint32_t>(most_frames())) return false;
  frames_.clear();
  std::vector<bool> seen(columns, false);
  for (std::uint32_t f = 0; f < frames; ++f) {
    Frame frame;
    std::uint64_t entries = 0;
    in.get(frame.origin);
    in.get(frame.rotation);
    in.get(frame.run);
    if (!in.get(frame.tokens) || frame.tokens < 0 || frame.tokens > next_index_) return false;
    if (!in.get_count(entries, columns, sizeof(SlotMask) + sizeof(std::uint32_t))) return false;
    if (frame.run < 0 || frame.run >= runs() || std::abs(frame.origin) > kMost || std::abs(frame.rotation) > kMost)
      return false;
    std::vector<PageEntry>& of_run = runs_[static_cast<std::size_t>(frame.run)].entries;
    frame.begin = frame.end = static_cast<std::uint32_t>(of_run.size());
    for (std::uint64_t e = 0; e < entries; ++e) {
      PageEntry entry;
      if (!in.get(entry.live) || !in.get(entry.column) || entry.column >= columns || entry.live == 0) return false;
      Column& column = column_[entry.column];
      if (of_run.size() == of_run.capacity() || ++column.entries > most_column_entries()) return false;
      if (!seen[entry.column]) ++runs_[static_cast<std::size_t>(frame.run)].columns;
      seen[entry.column] = true;
      entry.ordinal = column.ordinal;
      of_run.push_back(entry);
      if (original_) entry_first_.push_back(column.first);
      ++frame.end;
    }
    frames_.push_back(frame);
  }
  // The open column of a table of ranges may hold nothing any more.
  for (std::uint32_t c = 0; c < columns; ++c)
    if (!seen[c]) {
      if (lists_ || c != tail_.front()) return false;
      ++runs_.front().columns;
    }
  if (!in.ok()) return false;
  // Sinks and a window.
  if (runs_.size() > 1 && std::ranges::count(frames_, 0, &Frame::run) > 2) return false;
  for (int r = 1; r < runs(); ++r)
    if (std::ranges::count(frames_, r, &Frame::run) > 1) return false;
  // Indices in a list are relative to the first of their column.
  constexpr TokenIndex kMostOffset = TokenIndex{1} << 31;
  return !lists_ || tail_.front() == kNone || next_index_ - column_[tail_.front()].first < kMostOffset;
}

Status PageTable::adopt(std::span<const PageId> pages) {
  KVASIR_CHECK(next_index_ == 0 && columns_ == 0 && runs_.size() == 1 && layout_.recent == 0);
  const auto lanes = static_cast<std::size_t>(lanes_);
  const auto columns = static_cast<std::int64_t>(pages.size() / lanes);
  KVASIR_CHECK(pages.size() % lanes == 0);
  if (columns == 0) return {};
  const std::uint64_t bytes = bytes_at(lanes_, static_cast<int>(slots_), layout_, columns);
  if (!pool_->budget().make_available(bytes)) return kv_memory_full(budget(), bytes);
  PageRefs shared(pool_);
  shared.add(pages);
  reserve_columns(columns);
  Frame& frame = frames_.back();
  const auto slots = static_cast<int>(slots_);
  for (std::size_t i = 0; i < static_cast<std::size_t>(columns); ++i) {
    const std::uint32_t handle = take_column(shared, i * lanes);
    start_column(handle, 0, next_index_, length_);
    Column& column = column_[handle];
    push_entry(frame, {slot_range(0, slots), column.ordinal, handle});
    column.live = slot_range(0, slots);
    column.used = slots;
    column.sealed = layout_.encoded();
    if (column.sealed) std::fill_n(encodings(handle), slots_, std::uint8_t{1});
    if (lists_) std::iota(offset(handle), offset(handle) + slots, std::uint32_t{0});
    frame.tokens += slots;
    next_index_ += slots;
    length_ += slots;
    written_ += slots;
  }
  return {};
}

std::int64_t PageTable::whole_columns() const {
  if (length_ != next_index_ || !given_back_.empty() || runs_.size() > 1 || frames_.size() > 1) return 0;
  const Frame& frame = frames_.front();
  if (frame.origin != 0 || frame.rotation != 0) return 0;
  std::int64_t columns = next_index_ / static_cast<TokenIndex>(slots_);
  // Of a table whose pages are encoded, those that are.
  if (layout_.encoded())
    for_each_open([&](std::uint32_t c) { columns -= column_[c].used == static_cast<int>(slots_); });
  return columns;
}

}  // namespace kvasir
