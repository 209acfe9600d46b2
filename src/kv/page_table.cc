#include "kv/page_table.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

namespace {

// Capacity of the arrays that have held `columns` columns. Grows by a quarter, so that growing costs O(1) a column.
std::int64_t array_capacity(std::int64_t columns) {
  constexpr std::int64_t kStep = 8;
  if (columns == 0) return 0;
  std::int64_t capacity = kStep;
  while (capacity < columns) capacity += std::max(kStep, capacity / 4 / kStep * kStep);
  return capacity;
}

// Entries that a run's array holds. Twice the columns, so that closing the gap in front of a frame is rare.
std::int64_t entry_capacity(std::int64_t columns, std::int64_t run_capacity, int slots, int most_frames) {
  if (run_capacity > 0) columns = std::min(columns, (run_capacity + slots - 1) / slots + 2);
  return columns == 0 ? 0 : 2 * columns + most_frames;
}

// The number of items in front of the first for which up_to is 0. Compares with many at a time: they are read at once,
// not one after the other as in binary search, and after a forward pass none of them is in a cache.
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

std::uint64_t PageTable::bytes_at(int lanes, int slots, const Layout& layout, std::int64_t columns) {
  if (columns == 0) return 0;
  const std::int64_t capacity = array_capacity(columns);
  const auto per_column =
      static_cast<std::int64_t>(sizeof(Column) + static_cast<std::size_t>(lanes) * sizeof(PageId) +
                                (layout.lists ? static_cast<std::size_t>(slots) * sizeof(std::uint32_t) : 0) +
                                (layout.encoded() ? static_cast<std::size_t>(slots) : 0) + sizeof(std::uint32_t) +
                                (layout.run_capacities.empty() ? 0 : sizeof(std::uint32_t)));
  const auto open_pages = static_cast<std::size_t>(open_capacity(layout, slots) * lanes) * sizeof(PageId);
  std::int64_t entries = entry_capacity(capacity, 0, slots, layout.most_frames());
  for (const std::int64_t run : layout.run_capacities)
    entries += entry_capacity(capacity, run, slots, layout.most_frames());
  const std::size_t runs = 1 + layout.run_capacities.size();
  return sizeof(PageTable) + static_cast<std::size_t>(layout.most_frames()) * sizeof(Frame) +
         runs * (sizeof(Run) + sizeof(std::uint32_t)) + layout.run_capacities.size() * sizeof(std::int64_t) +
         open_pages + static_cast<std::uint64_t>(capacity * per_column) +
         static_cast<std::uint64_t>(entries) *
             (sizeof(PageEntry) + (layout.original_positions ? sizeof(TokenIndex) : 0));
}

PageTable::PageTable(int lanes, PagePool* pool, const Layout& layout)
    : lanes_(lanes),
      slots_(static_cast<std::size_t>(pool->shape().slots)),
      pool_(pool),
      lists_(layout.lists),
      original_(layout.original_positions),
      layout_(layout),
      runs_(1 + layout.run_capacities.size()),
      tail_(runs_.size(), kNone),
      frames_(1),
      pages_(pool),
      open_pages_(pool) {
  KVASIR_CHECK(lists_ || (!original_ && runs_.size() == 1));
  KVASIR_CHECK(!(original_ && runs_.size() > 1) && runs_.size() < static_cast<std::size_t>(kMaxFrames));
  frames_.reserve(static_cast<std::size_t>(most_frames()));
  for (std::size_t r = 1; r < runs_.size(); ++r) runs_[r].capacity = layout.run_capacities[r - 1];
}

PageTable::PageTable(PageTable&& other) noexcept : PageTable(other.lanes_, other.pool_, {}) {
  *this = std::move(other);
}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  std::swap(lanes_, other.lanes_);
  std::swap(slots_, other.slots_);
  std::swap(pool_, other.pool_);
  std::swap(lists_, other.lists_);
  std::swap(original_, other.original_);
  std::swap(layout_, other.layout_);
  std::swap(runs_, other.runs_);
  std::swap(tail_, other.tail_);
  std::swap(frames_, other.frames_);
  std::swap(column_, other.column_);
  pages_ = std::move(other.pages_);
  std::swap(offsets_, other.offsets_);
  std::swap(encodings_, other.encodings_);
  std::swap(free_, other.free_);
  std::swap(entry_first_, other.entry_first_);
  std::swap(spare_, other.spare_);
  std::swap(seals_, other.seals_);
  open_pages_ = std::move(other.open_pages_);
  std::swap(columns_, other.columns_);
  std::swap(peak_columns_, other.peak_columns_);
  std::swap(bytes_, other.bytes_);
  std::swap(next_index_, other.next_index_);
  std::swap(length_, other.length_);
  std::swap(given_back_, other.given_back_);
  std::swap(written_, other.written_);
  std::swap(slots_moved_, other.slots_moved_);
  std::swap(pages_copied_, other.pages_copied_);
  std::swap(slots_encoded_again_, other.slots_encoded_again_);
  return *this;
}

PageTable::~PageTable() {
  pool_->budget().release(bytes());
}

SlotMask PageTable::slots_of(std::uint32_t column, TokenIndex begin, TokenIndex end) const {
  const Column& c = column_[column];
  const auto slot_of = [&](TokenIndex bound) {
    if (!lists_) return static_cast<int>(std::clamp<TokenIndex>(bound - c.first, 0, c.used));
    const std::uint32_t* offsets = offset(column);
    return static_cast<int>(
        std::partition_point(offsets, offsets + c.used, [&](std::uint32_t o) { return c.first + o < bound; }) -
        offsets);
  };
  const int low = slot_of(begin);
  return slot_range(low, std::max(low, slot_of(end)));
}

bool PageTable::is_shared(std::uint32_t column) const {
  // All lanes of a column are shared or none is: forks share whole columns (check_invariants).
  return pool_->references(pages_of(column).front()) > 1;
}

// Grows the arrays so that `columns` columns fit. Where an allocation throws, the table and its charge stay as they
// were, and the next call grows the rest. REQUIRES: the bytes are available (checked).
void PageTable::reserve_columns(std::int64_t columns) {
  if (columns <= peak_columns_) return;
  const int slots = static_cast<int>(slots_);
  const std::int64_t capacity = array_capacity(columns);
  if (capacity != array_capacity(peak_columns_)) {
    const auto count = static_cast<std::size_t>(capacity);
    column_.reserve(count);
    pages_.reserve(count * static_cast<std::size_t>(lanes_));
    if (lists_) offsets_.reserve(count * slots_);
    if (layout_.encoded()) encodings_.reserve(count * slots_);
    free_.reserve(count);
    if (runs_.size() > 1) spare_.reserve(count);
    open_pages_.reserve(static_cast<std::size_t>(open_capacity() * lanes_));
    for (Run& run : runs_)
      run.entries.reserve(static_cast<std::size_t>(entry_capacity(capacity, run.capacity, slots, most_frames())));
    if (layout_.original_positions) entry_first_.reserve(runs_.front().entries.capacity());
  }
  const std::uint64_t bytes = bytes_at(lanes_, slots, layout_, columns);
  KVASIR_CHECK(pool_->budget().try_charge(bytes - bytes_));
  bytes_ = bytes;
  peak_columns_ = columns;
}

// Takes its pages from `pages`, from number `first` on. REQUIRES: room in the arrays.
std::uint32_t PageTable::take_column(PageRefs& pages, std::size_t first) {
  std::uint32_t column = 0;
  if (!free_.empty()) {
    column = free_.back();
    free_.pop_back();
    column_[column] = {};
  } else {
    column = static_cast<std::uint32_t>(column_.size());
    KVASIR_CHECK(column_.size() < column_.capacity());
    column_.emplace_back();
    if (lists_) offsets_.resize(offsets_.size() + slots_);
    if (layout_.encoded()) encodings_.resize(encodings_.size() + slots_);
  }
  pages_.take(first_page(column), pages, first, static_cast<std::size_t>(lanes_));
  ++columns_;
  return column;
}

// Of a column that no entry refers to, or of a spare one.
void PageTable::release_column(std::uint32_t column) {
  pages_.reset(first_page(column), static_cast<std::size_t>(lanes_));
  column_[column].entries = 0;
  free_.push_back(column);
  --columns_;
}

// Puts a column at the end of a run.
void PageTable::start_column(std::uint32_t column, int run, TokenIndex first, Position base) {
  Run& r = runs_[static_cast<std::size_t>(run)];
  Column& c = column_[column];
  c.ordinal = r.next_ordinal++;
  c.first = first;
  c.base = base;
  c.used = 0;
  c.live = 0;
  if (layout_.encoded()) std::fill_n(encodings(column), slots_, std::uint8_t{0});
  ++r.columns;
  tail_[static_cast<std::size_t>(run)] = column;
}

// Makes room for one entry more in the array of a run: closes the gaps between frames when it is full.
void PageTable::make_entry_room(int run) {
  std::vector<PageEntry>& entries = runs_[static_cast<std::size_t>(run)].entries;
  if (entries.size() < entries.capacity()) return;
  std::uint32_t to = 0;
  for (Frame& frame : frames_) {
    if (frame.run != run) continue;
    std::move(entries.begin() + frame.begin, entries.begin() + frame.end, entries.begin() + to);
    const std::uint32_t count = frame.end - frame.begin;
    frame.begin = to;
    frame.end = to += count;
  }
  entries.resize(to);
  KVASIR_CHECK(entries.size() < entries.capacity());
}

// Adds an entry at the end of the newest frame of a run.
void PageTable::push_entry(Frame& frame, const PageEntry& entry) {
  std::vector<PageEntry>& entries = runs_[static_cast<std::size_t>(frame.run)].entries;
  entries.resize(frame.end);
  make_entry_room(frame.run);
  entries.push_back(entry);
  if (original_) {
    entry_first_.resize(frame.end);
    entry_first_.push_back(column_[entry.column].first);
    KVASIR_CHECK(entry_first_.size() == entries.size());
  }
  ++frame.end;
  KVASIR_CHECK(column_[entry.column].entries++ < most_column_entries());
}

void PageTable::count_encodings(std::uint32_t column, SlotMask slots) {
  for (; slots != 0; slots &= slots - 1) {
    std::uint8_t& count = encodings(column)[std::countr_zero(slots)];
    if (count > 0) ++slots_encoded_again_;
    if (count < 255) ++count;
  }
}

PageTable::Encodings PageTable::encodings() const {
  Encodings all;
  all.again = slots_encoded_again_;
  if (!layout_.encoded()) return all;
  for (const Frame& frame : frames_)
    for (const PageEntry& entry : entries_of(frame))
      for (SlotMask left = entry.live; left != 0; left &= left - 1) {
        const int count = encodings(entry.column)[std::countr_zero(left)];
        all.tokens += count > 0;
        all.sum += static_cast<std::uint64_t>(count);
        all.most = std::max(all.most, count);
      }
  return all;
}

// To the pages of `fresh` from number `first` on, which take their place.
void PageTable::copy_pages(std::uint32_t column, PageRefs& fresh, std::size_t first) {
  const auto lanes = static_cast<std::size_t>(lanes_);
  if (pool_->store() != nullptr) pool_->store()->copy(pages_of(column), fresh.ids().subspan(first, lanes));
  pages_.take(first_page(column), fresh, first, lanes);
  pages_copied_ += lanes;
}

// Before a physical write. REQUIRES: room for the copy was reserved (checked).
void PageTable::own_column(std::uint32_t column) {
  if (!is_shared(column)) return;
  PageRefs fresh(pool_);
  KVASIR_CHECK(fresh.try_allocate(static_cast<std::size_t>(lanes_), class_of(column)));
  copy_pages(column, fresh, 0);
}

std::size_t PageTable::columns_up_to(const Frame& frame, TokenIndex token, std::uint32_t from) const {
  if (original_)
    return count_up_to(std::span(entry_first_).subspan(from),
                       [&](TokenIndex first) -> std::size_t { return first <= token; });
  return count_up_to(entries_of(frame).subspan(from - frame.begin),
                     [&](const PageEntry& entry) -> std::size_t { return column_[entry.column].first <= token; });
}

std::uint32_t PageTable::find_entry(const Frame& frame, TokenIndex token) const {
  const auto entries = entries_of(frame);
  // Most tokens that leave are the oldest of their frame, or the newest.
  if (entries.empty() || token <= first_live(entries.front())) return frame.begin;
  if (token > last_live(entries.back())) return frame.end;
  std::size_t found = 0;
  if (lists_) {
    found = columns_up_to(frame, token, frame.begin);
    while (found > 0 && last_live(entries[found - 1]) >= token) --found;
  } else {
    // Columns are numbered by their tokens, and only those that were given back are missing.
    const auto slots = static_cast<TokenIndex>(slots_);
    const std::int64_t behind = given_back_.end / slots;
    std::int64_t column = token / slots;
    if (column >= given_back_.begin / slots) column = std::max(column, behind);
    found = static_cast<std::size_t>(column >= behind ? std::ssize(entries) - 1 -
                                                            (static_cast<std::int64_t>(entries.back().ordinal) - column)
                                                      : column - static_cast<std::int64_t>(entries.front().ordinal));
  }
  return frame.begin + static_cast<std::uint32_t>(found);
}

IndexRange PageTable::tokens_of(const Frame& frame, std::int64_t before) const {
  if (!lists_) {
    const TokenIndex first = before - frame.rotation - frame.origin;
    return {first, first + frame.tokens};
  }
  const auto entries = entries_of(frame);
  return entries.empty() ? IndexRange{} : IndexRange{first_live(entries.front()), last_live(entries.back()) + 1};
}

TokenIndex PageTable::first_token(std::size_t frame) const {
  std::int64_t before = 0;
  for (std::size_t f = 0; f < frame; ++f) before += frames_[f].tokens;
  return tokens_of(frames_[frame], before).begin;
}

std::int64_t PageTable::retained_in(IndexRange range) const {
  std::int64_t count = 0, before = 0;
  if (range.empty()) return 0;
  for (const Frame& frame : frames_) {
    if (!lists_) {
      const IndexRange held = tokens_of(frame, before);
      count += IndexRange{std::max(held.begin, range.begin), std::min(held.end, range.end)}.size();
      before += frame.tokens;
      continue;
    }
    const std::vector<PageEntry>& entries = runs_[static_cast<std::size_t>(frame.run)].entries;
    for (std::uint32_t e = find_entry(frame, range.begin); e < frame.end && first_live(entries[e]) < range.end; ++e)
      count += std::popcount(entries[e].live & slots_of(entries[e].column, range.begin, range.end));
  }
  return count;
}

// An entry of the column is gone. A column without live slots goes, but for the open one of a table of ranges: the next
// tokens go there.
void PageTable::unlink_entry(int run, std::uint32_t column) {
  Column& c = column_[column];
  --c.entries;
  if (c.live != 0) return;
  KVASIR_CHECK(c.entries == 0);
  const auto r = static_cast<std::size_t>(run);
  const bool open = column == tail_[r] && c.used < static_cast<int>(slots_);
  if (!lists_ && open) return;
  written_ -= c.used;
  if (column == tail_[r]) tail_[r] = kNone;  // trim_tail finds the new one
  --runs_[r].columns;
  release_column(column);
}

Status PageTable::apply(const KeepPlan& plan) {
  if (plan.empty()) return {};
  if (lists_) {
    if (runs_.size() == 1) {
      apply_single(plan.drop);
    } else {
      apply_runs(plan);
    }
    return {};
  }
  KVASIR_CHECK(plan.moves.empty() && plan.drop.size() == 1);
  IndexRange range = plan.drop.front();
  range.end = std::min(range.end, next_index_);
  if (range.empty() || retained_in(range) == 0) return {};
  KVASIR_RETURN_IF_ERROR(check_hole(range));
  if (plan.realign == Realign::kRotate) rotate_behind(range);
  drop_range(range, plan.realign);
  return {};
}

std::vector<std::uint32_t> PageTable::shared_columns(IndexRange range) const {
  std::vector<std::uint32_t> shared;
  if (pages_.shared() == 0) return shared;
  for (const Frame& frame : frames_)
    for (const PageEntry& entry : entries_of(frame))
      if ((entry.live & slots_of(entry.column, range.begin, range.end)) != 0 && is_shared(entry.column))
        shared.push_back(entry.column);
  std::ranges::sort(shared);
  shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
  return shared;
}

std::uint64_t PageTable::unshare_bytes(IndexRange range) const {
  const std::vector<std::uint32_t> shared = shared_columns(range);
  const auto open = std::ranges::count_if(shared, [&](std::uint32_t c) { return !column_[c].sealed; });
  return bytes_of_columns(shared.size(), static_cast<std::uint64_t>(open));
}

Status PageTable::unshare(IndexRange range) {
  const std::vector<std::uint32_t> shared = shared_columns(range);
  const auto lanes = static_cast<std::size_t>(lanes_);
  const auto sealed =
      static_cast<std::size_t>(std::ranges::count_if(shared, [&](std::uint32_t c) { return column_[c].sealed; }));
  PageRefs fresh(pool_);
  PageRefs fresh_sealed(pool_);
  if (!fresh.try_allocate_columns(shared.size() - sealed, lanes, layout_.classes.open) ||
      !fresh_sealed.try_allocate_columns(sealed, lanes, layout_.classes.sealed))
    return exhausted("the KV memory of {} bytes cannot hold an own copy of {} shared pages; give it more",
                     budget().capacity(), shared.size() * lanes)
        .about({"kv_memory"});
  std::size_t used = 0;
  std::size_t used_sealed = 0;
  for (const std::uint32_t column : shared) {
    std::size_t& at = column_[column].sealed ? used_sealed : used;
    copy_pages(column, column_[column].sealed ? fresh_sealed : fresh, std::exchange(at, at + lanes));
  }
  return {};
}

Result<PageTable> PageTable::fork() const {
  if (bytes() > budget().available())
    return exhausted("the KV memory of {} bytes cannot hold the page tables of a fork ({} bytes); give it more",
                     budget().capacity(), bytes())
        .about({"kv_memory"});
  PageTable copy(lanes_, pool_, layout_);
  copy.original_ = original_;
  copy.reserve_columns(peak_columns_);
  copy.tail_ = tail_;
  copy.frames_.assign(frames_.begin(), frames_.end());
  copy.column_.assign(column_.begin(), column_.end());
  copy.pages_.share(pages_);
  KVASIR_CHECK(seals_.empty());
  for (const std::uint32_t column : spare_)  // a fork takes its own
    copy.pages_.reset(first_page(column), static_cast<std::size_t>(lanes_));
  copy.offsets_.assign(offsets_.begin(), offsets_.end());
  copy.encodings_.assign(encodings_.begin(), encodings_.end());
  copy.free_.assign(free_.begin(), free_.end());
  copy.entry_first_.assign(entry_first_.begin(), entry_first_.end());
  copy.free_.insert(copy.free_.end(), spare_.begin(), spare_.end());
  copy.columns_ = columns_ - static_cast<int>(spare_.size());
  copy.next_index_ = next_index_;
  copy.length_ = length_;
  copy.given_back_ = given_back_;
  copy.written_ = written_;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    copy.runs_[r].entries.assign(runs_[r].entries.begin(), runs_[r].entries.end());
    copy.runs_[r].next_ordinal = runs_[r].next_ordinal;
    copy.runs_[r].columns = runs_[r].columns;
  }
  return copy;
}

}  // namespace kvasir
