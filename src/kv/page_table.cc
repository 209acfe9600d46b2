#include "kv/page_table.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

// Grows the arrays so that `columns` columns fit. If an allocation throws, the charge stays as it was, and the next
// call grows the remaining arrays. REQUIRES: the bytes are available (checked).
void PageTable::reserve_columns(std::int64_t columns) {
  if (columns <= tokens_.columns.capacity()) return;
  const std::uint64_t bytes = charge_.bytes() + memory().growth(columns);
  const int open = layout().open_capacity(tokens_.columns.slots());
  seals_.reserve_pages(static_cast<std::size_t>(open * pages().lanes()));
  tokens_.reserve(TableMemory::array_capacity(columns));
  KVASIR_CHECK(charge_.try_resize(bytes));
}

Status PageTable::append(int tokens, int of_chunk) {
  KVASIR_CHECK(tokens > 0 && seals_.all().empty());
  TableTokens& t = tokens_;
  TableColumns& columns = t.columns;
  const TableMemory::AppendPlan plan = memory().plan_append(tokens, of_chunk);
  FreshPages fresh = pages().fresh();
  const auto lanes = static_cast<std::uint64_t>(pages().lanes());
  const MemoryBudget& budget = pages().pool().budget();
  if (plan.bytes > budget.available() ||
      !fresh.try_allocate((plan.pages - plan.sealed_pages) / lanes, plan.sealed_pages / lanes))
    return kv_memory_full(budget, plan.bytes);
  seals_.reserve(plan.seals + plan.sealed);
  reserve_columns(columns.count() + plan.columns);
  const int slots = columns.slots();
  TableTokens::Run& run = t.runs.front();
  const int room = t.room(0);
  if (room > 0 && pages().is_shared(run.tail)) columns.pages().copy(run.tail, fresh, false);
  if (plan.seals > 0) {
    std::vector<std::uint32_t>& order = pages().pool().scratch().columns;
    order.clear();
    t.for_each_open([&](std::uint32_t column) { order.push_back(column); });
    for (int i = 0; i < plan.seals; ++i) {
      const std::uint32_t column = order[order.size() - 1 - static_cast<std::size_t>(i)];
      const bool fills = column == run.tail && room > 0;
      const TokenIndex last = fills ? t.next_index + room - 1 : columns.last_index(column);
      seals_.add(column, layout().first_reader(last), columns, fresh);
    }
  }
  int sealed_left = plan.sealed;
  Frame& frame = t.frames.back();
  for (int left = tokens; left > 0;) {
    if (t.room(0) == 0) {
      const bool sealed = sealed_left-- > 0;
      const std::uint32_t column = columns.take(fresh, sealed);
      t.start_column(column, 0, t.next_index, t.length - frame.rotation - frame.origin);
      if (sealed) seals_.add(column, layout().first_reader(t.next_index + slots - 1));
    }
    const int count = std::min(left, t.room(0));
    t.extend(frame, count);
    left -= count;
  }
  for (int i = 0; i < plan.spares; ++i) columns.add_spare(fresh, i >= plan.open_spares && layout().encoded());
  return {};
}

int PageTable::room_to_take_back(int tokens) const {
  const TableTokens& t = tokens_;
  if (t.runs.size() > 1) return 0;
  if (!layout().encoded()) return tokens;
  const int room = t.room(0);
  std::int64_t most = std::min(tokens, (room > 0 ? room : columns().slots()) - 1);
  t.for_each_open([&](std::uint32_t column) {
    const bool fills = column == t.runs.front().tail && room > 0;
    const TokenIndex last = fills ? t.next_index + room - 1 : columns().last_index(column);
    if (const TokenIndex reader = layout().first_reader(last); reader > t.next_index)
      most = std::min(most, reader - t.next_index - 1);
  });
  return static_cast<int>(most);
}

void PageTable::take_back(int tokens) {
  tokens_.retract(tokens_.frames.back(), tokens);
}

void PageTable::end_pass() {
  for (const PassSeals::Seal& seal : seals_.all())
    tokens_.columns.count_encodings(seal.column, columns()[seal.column].live);
  seals_.clear();
}

Status PageTable::adopt(std::span<const PageId> pages) {
  TableTokens& t = tokens_;
  const auto lanes = static_cast<std::size_t>(this->pages().lanes());
  const auto whole = static_cast<std::int64_t>(pages.size() / lanes);
  KVASIR_CHECK(t.next_index == 0 && columns().count() == 0 && layout().runs() == 1 && layout().recent == 0);
  KVASIR_CHECK(pages.size() % lanes == 0);
  if (whole == 0) return {};
  MemoryBudget& budget = this->pages().pool().budget();
  const std::uint64_t bytes = memory().growth(whole);
  if (!budget.make_available(bytes)) return kv_memory_full(budget, bytes);
  const bool sealed = layout().encoded();
  FreshPages shared = this->pages().fresh();
  shared.add(pages);
  reserve_columns(whole);
  for (std::int64_t i = 0; i < whole; ++i) {
    const std::uint32_t column = t.columns.take(shared, sealed);
    t.start_column(column, 0, t.next_index, t.length);
    t.extend(t.frames.back(), columns().slots());
    if (sealed) std::ranges::fill(t.columns.encodings(column), std::uint8_t{1});
  }
  return {};
}

Status PageTable::unshare(IndexRange range) {
  const std::vector<std::uint32_t> shared = memory().shared_columns(range);
  const auto is_sealed = [&](std::uint32_t c) { return columns()[c].sealed; };
  const auto sealed = static_cast<std::uint64_t>(std::ranges::count_if(shared, is_sealed));
  FreshPages fresh = pages().fresh();
  if (!fresh.try_allocate(shared.size() - sealed, sealed))
    return exhausted("the KV memory of {} bytes cannot hold an own copy of {} shared pages; give it more",
                     pages().pool().budget().capacity(), shared.size() * static_cast<std::size_t>(pages().lanes()))
        .about({"kv_memory"});
  for (const std::uint32_t column : shared) tokens_.columns.pages().copy(column, fresh, is_sealed(column));
  return {};
}

Result<PageTable> PageTable::fork() const {
  PagePool& pool = pages().pool();
  if (bytes() > pool.budget().available())
    return exhausted("the KV memory of {} bytes cannot hold the page tables of a fork ({} bytes); give it more",
                     pool.budget().capacity(), bytes())
        .about({"kv_memory"});
  KVASIR_CHECK(seals_.all().empty());
  PageTable copy(pages().lanes(), &pool, layout());
  copy.reserve_columns(columns().capacity());
  copy.tokens_.share(tokens_);
  return copy;
}

}  // namespace kvasir
