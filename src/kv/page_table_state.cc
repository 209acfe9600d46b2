// Saves and restores the layout of a page table.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// More columns than any table has: a file with more is damaged.
constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 32;
// Bound that keeps the arithmetic of indices and positions from overflowing.
constexpr std::int64_t kMost = std::int64_t{1} << 60;

Status damaged() {
  return data_loss("the saved page table contradicts itself");
}

// Reads a saved table, part by part. Each function returns false for bytes that save never writes.
class TableReader {
 public:
  TableReader(TableTokens& tokens, ByteReader& in) : tokens_(tokens), columns_(tokens.columns), in_(in) {}

  // Reads everything before the columns, and which columns are sealed.
  bool read_head(std::vector<char>& sealed) {
    const std::size_t least = 36 + (layout().lists ? sizeof(std::uint32_t) : 0);
    std::uint64_t columns = 0;
    if (!in_.get(tokens_.next_index) || !in_.get(tokens_.length) || !in_.get(tokens_.original) ||
        !in_.get(tokens_.given_back.begin) || !in_.get(tokens_.given_back.end) ||
        !in_.get_count(columns, kMostColumns, least))
      return false;
    sealed.assign(columns, 0);
    if (layout().encoded())
      for (char& is_sealed : sealed)
        if (bool value = false; in_.get(value)) is_sealed = value ? 1 : 0;
    return in_.ok();
  }

  // Reads the rest into columns 0, 1, ..., which have their pages.
  bool read_arrays() {
    const TokenIndex next = tokens_.next_index;
    if (next < 0 || next > kMost || (tokens_.given_back.end != 0 && layout().window <= 0) ||
        (tokens_.original && !layout().original_positions))
      return false;
    for (std::uint32_t c = 0; c < columns_.handles(); ++c)
      if (!read_column(c)) return false;
    for (TableTokens::Run& run : tokens_.runs) {
      in_.get(run.next_ordinal);
      if (!in_.get(run.tail) || (run.tail != TableTokens::kNone && run.tail >= columns_.handles())) return false;
    }
    std::uint32_t frames = 0;
    if (!in_.get(frames) || frames == 0 || frames > static_cast<std::uint32_t>(layout().most_frames())) return false;
    tokens_.frames.clear();
    for (std::uint32_t f = 0; f < frames; ++f)
      if (!read_frame()) return false;
    const std::uint32_t tail = tokens_.runs.front().tail;
    // The open column of a table of ranges may have lost all tokens.
    for (std::uint32_t c = 0; c < columns_.handles(); ++c)
      if (columns_[c].entries == 0) {
        if (layout().lists || c != tail) return false;
        ++tokens_.runs.front().columns;
      }
    if (!in_.ok()) return false;
    // One frame for the sinks, one for the window.
    if (layout().runs() > 1 && std::ranges::count(tokens_.frames, 0, &TableTokens::Frame::run) > 2) return false;
    for (int r = 1; r < layout().runs(); ++r)
      if (std::ranges::count(tokens_.frames, r, &TableTokens::Frame::run) > 1) return false;
    // Indices in a list are relative to the first index of their column.
    constexpr TokenIndex kMostOffset = TokenIndex{1} << 31;
    return !layout().lists || tail == TableTokens::kNone || next - columns_[tail].first < kMostOffset;
  }

 private:
  const PageTableLayout& layout() const { return tokens_.layout(); }

  bool read_column(std::uint32_t c) {
    TableColumns::Column& column = columns_[c];
    in_.get(column.live);
    in_.get(column.ordinal);
    in_.get(column.first);
    in_.get(column.base);
    in_.get(column.used);
    if (!in_.ok() || column.used < 1 || column.used > columns_.slots()) return false;
    if (column.sealed && column.used != columns_.slots()) return false;
    if (column.first < 0 || column.first > kMost || std::abs(column.base) > kMost) return false;
    if (layout().lists && !in_.get_values(columns_.offsets(c))) return false;
    if (layout().encoded() && !in_.get_values(columns_.encodings(c).first(static_cast<std::size_t>(column.used))))
      return false;
    tokens_.written += column.used;
    return true;
  }

  bool read_frame() {
    TableTokens::Frame frame;
    std::uint64_t entries = 0;
    in_.get(frame.origin);
    in_.get(frame.rotation);
    in_.get(frame.run);
    if (!in_.get(frame.tokens) || frame.tokens < 0 || frame.tokens > tokens_.next_index) return false;
    if (!in_.get_count(entries, columns_.handles(), sizeof(SlotMask) + sizeof(std::uint32_t))) return false;
    if (frame.run < 0 || frame.run >= layout().runs() || std::abs(frame.origin) > kMost ||
        std::abs(frame.rotation) > kMost)
      return false;
    TableTokens::Run& run = tokens_.runs[static_cast<std::size_t>(frame.run)];
    frame.begin = frame.end = static_cast<std::uint32_t>(run.entries.size());
    for (std::uint64_t e = 0; e < entries; ++e) {
      PageEntry entry;
      if (!in_.get(entry.live) || !in_.get(entry.column) || entry.column >= columns_.handles() || entry.live == 0)
        return false;
      TableColumns::Column& column = columns_[entry.column];
      if (run.entries.size() == run.entries.capacity() || column.entries == layout().most_column_entries())
        return false;
      if (column.entries++ == 0) ++run.columns;
      entry.ordinal = column.ordinal;
      run.entries.push_back(entry);
      if (tokens_.original) tokens_.entry_first.push_back(column.first);
      ++frame.end;
    }
    tokens_.frames.push_back(frame);
    return true;
  }

  TableTokens& tokens_;
  TableColumns& columns_;
  ByteReader& in_;
};

}  // namespace

void PageTable::save(ByteWriter& out) const {
  const std::vector<std::uint32_t> order = columns().in_order();
  std::vector<std::uint32_t> number(columns().handles(), TableTokens::kNone);  // in the saved order
  for (std::uint32_t i = 0; i < order.size(); ++i) number[order[i]] = i;
  out.put(tokens_.next_index);
  out.put(tokens_.length);
  out.put(tokens_.original);
  out.put(tokens_.given_back.begin);
  out.put(tokens_.given_back.end);
  out.put(static_cast<std::uint64_t>(order.size()));
  if (layout().encoded())
    for (const std::uint32_t c : order) out.put(columns()[c].sealed);
  for (const std::uint32_t c : order) {
    const Column& column = columns()[c];
    out.put(column.live);
    out.put(column.ordinal);
    out.put(column.first);
    out.put(column.base);
    out.put(column.used);
    if (layout().lists) out.put_values(columns().offsets(c));
    if (layout().encoded()) out.put_values(columns().encodings(c).first(static_cast<std::size_t>(column.used)));
  }
  for (const TableTokens::Run& run : tokens_.runs) {
    out.put(run.next_ordinal);
    out.put(run.tail != TableTokens::kNone ? number[run.tail] : TableTokens::kNone);
  }
  out.put(static_cast<std::uint32_t>(frames().size()));
  for (const Frame& frame : frames()) {
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
  if (columns().count() > 0 || next_index() > 0) return damaged();
  PageTable read(pages().lanes(), &pages().pool(), layout());
  TableReader reader(read.tokens_, in);
  std::vector<char> sealed;
  if (!reader.read_head(sealed)) return damaged();
  const auto all = static_cast<std::uint64_t>(sealed.size());
  const std::uint64_t open = all - static_cast<std::uint64_t>(std::ranges::count(sealed, 1));
  const std::uint64_t bytes = pages().bytes(all, open) + read.memory().growth(static_cast<std::int64_t>(all));
  FreshPages fresh = pages().fresh();
  MemoryBudget& budget = pages().pool().budget();
  if (!budget.make_available(bytes) || !fresh.try_allocate(open, all - open, PageContent::kUndefined))
    return kv_memory_full(budget, bytes);
  read.reserve_columns(static_cast<std::int64_t>(all));
  for (const char is_sealed : sealed) read.tokens_.columns.take(fresh, is_sealed != 0);
  if (!reader.read_arrays() || !read.tokens_.is_sound()) return damaged();
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
