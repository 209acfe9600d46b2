#include "kv/table_columns.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {

std::vector<std::uint32_t> TableColumns::in_order() const {
  std::vector<std::uint32_t> columns;
  for (std::uint32_t column = 0; column < handles(); ++column)
    if (columns_[column].used > 0) columns.push_back(column);
  // Handles do not tell age. Columns of different runs may begin with the same token: the stable sort keeps their order
  // when a table is saved, restored and saved again.
  std::ranges::stable_sort(columns, {}, [&](std::uint32_t c) { return columns_[c].first; });
  return columns;
}

SlotMask TableColumns::slots_of(std::uint32_t column, TokenIndex begin, TokenIndex end) const {
  const Column& c = columns_[column];
  const auto slot_of = [&](TokenIndex bound) {
    if (!layout_.lists) return static_cast<int>(std::clamp<TokenIndex>(bound - c.first, 0, c.used));
    const std::span<const std::uint32_t> all = offsets(column);
    return static_cast<int>(std::ranges::partition_point(all, [&](std::uint32_t o) { return c.first + o < bound; }) -
                            all.begin());
  };
  const int low = slot_of(begin);
  return slot_range(low, std::max(low, slot_of(end)));
}

void TableColumns::count_encodings(std::uint32_t column, SlotMask slots) {
  const std::span<std::uint8_t> counts = encodings(column);
  for (; slots != 0; slots &= slots - 1) {
    std::uint8_t& count = counts[static_cast<std::size_t>(std::countr_zero(slots))];
    if (count > 0) ++encoded_again_;
    if (count < 255) ++count;
  }
}

TableColumns::Encodings TableColumns::all_encodings() const {
  Encodings all;
  all.again = encoded_again_;
  if (!layout_.encoded()) return all;
  for (std::uint32_t column = 0; column < handles(); ++column)
    for (SlotMask left = columns_[column].live; left != 0; left &= left - 1) {
      const int count = encodings(column)[static_cast<std::size_t>(std::countr_zero(left))];
      all.tokens += count > 0;
      all.sum += static_cast<std::uint64_t>(count);
      all.most = std::max(all.most, count);
    }
  return all;
}

void TableColumns::exchange_pages(std::uint32_t a, std::uint32_t b) {
  pages_.exchange(a, b);
  std::swap(columns_[a].sealed, columns_[b].sealed);
}

std::uint32_t TableColumns::take(FreshPages& fresh, bool sealed) {
  std::uint32_t column = handles();
  if (!free_.empty()) {
    column = free_.back();
    free_.pop_back();
    KVASIR_CHECK(columns_[column].used == 0);
  } else {
    KVASIR_CHECK(columns_.size() < columns_.capacity());
    columns_.emplace_back();
    if (layout_.lists) offsets_.resize(offsets_.size() + slots_);
    if (layout_.encoded()) encodings_.resize(encodings_.size() + slots_);
  }
  replace_pages(column, fresh, sealed);
  ++count_;
  return column;
}

void TableColumns::release(std::uint32_t column) {
  pages_.release(column);
  columns_[column] = {};
  free_.push_back(column);
  --count_;
}

std::uint32_t TableColumns::take_spare(bool sealed) {
  const auto found = std::ranges::find_if(spares_, [&](std::uint32_t c) { return columns_[c].sealed == sealed; });
  if (found != spares_.end()) {
    const std::uint32_t column = *found;
    spares_.erase(found);
    return column;
  }
  FreshPages fresh = pages_.fresh();
  KVASIR_CHECK(fresh.try_allocate(sealed ? 0 : 1, sealed ? 1 : 0));
  return take(fresh, sealed);
}

void TableColumns::share(const TableColumns& other) {
  columns_ = other.columns_;
  pages_.share(other.pages_);
  offsets_ = other.offsets_;
  encodings_ = other.encodings_;
  free_ = other.free_;
  count_ = other.count_;
  for (const std::uint32_t column : other.spares_) release(column);
}

void TableColumns::reserve(std::int64_t columns) {
  const auto count = static_cast<std::size_t>(columns);
  pages_.reserve(count);
  if (layout_.lists) offsets_.reserve(count * slots_);
  if (layout_.encoded()) encodings_.reserve(count * slots_);
  free_.reserve(count);
  if (layout_.runs() > 1) spares_.reserve(count);
  columns_.reserve(count);
}

std::uint64_t TableColumns::allocated_bytes() const {
  const auto bytes_of = [](const auto& values) { return values.capacity() * sizeof(values[0]); };
  return bytes_of(layout_.run_capacities) + pages_.allocated_bytes() + bytes_of(columns_) + bytes_of(offsets_) +
         bytes_of(encodings_) + bytes_of(free_) + bytes_of(spares_);
}

}  // namespace kvasir
