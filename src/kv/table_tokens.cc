#include "kv/table_tokens.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "base/check.h"

namespace kvasir {

namespace {

// Capacity of a run's array of entries. Twice the columns, so that the gaps between frames are rarely closed.
std::int64_t entry_capacity(std::int64_t columns, std::int64_t run_capacity, int slots, int most_frames) {
  if (run_capacity > 0) columns = std::min(columns, (run_capacity + slots - 1) / slots + 2);
  return columns == 0 ? 0 : 2 * columns + most_frames;
}

// The number of items before the first for which up_to is 0. Each step compares many items: their reads overlap, unlike
// those of a binary search, and after a forward pass none of the items is in a CPU cache.
template <class Item, class UpTo>
std::size_t count_up_to(std::span<const Item> items, const UpTo& up_to) {
  constexpr std::size_t kWays = 16;
  std::size_t begin = 0;
  std::size_t count = items.size();
  while (count > kWays) {
    const std::size_t step = count / kWays;
    std::size_t before = 0;
    for (std::size_t way = 1; way < kWays; ++way) before += up_to(items[begin + way * step]);
    begin += before * step;
    count = before == kWays - 1 ? count - before * step : step;
  }
  std::size_t before = 0;
  for (const Item& item : items.subspan(begin, count)) before += up_to(item);
  return begin + before;
}

}  // namespace

TableTokens::TableTokens(int lanes, PagePool* pool, const PageTableLayout& of)
    : columns(lanes, pool, of), runs(static_cast<std::size_t>(of.runs())), frames(1), original(of.original_positions) {
  KVASIR_CHECK(of.lists || (!original && runs.size() == 1));
  KVASIR_CHECK(!(original && runs.size() > 1) && runs.size() < static_cast<std::size_t>(PageTableLayout::kMaxFrames));
  frames.reserve(static_cast<std::size_t>(of.most_frames()));
  for (std::size_t r = 1; r < runs.size(); ++r) runs[r].capacity = of.run_capacities[r - 1];
}

std::int64_t TableTokens::whole_columns() const {
  if (length != next_index || !given_back.empty() || runs.size() > 1 || frames.size() > 1) return 0;
  if (frames.front().origin != 0 || frames.front().rotation != 0) return 0;
  std::int64_t whole = next_index / static_cast<TokenIndex>(columns.slots());
  // Encoded pages: full columns that are not sealed yet do not count.
  if (layout().encoded()) for_each_open([&](std::uint32_t c) { whole -= columns[c].used == columns.slots(); });
  return whole;
}

TokenIndex TableTokens::first_token(std::size_t frame) const {
  std::int64_t before = 0;
  for (std::size_t f = 0; f < frame; ++f) before += frames[f].tokens;
  return tokens_of(frames[frame], before).begin;
}

IndexRange TableTokens::tokens_of(const Frame& frame, std::int64_t before) const {
  if (!layout().lists) {
    const TokenIndex first = before - frame.rotation - frame.origin;
    return {first, first + frame.tokens};
  }
  const auto entries = entries_of(frame);
  if (entries.empty()) return {};
  return {columns.first_live(entries.front()), columns.last_live(entries.back()) + 1};
}

std::int64_t TableTokens::retained_in(IndexRange range) const {
  std::int64_t count = 0, before = 0;
  if (range.empty()) return 0;
  for (const Frame& frame : frames) {
    if (!layout().lists) {
      const IndexRange held = tokens_of(frame, before);
      count += IndexRange{std::max(held.begin, range.begin), std::min(held.end, range.end)}.size();
      before += frame.tokens;
      continue;
    }
    const std::vector<PageEntry>& entries = runs[static_cast<std::size_t>(frame.run)].entries;
    for (std::uint32_t e = find_entry(frame, range.begin); e < frame.end && columns.first_live(entries[e]) < range.end;
         ++e)
      count += std::popcount(entries[e].live & columns.slots_of(entries[e].column, range.begin, range.end));
  }
  return count;
}

std::uint32_t TableTokens::find_entry(const Frame& frame, TokenIndex token) const {
  const auto entries = entries_of(frame);
  // Most tokens that leave are the oldest of their frame, or the newest.
  if (entries.empty() || token <= columns.first_live(entries.front())) return frame.begin;
  if (token > columns.last_live(entries.back())) return frame.end;
  std::size_t found = 0;
  if (layout().lists) {
    found = columns_up_to(frame, token, frame.begin);
    while (found > 0 && columns.last_live(entries[found - 1]) >= token) --found;
  } else {
    // Columns are numbered by their tokens; only columns that were given back are missing.
    const auto slots = static_cast<TokenIndex>(columns.slots());
    const std::int64_t behind = given_back.end / slots;
    std::int64_t column = token / slots;
    if (column >= given_back.begin / slots) column = std::max(column, behind);
    found = static_cast<std::size_t>(column >= behind ? std::ssize(entries) - 1 -
                                                            (static_cast<std::int64_t>(entries.back().ordinal) - column)
                                                      : column - static_cast<std::int64_t>(entries.front().ordinal));
  }
  return frame.begin + static_cast<std::uint32_t>(found);
}

std::size_t TableTokens::columns_up_to(const Frame& frame, TokenIndex token, std::uint32_t from) const {
  if (original)
    return count_up_to(std::span(entry_first).subspan(from),
                       [&](TokenIndex first) -> std::size_t { return first <= token; });
  return count_up_to(entries_of(frame).subspan(from - frame.begin),
                     [&](const PageEntry& entry) -> std::size_t { return columns[entry.column].first <= token; });
}

std::uint32_t TableTokens::newest_column(std::size_t run) const {
  std::uint32_t newest = kNone;
  for (const Frame& frame : frames)
    if (frame.run == static_cast<int>(run) && frame.begin < frame.end) newest = entries_of(frame).back().column;
  return newest;
}

void TableTokens::start_column(std::uint32_t column, int run, TokenIndex first, Position base) {
  Run& r = runs[static_cast<std::size_t>(run)];
  Column& c = columns[column];
  c.ordinal = r.next_ordinal++;
  c.first = first;
  c.base = base;
  c.used = 0;
  c.live = 0;
  if (layout().encoded()) std::ranges::fill(columns.encodings(column), std::uint8_t{0});
  ++r.columns;
  r.tail = column;
}

void TableTokens::extend(Frame& frame, int count) {
  const std::uint32_t tail = runs.front().tail;
  Column& column = columns[tail];
  std::vector<PageEntry>& entries = runs.front().entries;
  if (frame.begin == frame.end || entries[frame.end - 1].column != tail) push_entry(frame, {0, column.ordinal, tail});
  const SlotMask taken = slot_range(column.used, column.used + count);
  entries[frame.end - 1].live |= taken;
  column.live |= taken;
  column.used += count;
  if (layout().lists) {
    const std::span<std::uint32_t> added = columns.offsets(tail).last(static_cast<std::size_t>(count));
    std::iota(added.begin(), added.end(), static_cast<std::uint32_t>(next_index - column.first));
  }
  frame.tokens += count;
  next_index += count;
  length += count;
  written += count;
}

void TableTokens::retract(Frame& frame, int count) {
  Run& run = runs.front();
  while (count > 0) {
    const std::uint32_t tail = run.tail;
    Column& column = columns[tail];
    PageEntry& entry = run.entries[frame.end - 1];
    const int of_column = std::min(count, column.used);
    const SlotMask taken = slot_range(column.used - of_column, column.used);
    KVASIR_CHECK(entry.column == tail && (entry.live & taken) == taken);
    entry.live &= ~taken;
    column.live &= ~taken;
    column.used -= of_column;
    frame.tokens -= of_column;
    next_index -= of_column;
    length -= of_column;
    written -= of_column;
    count -= of_column;
    if (entry.live != 0) continue;
    KVASIR_CHECK(column.used == 0 && column.entries == 1 && !layout().encoded());
    --frame.end;
    run.entries.resize(frame.end);
    if (original) entry_first.resize(frame.end);
    --run.columns;
    --run.next_ordinal;
    columns.release(tail);
    run.tail = newest_column(0);
  }
}

void TableTokens::make_entry_room(int run) {
  std::vector<PageEntry>& entries = runs[static_cast<std::size_t>(run)].entries;
  if (entries.size() < entries.capacity()) return;
  std::uint32_t to = 0;
  for (Frame& frame : frames) {
    if (frame.run != run) continue;
    std::move(entries.begin() + frame.begin, entries.begin() + frame.end, entries.begin() + to);
    const std::uint32_t count = frame.end - frame.begin;
    frame.begin = to;
    frame.end = to += count;
  }
  entries.resize(to);
  KVASIR_CHECK(entries.size() < entries.capacity());
}

void TableTokens::push_entry(Frame& frame, const PageEntry& entry) {
  std::vector<PageEntry>& entries = runs[static_cast<std::size_t>(frame.run)].entries;
  entries.resize(frame.end);
  make_entry_room(frame.run);
  entries.push_back(entry);
  if (original) {
    entry_first.resize(frame.end);
    entry_first.push_back(columns[entry.column].first);
    KVASIR_CHECK(entry_first.size() == entries.size());
  }
  ++frame.end;
  KVASIR_CHECK(columns[entry.column].entries++ < layout().most_column_entries());
}

void TableTokens::unlink_entry(int run, std::uint32_t column) {
  Column& c = columns[column];
  --c.entries;
  if (c.live != 0) return;
  KVASIR_CHECK(c.entries == 0);
  Run& r = runs[static_cast<std::size_t>(run)];
  if (!layout().lists && column == r.tail && c.used < columns.slots()) return;
  written -= c.used;
  if (column == r.tail) r.tail = kNone;  // set_tail sets the new one
  --r.columns;
  columns.release(column);
}

std::int64_t TableTokens::drop_from_frame(std::size_t number, IndexRange range, IndexRange held) {
  Frame& frame = frames[number];
  if (held.begin >= range.end || held.end <= range.begin || frame.tokens == 0) return 0;
  make_entry_room(frame.run);  // a hole within a column makes two entries of one
  std::vector<PageEntry>& entries = runs[static_cast<std::size_t>(frame.run)].entries;
  const auto at = [&](std::uint32_t i) -> PageEntry& { return entries[i]; };
  const std::uint32_t first = find_entry(frame, range.begin);
  std::uint32_t last = first;  // behind the last entry with tokens of `range`
  std::int64_t count = 0;
  SlotMask low = 0, high = 0;
  for (; last < frame.end && columns.first_live(at(last)) < range.end; ++last) {
    const std::uint32_t column = at(last).column;
    const SlotMask leaves = at(last).live & columns.slots_of(column, range.begin, range.end);
    if (last == first) low = at(last).live & columns.slots_of(column, 0, range.begin);
    high = at(last).live & columns.slots_of(column, range.end, next_index);
    count += std::popcount(leaves);
    columns[column].live &= ~leaves;
  }
  if (!layout().lists) count = IndexRange{std::max(held.begin, range.begin), std::min(held.end, range.end)}.size();
  if (count == 0) return 0;
  const bool left = held.begin < range.begin;
  const bool right = held.end > range.end;
  // Of the entries with tokens of `range`, at most the first and the last stay.
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
    ++columns[upper.column].entries;
    for (std::size_t f = number; f < frames.size(); ++f)
      if (frames[f].run == frame.run) frames[f].end += 1, frames[f].begin += f > number ? 1 : 0;
    left_end = right_begin = first + 1;
  } else {
    if (low != 0) at(left_end++).live = low;
    if (high != 0) at(--right_begin).live = high;
  }
  frame.tokens -= count;
  length -= count;
  if (left && right) {
    KVASIR_CHECK(frames.size() < static_cast<std::size_t>(PageTableLayout::kMaxFrames));
    Frame behind = frame;
    behind.begin = right_begin;
    behind.tokens = 0;
    if (!layout().lists) {
      behind.tokens = held.end - range.end;
    } else {
      for (std::uint32_t e = behind.begin; e < behind.end; ++e) behind.tokens += std::popcount(at(e).live);
    }
    frame.tokens -= behind.tokens;
    frame.end = left_end;
    frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(number) + 1, behind);
  } else if (right) {
    frame.begin = right_begin;
  } else if (left) {
    frame.end = left_end;
  } else {
    frame.begin = frame.end;
  }
  return count;
}

void TableTokens::set_tail(std::size_t run, std::uint32_t column) {
  runs[run].tail = column;
  if (column == kNone) return;
  Column& tail = columns[column];
  if (tail.sealed) return;  // the next token begins a column
  const auto used = static_cast<std::int32_t>(std::bit_width(tail.live));
  written -= tail.used - used;
  tail.used = used;
}

bool TableTokens::lay_out(std::span<const std::uint32_t> in_order) {
  Run& run = runs.front();
  run.entries.clear();
  entry_first.clear();
  frames.clear();
  Position position = 0;
  for (const std::uint32_t c : in_order) {
    Column& column = columns[c];
    column.entries = 0;
    for (SlotMask left = column.live; left != 0;) {
      const int slot = std::countr_zero(left);
      const int count = std::countr_one(left >> slot);
      const Position origin = position - (column.base + slot);
      if (frames.empty() || frames.back().origin != origin) {
        if (frames.size() == static_cast<std::size_t>(layout().most_frames())) return false;
        const auto begin = static_cast<std::uint32_t>(run.entries.size());
        frames.push_back({origin, 0, 0, 0, begin, begin});
      }
      if (column.entries == layout().most_column_entries()) return false;
      const SlotMask slots = slot_range(slot, slot + count);
      push_entry(frames.back(), {slots, column.ordinal, c});
      frames.back().tokens += count;
      position += count;
      left &= ~slots;
    }
  }
  if (frames.empty()) frames.push_back({});
  return true;
}

void TableTokens::lay_out_whole(std::span<const std::uint32_t> in_order, Position origin) {
  runs.front().entries.clear();
  entry_first.clear();
  frames.assign(1, {origin, 0, length, 0, 0, 0});
  for (const std::uint32_t c : in_order) {
    columns[c].entries = 0;
    push_entry(frames.front(), {columns[c].live, columns[c].ordinal, c});
  }
}

void TableTokens::share(const TableTokens& other) {
  columns.share(other.columns);
  runs = other.runs;
  frames = other.frames;
  entry_first = other.entry_first;
  next_index = other.next_index;
  length = other.length;
  given_back = other.given_back;
  written = other.written;
  original = other.original;
}

std::uint64_t TableTokens::bytes_at(int lanes, int slots, const PageTableLayout& layout, std::int64_t capacity) {
  std::int64_t entries = entry_capacity(capacity, 0, slots, layout.most_frames());
  for (const std::int64_t run : layout.run_capacities)
    entries += entry_capacity(capacity, run, slots, layout.most_frames());
  const std::size_t per_slot = (layout.lists ? sizeof(std::uint32_t) : 0) + (layout.encoded() ? 1 : 0);
  const std::size_t per_column = sizeof(Column) + static_cast<std::size_t>(lanes) * sizeof(PageId) +
                                 static_cast<std::size_t>(slots) * per_slot +
                                 (layout.runs() > 1 ? 2 : 1) * sizeof(std::uint32_t);  // free and spare handles
  const std::size_t per_entry = sizeof(PageEntry) + (layout.original_positions ? sizeof(TokenIndex) : 0);
  return static_cast<std::size_t>(layout.most_frames()) * sizeof(Frame) +
         static_cast<std::size_t>(layout.runs()) * sizeof(Run) + layout.run_capacities.size() * sizeof(std::int64_t) +
         static_cast<std::uint64_t>(capacity) * per_column + static_cast<std::uint64_t>(entries) * per_entry;
}

void TableTokens::reserve(std::int64_t capacity) {
  const int most_frames = layout().most_frames();
  for (Run& run : runs)
    run.entries.reserve(static_cast<std::size_t>(entry_capacity(capacity, run.capacity, columns.slots(), most_frames)));
  if (layout().original_positions) entry_first.reserve(runs.front().entries.capacity());
  columns.reserve(capacity);
}

std::uint64_t TableTokens::allocated_bytes() const {
  const auto bytes_of = [](const auto& values) { return values.capacity() * sizeof(values[0]); };
  std::uint64_t bytes = bytes_of(runs) + bytes_of(frames) + bytes_of(entry_first) + columns.allocated_bytes();
  for (const Run& run : runs) bytes += bytes_of(run.entries);
  return bytes;
}

}  // namespace kvasir
