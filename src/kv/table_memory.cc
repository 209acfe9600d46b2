#include "kv/table_memory.h"

#include <algorithm>

#include "kv/page_table.h"

namespace kvasir {

std::int64_t TableMemory::array_capacity(std::int64_t columns) {
  constexpr std::int64_t kStep = 8;
  if (columns == 0) return 0;
  std::int64_t capacity = kStep;
  while (capacity < columns) capacity += std::max(kStep, capacity / 4 / kStep * kStep);
  return capacity;
}

std::uint64_t TableMemory::bytes_at(int lanes, int slots, const PageTableLayout& layout, std::int64_t columns) {
  if (columns == 0) return 0;
  return sizeof(PageTable) + TableTokens::bytes_at(lanes, slots, layout, array_capacity(columns)) +
         static_cast<std::size_t>(layout.open_capacity(slots) * lanes) * sizeof(PageId);
}

std::uint64_t TableMemory::growth(std::int64_t columns) const {
  if (columns <= columns_.capacity()) return 0;
  return bytes_at(columns_.pages().lanes(), columns_.slots(), columns_.layout(), columns) - array_bytes_;
}

// Counts the open columns with tokens for which applies(column) holds.
template <class Applies>
int TableMemory::count_open(const Applies& applies) const {
  int open = 0;
  tokens_.for_each_open([&](std::uint32_t column) { open += applies(column); });
  for (std::size_t r = 1; r < tokens_.runs.size(); ++r) {
    const std::uint32_t tail = tokens_.runs[r].tail;
    open += tail != TableTokens::kNone && !columns_[tail].sealed && applies(tail);
  }
  return open;
}

int TableMemory::open_columns() const {
  if (!columns_.layout().encoded()) return columns_.count();
  const auto spares = std::ranges::count_if(columns_.spares(), [&](std::uint32_t c) { return !columns_[c].sealed; });
  return count_open([](std::uint32_t) { return true; }) + static_cast<int>(spares);
}

// Spare columns are never shared.
int TableMemory::shared_open_columns() const {
  const auto shared = static_cast<int>(columns_.pages().shared());
  if (shared == 0 || !columns_.layout().encoded()) return shared;
  return count_open([&](std::uint32_t column) { return columns_.pages().is_shared(column); });
}

std::uint64_t TableMemory::page_bytes() const {
  const auto kept = static_cast<std::uint64_t>(kept_columns_);
  const auto open = static_cast<std::uint64_t>(open_columns());
  return columns_.pages().bytes(static_cast<std::uint64_t>(columns_.count()), open) +
         columns_.pages().bytes(kept, kept);
}

std::uint64_t TableMemory::own_page_bytes() const {
  const auto shared_open = static_cast<std::uint64_t>(shared_open_columns());
  return page_bytes() - columns_.pages().bytes(columns_.pages().shared(), shared_open);
}

// Plans the columns that moves after a pass of `tokens` tokens may take, beyond those that the runs give back
// meanwhile. A run is a ring: it holds at most one column more than its capacity fills. The first column of a run has
// open pages. Each later column takes over the open pages of the one before, which gets encoded pages.
void TableMemory::plan_spares(int tokens, AppendPlan* plan) const {
  const auto slots = static_cast<std::int64_t>(columns_.slots());
  const bool encoded = columns_.layout().encoded();
  std::int64_t needed = 0;
  std::int64_t open = 0;
  for (std::size_t r = 1; r < tokens_.runs.size(); ++r) {
    const TableTokens::Run& run = tokens_.runs[r];
    const std::int64_t moves = std::min<std::int64_t>(tokens, run.capacity) - tokens_.room(r);
    const std::int64_t most = (run.capacity + slots - 1) / slots + 1 - run.columns;
    const std::int64_t of_run =
        std::clamp<std::int64_t>((moves + slots - 1) / slots, 0, std::max<std::int64_t>(most, 0));
    needed += of_run;
    if (of_run > 0 && encoded && (run.tail == TableTokens::kNone || columns_[run.tail].sealed)) ++open;
  }
  std::int64_t held_open = 0;
  for (const std::uint32_t column : columns_.spares()) held_open += encoded && !columns_[column].sealed;
  const std::int64_t held = std::ssize(columns_.spares()) - held_open;
  plan->open_spares = static_cast<int>(std::max<std::int64_t>(open - held_open, 0));
  plan->spares = plan->open_spares + static_cast<int>(std::max<std::int64_t>(needed - open - held, 0));
}

TableMemory::AppendPlan TableMemory::plan_append(int tokens, int of_chunk) const {
  AppendPlan plan;
  if (tokens == 0) return plan;
  const PageTableLayout& layout = columns_.layout();
  const int slots = columns_.slots();
  const std::uint32_t tail = tokens_.runs.front().tail;
  const int room = tokens_.room(0);
  const auto lanes = static_cast<std::uint64_t>(columns_.pages().lanes());
  if (room > 0 && columns_.pages().is_shared(tail)) plan.pages += lanes;
  if (tokens > room) plan.columns = (tokens - room + slots - 1) / slots;
  if (layout.encoded()) {
    const TokenIndex next = tokens_.next_index;
    const TokenIndex newest = next + tokens - 1;
    tokens_.for_each_open([&](std::uint32_t column) {
      const bool filled = column == tail && room > 0 && tokens >= room;
      const TokenIndex last = filled ? next + room - 1 : columns_.last_index(column);
      if ((filled || columns_[column].used == slots) && layout.first_reader(last) <= newest) ++plan.seals;
    });
    for (TokenIndex last = next + room + slots - 1; layout.first_reader(last) <= newest; last += slots) ++plan.sealed;
  }
  if (tokens_.runs.size() > 1) plan_spares(std::max(tokens, of_chunk), &plan);
  plan.columns += plan.spares;
  plan.pages += static_cast<std::uint64_t>(plan.columns + plan.seals) * lanes;
  if (layout.encoded())
    plan.sealed_pages = static_cast<std::uint64_t>(plan.sealed + plan.seals + plan.spares - plan.open_spares) * lanes;
  plan.bytes = columns_.pages().bytes(plan.pages / lanes, (plan.pages - plan.sealed_pages) / lanes) +
               growth(columns_.count() + plan.columns);
  return plan;
}

std::uint64_t TableMemory::sharing_reserve(bool append_first) const {
  const PageTableLayout& layout = columns_.layout();
  if (!layout.lists) return 0;
  std::uint64_t shared = columns_.pages().shared();
  auto open = static_cast<std::uint64_t>(shared_open_columns());
  if (append_first && tokens_.room(0) > 0 && columns_.pages().is_shared(tokens_.runs.front().tail)) --shared, --open;
  // Compaction writes the columns that stay open into fresh pages if there may be more than one.
  const bool compacts = layout.recent > 0 && layout.runs() == 1;
  const auto fresh = static_cast<std::uint64_t>(compacts ? layout.open_capacity(columns_.slots()) : 0);
  return columns_.pages().bytes(shared, open) + columns_.pages().bytes(fresh, fresh);
}

std::vector<std::uint32_t> TableMemory::shared_columns(IndexRange range) const {
  std::vector<std::uint32_t> shared;
  if (columns_.pages().shared() == 0) return shared;
  for (const TableTokens::Frame& frame : tokens_.frames)
    for (const PageEntry& entry : tokens_.entries_of(frame))
      if ((entry.live & columns_.slots_of(entry.column, range.begin, range.end)) != 0 &&
          columns_.pages().is_shared(entry.column))
        shared.push_back(entry.column);
  std::ranges::sort(shared);
  shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
  return shared;
}

std::uint64_t TableMemory::unshare_bytes(IndexRange range) const {
  const std::vector<std::uint32_t> shared = shared_columns(range);
  const auto open = std::ranges::count_if(shared, [&](std::uint32_t c) { return !columns_[c].sealed; });
  return columns_.pages().bytes(shared.size(), static_cast<std::uint64_t>(open));
}

}  // namespace kvasir
