// How page tables grow: room for new tokens, and columns that are sealed.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {

// Columns that moves after a pass of `tokens` tokens may take, beyond what the runs give back meanwhile: a run is a
// ring of its capacity, so it never holds more columns than that fills, and one. The first of a run has open pages;
// each other takes the open pages of the one before, for which its own are encoded.
PageTable::Spares PageTable::spares_needed(int tokens) const {
  const auto slots = static_cast<std::int64_t>(slots_);
  std::int64_t needed = 0;
  std::int64_t open = 0;
  for (std::size_t r = 1; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    const std::int64_t room = tail_[r] != kNone ? slots - column_[tail_[r]].used : 0;
    const std::int64_t moves = std::min<std::int64_t>(tokens, run.capacity) - room;
    const std::int64_t most = (run.capacity + slots - 1) / slots + 1 - run.columns;
    const std::int64_t of_run =
        std::clamp<std::int64_t>((moves + slots - 1) / slots, 0, std::max<std::int64_t>(most, 0));
    needed += of_run;
    if (of_run > 0 && layout_.encoded() && (tail_[r] == kNone || column_[tail_[r]].sealed)) ++open;
  }
  std::int64_t held_open = 0;
  for (const std::uint32_t column : spare_) held_open += layout_.encoded() && !column_[column].sealed;
  const std::int64_t held = std::ssize(spare_) - held_open;
  const std::int64_t open_left = std::max<std::int64_t>(open - held_open, 0);
  const std::int64_t left = std::max<std::int64_t>(needed - open - held, 0);
  return {static_cast<int>(left + open_left), static_cast<int>(open_left)};
}

std::uint64_t PageTable::bytes_of_columns(std::uint64_t columns, std::uint64_t open) const {
  return static_cast<std::uint64_t>(lanes_) *
         ((columns - open) * pool_->page_cost(layout_.classes.sealed) + open * pool_->page_cost(layout_.classes.open));
}

int PageTable::open_columns() const {
  if (!layout_.encoded()) return columns_;
  int open = 0;
  for_each_open([&](std::uint32_t) { ++open; });
  for (std::size_t r = 1; r < runs_.size(); ++r) open += tail_[r] != kNone && !column_[tail_[r]].sealed;
  for (const std::uint32_t column : spare_) open += !column_[column].sealed;
  return open;
}

std::uint64_t PageTable::page_bytes() const {
  const auto kept = static_cast<std::uint64_t>(kept_columns());
  const auto open = static_cast<std::uint64_t>(open_columns());
  return bytes_of_columns(static_cast<std::uint64_t>(columns_), open) + bytes_of_columns(kept, kept);
}

std::uint64_t PageTable::own_page_bytes() const {
  std::uint64_t shared_open = 0;  // columns
  if (layout_.encoded() && pages_.shared() > 0) {
    for_each_open([&](std::uint32_t column) { shared_open += is_shared(column); });
    for (std::size_t r = 1; r < runs_.size(); ++r)
      shared_open += tail_[r] != kNone && !column_[tail_[r]].sealed && is_shared(tail_[r]);
  }
  const std::uint64_t shared = pages_.shared() / static_cast<std::uint64_t>(lanes_);
  return page_bytes() - bytes_of_columns(shared, layout_.encoded() ? shared_open : shared);
}

PageTable::AppendPlan PageTable::plan_append(int tokens) const {
  AppendPlan plan;
  if (tokens == 0) return plan;
  const auto slots = static_cast<int>(slots_);
  const std::uint32_t tail = tail_.front();
  const int room = tail != kNone ? slots - column_[tail].used : 0;
  const auto lanes = static_cast<std::uint64_t>(lanes_);
  if (room > 0 && is_shared(tail)) plan.pages += lanes;
  if (tokens > room) plan.columns = (tokens - room + slots - 1) / slots;
  if (layout_.encoded()) {
    const TokenIndex newest = next_index_ + tokens - 1;
    for_each_open([&](std::uint32_t column) {
      const bool filled = column == tail && room > 0 && tokens >= room;
      const TokenIndex last = filled ? next_index_ + room - 1 : index(column, column_[column].used - 1);
      if ((filled || column_[column].used == slots) && first_reader(last) <= newest) ++plan.seals;
    });
    for (TokenIndex last = next_index_ + room + slots - 1; first_reader(last) <= newest; last += slots) ++plan.sealed;
  }
  if (runs_.size() > 1) {
    const Spares spares = spares_needed(tokens);
    plan.spares = spares.all;
    plan.open_spares = spares.open;
  }
  plan.columns += plan.spares;
  plan.pages += static_cast<std::uint64_t>(plan.columns + plan.seals) * lanes;
  if (layout_.encoded())
    plan.sealed_pages = static_cast<std::uint64_t>(plan.sealed + plan.seals + plan.spares - plan.open_spares) * lanes;
  plan.bytes = (plan.pages - plan.sealed_pages) * pool_->page_cost(layout_.classes.open) +
               plan.sealed_pages * pool_->page_cost(layout_.classes.sealed);
  if (columns_ + plan.columns > peak_columns_)
    plan.bytes += bytes_at(lanes_, slots, layout_, columns_ + plan.columns) - bytes_;
  return plan;
}

// The column's open pages are kept for the pass; those of `sealed` from number `first` on take their place.
void PageTable::add_seal(std::uint32_t column, TokenIndex first_reader, PageRefs& sealed, std::size_t first) {
  const int kept = kept_columns();
  const auto lanes = static_cast<std::size_t>(lanes_);
  open_pages_.take(static_cast<std::size_t>(kept) * lanes, pages_, first_page(column), lanes);
  pages_.take(first_page(column), sealed, first, lanes);
  column_[column].sealed = true;
  seals_.push_back({column, first_reader, kept});
}

void PageTable::end_pass() {
  for (const Seal& seal : seals_) count_encodings(seal.column, column_[seal.column].live);
  seals_.clear();
  open_pages_.reset(0, open_pages_.size());
}

Status PageTable::append(int tokens) {
  KVASIR_CHECK(tokens > 0 && seals_.empty());
  const AppendPlan plan = plan_append(tokens);
  PageRefs fresh(pool_);
  PageRefs fresh_sealed(pool_);
  const auto lanes = static_cast<std::size_t>(lanes_);
  if (plan.bytes > budget().available() ||
      !fresh.try_allocate_columns((plan.pages - plan.sealed_pages) / lanes, lanes, layout_.classes.open) ||
      !fresh_sealed.try_allocate_columns(plan.sealed_pages / lanes, lanes, layout_.classes.sealed))
    return kv_memory_full(budget(), plan.bytes);
  seals_.reserve(static_cast<std::size_t>(plan.seals + plan.sealed));
  reserve_columns(columns_ + plan.columns);
  std::size_t used = 0;
  std::size_t used_sealed = 0;
  const auto next = [&] { return std::exchange(used, used + lanes); };
  const auto next_sealed = [&] { return std::exchange(used_sealed, used_sealed + lanes); };
  const auto slots = static_cast<int>(slots_);
  int left = tokens;
  if (tail_.front() != kNone && column_[tail_.front()].used < slots && is_shared(tail_.front()))
    copy_pages(tail_.front(), fresh, next());
  if (plan.seals > 0) {
    std::vector<std::uint32_t>& order = pool_->scratch().columns;
    order.clear();
    for_each_open([&](std::uint32_t column) { order.push_back(column); });
    const int room = tail_.front() != kNone ? slots - column_[tail_.front()].used : 0;
    for (int i = 0; i < plan.seals; ++i) {
      const std::uint32_t column = order[order.size() - 1 - static_cast<std::size_t>(i)];
      const TokenIndex last =
          column == tail_.front() && room > 0 ? next_index_ + room - 1 : index(column, column_[column].used - 1);
      add_seal(column, first_reader(last), fresh_sealed, next_sealed());
    }
  }
  int sealed_left = plan.sealed;
  Frame& frame = frames_.back();
  while (left > 0) {
    if (tail_.front() == kNone || column_[tail_.front()].used == slots) {
      const bool sealed = sealed_left > 0;
      const std::uint32_t column = sealed ? take_column(fresh_sealed, next_sealed()) : take_column(fresh, next());
      start_column(column, 0, next_index_, length_ - frame.rotation - frame.origin);
      if (sealed) {
        --sealed_left;
        column_[column].sealed = true;
        seals_.push_back({column, first_reader(next_index_ + slots - 1), -1});
      }
    }
    const std::uint32_t tail = tail_.front();
    Column& column = column_[tail];
    const int count = std::min(left, slots - column.used);
    std::vector<PageEntry>& entries = runs_.front().entries;
    if (frame.begin == frame.end || entries[frame.end - 1].column != tail) push_entry(frame, {0, column.ordinal, tail});
    const SlotMask taken = slot_range(column.used, column.used + count);
    entries[frame.end - 1].live |= taken;
    column.live |= taken;
    if (lists_)
      std::iota(offset(tail) + column.used, offset(tail) + column.used + count,
                static_cast<std::uint32_t>(next_index_ - column.first));
    column.used += count;
    frame.tokens += count;
    next_index_ += count;
    length_ += count;
    written_ += count;
    left -= count;
  }
  for (int i = 0; i < plan.spares; ++i) {
    const bool open = i < plan.open_spares || !layout_.encoded();
    spare_.push_back(open ? take_column(fresh, next()) : take_column(fresh_sealed, next_sealed()));
    column_[spare_.back()].sealed = !open;
  }
  return {};
}

}  // namespace kvasir
