#include "offload/demoted_pages.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

// Bytes that std::make_shared allocates beside the object.
constexpr std::uint64_t kSharedBytes = 2 * sizeof(void*);

}  // namespace

DemotedPages::DemotedPages(PagePool* pool, const Layout& layout)
    : pool_(pool), layout_(layout), open_(pool), charge_(&pool->budget()) {
  KVASIR_CHECK(layout.lanes > 0 && layout.format.slots % kSegment == 0);
  KVASIR_CHECK(layout.file == nullptr || layout.most_in_memory > 0);
}

std::uint64_t DemotedPages::column_bytes(const Layout& layout) {
  const auto lanes = static_cast<std::uint64_t>(layout.lanes);
  return sizeof(Column) + kSharedBytes + lanes * (sizeof(PageId) + layout.lane_floats() * sizeof(float));
}

std::uint64_t DemotedPages::open_bytes(const Layout& layout) {
  const auto lanes = static_cast<std::uint64_t>(layout.lanes);
  return lanes * (sizeof(PageId) + layout.lane_floats() * sizeof(float)) +
         static_cast<std::uint64_t>(layout.format.slots) * sizeof(TokenIndex);
}

std::uint64_t DemotedPages::bytes_for(const Layout& layout, std::int64_t tokens) {
  if (tokens <= 0) return 0;
  const auto lanes = static_cast<std::uint64_t>(layout.lanes);
  const std::int64_t columns = tokens / layout.format.slots;
  std::int64_t held = columns;
  if (layout.file != nullptr) held = std::min(columns, layout.most_in_memory);
  const std::uint64_t page = layout.format.bytes() + PagePool::kPageOverhead;
  const std::uint64_t open_page = layout.format.open().bytes() + PagePool::kPageOverhead;
  return list_bytes(columns) + static_cast<std::uint64_t>(columns) * column_bytes(layout) +
         static_cast<std::uint64_t>(held) * lanes * page +
         static_cast<std::uint64_t>(columns - held) *
             (SpilledParts::bytes_for(static_cast<std::size_t>(layout.lanes)) + kSharedBytes) +
         open_bytes(layout) + lanes * open_page;
}

std::uint64_t DemotedPages::open_page_bytes() const {
  return open_.size() * pool_->page_cost(layout_.classes.open);
}

std::uint64_t DemotedPages::bytes() const {
  const std::uint64_t page = pool_->page_cost(layout_.classes.sealed);
  std::uint64_t sum = charge_.bytes() + open_page_bytes();
  for (const std::shared_ptr<Column>& column : columns_)
    sum += column->charge.bytes() + (column->parts == nullptr ? column->pages.size() * page : 0);
  return sum;
}

std::uint64_t DemotedPages::own_bytes() const {
  const std::uint64_t page = pool_->page_cost(layout_.classes.sealed);
  std::uint64_t sum = charge_.bytes() + open_page_bytes();
  for (const std::shared_ptr<Column>& column : columns_)
    if (column.use_count() == 1)
      sum += column->charge.bytes() + (column->parts == nullptr ? column->pages.size() * page : 0);
  return sum;
}

std::uint64_t DemotedPages::file_bytes() const {
  std::uint64_t sum = 0;
  for (const std::shared_ptr<Column>& column : columns_)
    if (column->parts != nullptr) sum += static_cast<std::uint64_t>(layout_.lanes) * layout_.format.bytes();
  return sum;
}

Status DemotedPages::open() {
  if (open_.size() > 0) return {};
  const auto lanes = static_cast<std::size_t>(layout_.lanes);
  if (!charge_.try_resize(charge_.bytes() + open_bytes(layout_)))
    return kv_memory_full(pool_->budget(), open_bytes(layout_));
  open_.reserve(lanes);
  if (!open_.try_allocate(lanes, layout_.classes.open)) {
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() - open_bytes(layout_)));
    return kv_memory_full(pool_->budget(), lanes * pool_->page_cost(layout_.classes.open));
  }
  std::fill_n(open_bounds_.ensure(lanes * layout_.lane_floats()), open_bounds_.size(), 0.0F);
  open_tokens_.resize(static_cast<std::size_t>(layout_.format.slots));
  return {};
}

void DemotedPages::take(const PageTable& table, std::span<const IndexRange> ranges) {
  KVASIR_CHECK(table.pages().lanes() == layout_.lanes && status_.ok());
  const std::int64_t before = tokens();
  for (const PageTable::Frame& frame : table.frames())
    for (const PageEntry& entry : table.entries_of(frame)) {
      if (entry.live == 0) continue;
      const TokenIndex first = table.columns().index(entry.column, std::countr_zero(entry.live));
      const TokenIndex last = table.columns().index(entry.column, 63 - std::countl_zero(entry.live));
      SlotMask leaves = 0;
      auto range = std::ranges::partition_point(ranges, [&](const IndexRange& r) { return r.end <= first; });
      for (; range != ranges.end() && range->begin <= last; ++range)
        leaves |= entry.live & table.columns().slots_of(entry.column, range->begin, range->end);
      if (leaves != 0) append(table, entry.column, leaves);
      if (!status_.ok()) return;
    }
  if (tokens() != before && used_ > 0) note_bounds(open_.ids(), used_, open_bounds_);
}

// Copies slots of a column of the table.
void DemotedPages::append(const PageTable& table, std::uint32_t column, SlotMask slots) {
  // The caller has made this memory available.
  KVASIR_CHECK(open().ok());
  while (slots != 0) {
    SlotMask part = slots;
    while (std::popcount(part) > layout_.format.slots - used_) part &= ~(SlotMask{1} << (63 - std::countl_zero(part)));
    slots &= ~part;
    const SlotMove move{table.pages().of(column).data(), part, open_.ids().data(), used_, 0};
    pool_->store()->move({layout_.lanes}, {&move, 1});
    for (SlotMask left = part; left != 0; left &= left - 1)
      open_tokens_[static_cast<std::size_t>(used_++)] = table.columns().index(column, std::countr_zero(left));
    if (used_ == layout_.format.slots) encode_open();
    if (!status_.ok()) return;
  }
}

void DemotedPages::encode_open() {
  if (layout_.file != nullptr)
    while (std::ssize(columns_) - away_ >= layout_.most_in_memory)
      if (status_ = send_oldest(); !status_.ok()) return;
  const auto lanes = static_cast<std::size_t>(layout_.lanes);
  if (columns_.size() == columns_.capacity()) {
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() + list_bytes(kStep)));
    columns_.reserve(columns_.size() + static_cast<std::size_t>(kStep));
  }
  auto column = std::make_shared<Column>(pool_);
  KVASIR_CHECK(column->charge.try_resize(column_bytes(layout_)));
  column->pages.reserve(lanes);
  KVASIR_CHECK(column->pages.try_allocate(lanes, layout_.classes.sealed, PageContent::kUndefined));
  // In order of index.
  std::vector<int> order(static_cast<std::size_t>(layout_.format.slots));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int slot) { return open_tokens_[static_cast<std::size_t>(slot)]; });
  std::vector<SlotMove> moves;
  for (int slot = 0; slot < layout_.format.slots; ++slot) {
    const int from = order[static_cast<std::size_t>(slot)];
    const bool follows = !moves.empty() && from == order[static_cast<std::size_t>(slot) - 1] + 1;
    if (!follows) moves.push_back({open_.ids().data(), 0, column->pages.ids().data(), slot, 0});
    moves.back().slots |= SlotMask{1} << from;
  }
  pool_->store()->repack({layout_.lanes}, moves);
  column->bounds.ensure(lanes * layout_.lane_floats());
  note_bounds(column->pages.ids(), layout_.format.slots, column->bounds);
  columns_.push_back(std::move(column));
  used_ = 0;
}

// Moves the oldest column in memory to the file.
Status DemotedPages::send_oldest() {
  Column& column = *columns_[static_cast<std::size_t>(away_)];
  ++away_;
  if (column.parts != nullptr) return {};  // a fork has sent it
  const auto lanes = static_cast<std::size_t>(layout_.lanes);
  const std::size_t bytes = layout_.format.bytes();
  KVASIR_ASSIGN_OR_RETURN(DemotionFile::Room room, layout_.file->reserve(bytes, lanes));
  const auto began = std::chrono::steady_clock::now();
  bool waited = false;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::span<std::byte> buffer = room.file->buffer();
    for (; buffer.empty(); buffer = room.file->buffer()) {
      room.file->poll(std::chrono::milliseconds(100));
      waited = true;
    }
    pool_->store()->read(column.pages.ids()[lane], buffer.first(bytes));
    room.file->write(room.parts, lane, buffer, bytes);
  }
  if (waited) seconds_writing_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  column.pages.reset(0, lanes);
  column.file = room.file;
  column.parts = std::move(room.parts);
  // This takes less than the pages that were given back.
  KVASIR_CHECK(column.charge.try_resize(column.charge.bytes() + SpilledParts::bytes_for(lanes) + kSharedBytes));
  return {};
}

// Computes the bounds of the first `count` slots of a column. A NaN stays, whichever comes first.
void DemotedPages::note_bounds(std::span<const PageId> pages, int count, AlignedBuffer<float>& to) const {
  const auto dim = static_cast<std::size_t>(layout_.format.head_dim);
  std::vector<float> keys(static_cast<std::size_t>(layout_.format.slots) * dim);
  for (std::size_t lane = 0; lane < pages.size(); ++lane) {
    pool_->store()->read_keys(pages[lane], keys.data());
    float* bounds = to.data() + lane * layout_.lane_floats();
    for (int first = 0; first < count; first += kSegment, bounds += 2 * dim) {
      const float* key = keys.data() + static_cast<std::size_t>(first) * dim;
      std::copy_n(key, dim, bounds);
      std::copy_n(key, dim, bounds + dim);
      for (int slot = first + 1; slot < std::min(count, first + kSegment); ++slot) {
        key += dim;
        for (std::size_t d = 0; d < dim; ++d) {
          float& low = bounds[d];
          float& high = bounds[dim + d];
          low = key[d] < low || std::isnan(key[d]) ? key[d] : low;
          high = key[d] > high || std::isnan(key[d]) ? key[d] : high;
        }
      }
    }
  }
}

Result<DemotedPages> DemotedPages::fork() const {
  KVASIR_RETURN_IF_ERROR(status_);
  DemotedPages copy(pool_, layout_);
  if (open_.size() == 0) return copy;
  KVASIR_RETURN_IF_ERROR(copy.open());
  const std::uint64_t list = columns_.capacity() * sizeof(std::shared_ptr<Column>);
  if (!copy.charge_.try_resize(copy.charge_.bytes() + list)) return kv_memory_full(pool_->budget(), list);
  copy.columns_.reserve(columns_.capacity());
  copy.columns_ = columns_;
  pool_->store()->copy(open_.ids(), copy.open_.ids());
  std::copy_n(open_bounds_.data(), open_bounds_.size(), copy.open_bounds_.data());
  copy.open_tokens_ = open_tokens_;
  copy.away_ = away_;
  copy.used_ = used_;
  return copy;
}

}  // namespace kvasir
