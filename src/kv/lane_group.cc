#include "kv/lane_group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
SlotMask LaneGroup::Column::slots_of(TokenIndex begin, TokenIndex end) const {
  const auto slot_of = [&](TokenIndex bound) {
    if (id_offset == nullptr) return static_cast<int>(std::clamp<TokenIndex>(bound - first, 0, used));
    return static_cast<int>(std::partition_point(id_offset, id_offset + used,
                                                 [&](std::uint32_t offset) { return first + offset < bound; }) -
                            id_offset);
  };
  const int low = slot_of(begin);
  return slot_range(low, std::max(low, slot_of(end)));
}

LaneGroup::LaneGroup(int lanes, PagePool* pool, MemoryBudget* budget, const Layout& layout)
    : lanes_(lanes),
      pool_(pool),
      budget_(budget),
      dropping_(layout.dropping),
      original_(layout.original_positions),
      runs_(1 + layout.run_capacities.size()) {
  const bool plain = dropping_ == Dropping::kRanges;
  KVASIR_CHECK(!(plain && (original_ || runs_.size() > 1)) && !(original_ && runs_.size() > 1));
  KVASIR_CHECK(runs_.size() < static_cast<std::size_t>(kMaxFrames));
  for (std::size_t r = 1; r < runs_.size(); ++r) runs_[r].capacity = layout.run_capacities[r - 1];
}

LaneGroup::LaneGroup(LaneGroup&& other) noexcept : LaneGroup(other.lanes_, other.pool_, other.budget_, {}) {
  *this = std::move(other);
}

LaneGroup& LaneGroup::operator=(LaneGroup&& other) noexcept {
  std::swap(lanes_, other.lanes_);
  std::swap(pool_, other.pool_);
  std::swap(budget_, other.budget_);
  std::swap(dropping_, other.dropping_);
  std::swap(original_, other.original_);
  std::swap(runs_, other.runs_);
  std::swap(spare_, other.spare_);
  std::swap(columns_, other.columns_);
  std::swap(spares_, other.spares_);
  std::swap(frame_count_, other.frame_count_);
  std::swap(frames_, other.frames_);
  std::swap(next_id_, other.next_id_);
  std::swap(length_, other.length_);
  std::swap(live_, other.live_);
  std::swap(leaving_, other.leaving_);
  std::swap(ids_, other.ids_);
  std::swap(copies_, other.copies_);
  return *this;
}

LaneGroup::~LaneGroup() {
  const auto destroy_all = [&](Column* column) {
    while (column != nullptr) destroy_column(std::exchange(column, column->next));
  };
  for (const Run& run : runs_) destroy_all(run.head);
  destroy_all(spare_);
}

// REQUIRES: column_bytes() charged.
LaneGroup::Column* LaneGroup::make_column() {
  auto* column = new (::operator new(column_bytes())) Column;
  auto* pages = new (column + 1) PageId[static_cast<std::size_t>(lanes_)];
  column->pages = {pages, static_cast<std::size_t>(lanes_)};
  if (dropping_ == Dropping::kPlans)
    column->id_offset = new (pages + lanes_) std::uint32_t[static_cast<std::size_t>(pool_->shape().slots)]();
  ++columns_;
  return column;
}

void LaneGroup::destroy_column(Column* column) {
  for (const PageId page : column->pages) pool_->release(page);
  column->~Column();
  ::operator delete(column);
  budget_->release(column_bytes());
  --columns_;
}

void LaneGroup::link(Run& run, Column* column) {
  column->ordinal = run.next_ordinal++;
  column->next = nullptr;
  (run.tail == nullptr ? run.head : run.tail->next) = column;
  run.tail = column;
  ++run.columns;
}

std::int64_t LaneGroup::dead_slots() const {
  std::int64_t written = 0;
  for (const Run& run : runs_)
    for (const Column* column = run.head; column != nullptr; column = column->next) written += column->used;
  return written - length_;
}

PageId* LaneGroup::mutable_pages(Column* column) const {
  return const_cast<PageId*>(column->pages.data());
}

std::uint32_t* LaneGroup::mutable_offsets(Column* column) const {
  return const_cast<std::uint32_t*>(column->id_offset);
}

bool LaneGroup::is_shared(const Column& column) const {
  return std::any_of(column.pages.begin(), column.pages.end(),
                     [&](PageId page) { return pool_->references(page) > 1; });
}

// All lanes of a column are shared or none is: fork shares whole columns.
void LaneGroup::copy_pages(Column* column, std::span<const PageId> fresh) {
  for (std::size_t lane = 0; lane < fresh.size(); ++lane) {
    const PageId old = column->pages[lane];
    if (pool_->backing() == Backing::kMemory)
      std::memcpy(pool_->data(fresh[lane]), pool_->data(old), pool_->shape().page_bytes());
    pool_->release(old);
    mutable_pages(column)[lane] = fresh[lane];
  }
}

// Columns that moves after a pass of `tokens` tokens may take, beyond what the runs give back meanwhile: a run is a
// ring of its capacity, so it never holds more columns than that fills, and one.
int LaneGroup::spares_needed(int tokens) const {
  const std::int64_t slots = pool_->shape().slots;
  std::int64_t needed = 0;
  for (std::size_t r = 1; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    const std::int64_t room = run.tail != nullptr ? slots - run.tail->used : 0;
    const std::int64_t moves = std::min<std::int64_t>(tokens, run.capacity) - room;
    const std::int64_t most = (run.capacity + slots - 1) / slots + 1 - run.columns;
    needed += std::clamp<std::int64_t>((moves + slots - 1) / slots, 0, std::max<std::int64_t>(most, 0));
  }
  return static_cast<int>(std::max<std::int64_t>(needed - spares_, 0));
}

LaneGroup::AppendPlan LaneGroup::plan_append(int tokens, bool own_pages) const {
  AppendPlan plan;
  const int slots = pool_->shape().slots;
  const Column* tail = runs_.front().tail;
  const int room = tail != nullptr ? slots - tail->used : 0;
  const auto lanes = static_cast<std::uint64_t>(lanes_);
  if (own_pages) {
    for (const Run& run : runs_)
      for (const Column* column = run.head; column != nullptr; column = column->next)
        if (is_shared(*column)) plan.pages += lanes;
  } else if (tokens > 0 && room > 0 && is_shared(*tail)) {
    plan.pages += lanes;
  }
  if (tokens > room) plan.columns = (tokens - room + slots - 1) / slots;
  if (tokens > 0 && runs_.size() > 1) plan.spares = spares_needed(tokens);
  plan.columns += plan.spares;
  plan.pages += static_cast<std::uint64_t>(plan.columns) * lanes;
  plan.bytes = plan.pages * pool_->page_cost() + static_cast<std::uint64_t>(plan.columns) * column_bytes();
  return plan;
}

Status LaneGroup::append(int tokens) {
  KVASIR_CHECK(tokens > 0);
  const AppendPlan plan = plan_append(tokens);
  const std::uint64_t tables = static_cast<std::uint64_t>(plan.columns) * column_bytes();
  std::vector<PageId> fresh(plan.pages);
  if (plan.bytes > budget_->available() || !pool_->try_allocate(fresh))
    return exhausted(
        "the KV memory of {} bytes is full: {} bytes in use, {} more needed; raise --kv-memory or choose a "
        "policy that forgets (kvasir policies)",
        budget_->capacity(), budget_->used(), plan.bytes);
  KVASIR_CHECK(budget_->try_charge(tables));
  std::span<const PageId> unused = fresh;
  const auto take = [&] {
    const auto pages = unused.first(static_cast<std::size_t>(lanes_));
    unused = unused.subspan(pages.size());
    return pages;
  };
  const auto new_column = [&] {
    Column* column = make_column();
    std::ranges::copy(take(), mutable_pages(column));
    return column;
  };
  const int slots = pool_->shape().slots;
  const int frame = frame_count_ - 1;
  Run& run = runs_.front();
  int left = tokens;
  if (run.tail != nullptr && run.tail->used < slots && is_shared(*run.tail)) copy_pages(run.tail, take());
  while (left > 0) {
    if (run.tail == nullptr || run.tail->used == slots) {
      Column* column = new_column();
      column->first = next_id_;
      column->base = length_ - newest_frame().rotation - newest_frame().origin;
      link(run, column);
    }
    Column& tail = *run.tail;
    const int count = std::min(left, slots - tail.used);
    if (tail.entry_count == 0 || tail.entries[static_cast<std::size_t>(tail.entry_count) - 1].frame != frame) {
      KVASIR_CHECK(tail.entry_count < kMaxColumnEntries);
      tail.entries[static_cast<std::size_t>(tail.entry_count++)] = Entry{0, frame};
    }
    tail.entries[static_cast<std::size_t>(tail.entry_count) - 1].live |= slot_range(tail.used, tail.used + count);
    if (tail.id_offset != nullptr)
      std::iota(mutable_offsets(&tail) + tail.used, mutable_offsets(&tail) + tail.used + count,
                static_cast<std::uint32_t>(next_id_ - tail.first));
    tail.used += count;
    next_id_ += count;
    length_ += count;
    left -= count;
  }
  for (int i = 0; i < plan.spares; ++i) {
    Column* column = new_column();
    column->next = std::exchange(spare_, column);
    ++spares_;
  }
  return {};
}

std::int64_t LaneGroup::retained_in(IndexRange range) const {
  std::int64_t count = 0;
  for (const Run& run : runs_)
    for (const Column* column = run.head; column != nullptr; column = column->next)
      count += std::popcount(live_slots(*column) & column->slots_of(range.begin, range.end));
  return count;
}

SlotMask LaneGroup::live_slots(const Column& column) {
  SlotMask live = 0;
  for (int e = 0; e < column.entry_count; ++e) live |= column.entries[static_cast<std::size_t>(e)].live;
  return live;
}

SlotMask LaneGroup::live_behind(const Column& column, TokenIndex id) {
  return live_slots(column) & column.slots_of(id, std::numeric_limits<TokenIndex>::max());
}

Status LaneGroup::drop(IndexRange range, Realign realign) {
  range.end = std::min(range.end, next_id_);
  const std::int64_t dropped = range.empty() ? 0 : retained_in(range);
  if (dropped == 0) return {};

  // The frame that holds tokens before the hole keeps them; tokens behind it need a frame of their own.
  int split = -1;
  bool behind = false;
  for (const Column* column = runs_.front().head; column != nullptr; column = column->next) {
    for (int e = 0; e < column->entry_count; ++e) {
      const Entry& entry = column->entries[static_cast<std::size_t>(e)];
      if ((entry.live & column->slots_of(column->first, range.begin)) != 0) split = entry.frame;
    }
  }
  for (const Column* column = runs_.front().head; column != nullptr; column = column->next) {
    for (int e = 0; e < column->entry_count; ++e) {
      const Entry& entry = column->entries[static_cast<std::size_t>(e)];
      behind = behind || (entry.frame == split && (entry.live & column->slots_of(range.end, next_id_)) != 0);
    }
  }
  const bool open = split == frame_count_ - 1;  // tokens yet to come are behind the hole too
  const bool splits = split >= 0 && (behind || open);
  const int newest = frame_count_ - 1 + (splits ? 1 : 0);

  // What stays of a column's entries. At most one of them, that of the split frame, becomes two.
  struct Remaining {
    std::array<Entry, kMaxColumnEntries + 1> entries;
    std::size_t count = 0;
  };
  const auto remaining_of = [&](const Column& column) {
    Remaining kept;
    const SlotMask hole = column.slots_of(range.begin, range.end);
    const SlotMask rear = column.slots_of(range.end, next_id_);
    for (int e = 0; e < column.entry_count; ++e) {
      const Entry& entry = column.entries[static_cast<std::size_t>(e)];
      const SlotMask live = entry.live & ~hole;
      const SlotMask moved = splits && entry.frame == split ? live & rear : 0;
      const int shift = splits && entry.frame > split ? 1 : 0;
      if ((live & ~moved) != 0) kept.entries[kept.count++] = Entry{live & ~moved, entry.frame + shift};
      if (moved != 0) kept.entries[kept.count++] = Entry{moved, split + 1};
    }
    return kept;
  };
  bool fits = !splits || frame_count_ < kMaxFrames;
  for (const Column* column = runs_.front().head; column != nullptr && fits; column = column->next) {
    const Remaining kept = remaining_of(*column);
    // The open column keeps a place for the tokens to come.
    const bool full = column->used == pool_->shape().slots;
    const bool lacks_newest = kept.count == 0 || kept.entries[kept.count - 1].frame != newest;
    fits = kept.count + (!full && lacks_newest ? 1 : 0) <= kMaxColumnEntries;
  }
  if (!fits) return unsupported("too many holes in one run of tokens: the cache is due for compaction");

  for (Column* column = runs_.front().head; column != nullptr; column = column->next) {
    const Remaining kept = remaining_of(*column);
    std::ranges::copy_n(kept.entries.begin(), kMaxColumnEntries, column->entries.begin());
    column->entry_count = static_cast<int>(kept.count);
  }
  if (splits) {
    for (int f = frame_count_; f > split; --f)
      frames_[static_cast<std::size_t>(f)] = frames_[static_cast<std::size_t>(f) - 1];
    ++frame_count_;
  }
  const int first_behind = split + 1;  // frames from here on lie behind the hole, or in it
  for (int f = first_behind; f < frame_count_; ++f) {
    Frame& frame = frames_[static_cast<std::size_t>(f)];
    (realign == Realign::kFrames ? frame.origin : frame.rotation) -= dropped;
  }
  length_ -= dropped;
  remove_empty_columns();
  remove_empty_frames();
  return {};
}

void LaneGroup::remove_empty_columns() {
  Run& run = runs_.front();
  Column** at = &run.head;
  run.tail = nullptr;
  while (*at != nullptr) {
    Column* column = *at;
    // The open column stays, even when all its tokens were dropped: the next tokens go there.
    const bool open = column->next == nullptr && column->used < pool_->shape().slots;
    if (column->entry_count == 0 && !open) {
      *at = column->next;
      destroy_column(column);
      --run.columns;
    } else {
      run.tail = column;
      at = &column->next;
    }
  }
}

void LaneGroup::remove_empty_frames() {
  std::array<bool, kMaxFrames> used{};
  used[static_cast<std::size_t>(frame_count_) - 1] = true;  // the newest stays open
  for (const Column* column = runs_.front().head; column != nullptr; column = column->next)
    for (int e = 0; e < column->entry_count; ++e)
      used[static_cast<std::size_t>(column->entries[static_cast<std::size_t>(e)].frame)] = true;
  std::array<int, kMaxFrames> renamed{};
  int count = 0;
  for (int f = 0; f < frame_count_; ++f) {
    renamed[static_cast<std::size_t>(f)] = count;
    if (used[static_cast<std::size_t>(f)])
      frames_[static_cast<std::size_t>(count++)] = frames_[static_cast<std::size_t>(f)];
  }
  if (count == frame_count_) return;
  frame_count_ = count;
  for (Column* column = runs_.front().head; column != nullptr; column = column->next)
    for (int e = 0; e < column->entry_count; ++e) {
      int& frame = column->entries[static_cast<std::size_t>(e)].frame;
      frame = renamed[static_cast<std::size_t>(frame)];
    }
}

Status LaneGroup::unshare_behind(TokenIndex id) {
  std::vector<Column*> shared;
  for (const Run& run : runs_)
    for (Column* column = run.head; column != nullptr; column = column->next)
      if (live_behind(*column, id) != 0 && is_shared(*column)) shared.push_back(column);
  std::vector<PageId> fresh(shared.size() * static_cast<std::size_t>(lanes_));
  if (!pool_->try_allocate(fresh))
    return exhausted("the KV memory of {} bytes cannot hold an own copy of {} shared pages; raise --kv-memory",
                     budget_->capacity(), fresh.size());
  for (std::size_t i = 0; i < shared.size(); ++i)
    copy_pages(shared[i],
               std::span(fresh).subspan(i * static_cast<std::size_t>(lanes_), static_cast<std::size_t>(lanes_)));
  return {};
}

Result<LaneGroup> LaneGroup::fork() const {
  const std::uint64_t bytes = static_cast<std::uint64_t>(columns_ - spares_) * column_bytes();
  if (!budget_->try_charge(bytes))
    return exhausted("the KV memory of {} bytes cannot hold the tables of a fork ({} bytes); raise --kv-memory",
                     budget_->capacity(), bytes);
  LaneGroup copy(lanes_, pool_, budget_, {});
  copy.dropping_ = dropping_;
  copy.original_ = original_;
  copy.frame_count_ = frame_count_;
  copy.frames_ = frames_;
  copy.next_id_ = next_id_;
  copy.length_ = length_;
  copy.runs_.resize(runs_.size());
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    Run& run = copy.runs_[r];
    run.capacity = runs_[r].capacity;
    for (const Column* column = runs_[r].head; column != nullptr; column = column->next) {
      Column* twin = copy.make_column();
      const std::span<const PageId> pages = twin->pages;
      std::uint32_t* offsets = copy.mutable_offsets(twin);
      *twin = *column;
      twin->pages = pages;
      twin->id_offset = offsets;
      if (offsets != nullptr) std::copy_n(column->id_offset, pool_->shape().slots, offsets);
      std::ranges::copy(column->pages, copy.mutable_pages(twin));
      for (const PageId page : twin->pages) pool_->retain(page);
      run.next_ordinal = column->ordinal;  // as the original's, where columns in between are gone
      copy.link(run, twin);
    }
    run.next_ordinal = runs_[r].next_ordinal;
  }
  return copy;
}

void LaneGroup::check_invariants(std::span<std::uint32_t> references) const {
  int count = 0;
  std::int64_t live_tokens = 0;
  std::vector<std::pair<TokenIndex, Position>> tokens;  // id, position
  const auto count_pages = [&](const Column& column) {
    ++count;
    KVASIR_CHECK(column.pages.size() == static_cast<std::size_t>(lanes_));
    for (const PageId page : column.pages) ++references[static_cast<std::size_t>(page)];
  };
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    const Column* newest = nullptr;
    TokenIndex last = -1;
    int frame = 0;
    int columns = 0;
    std::int64_t held = 0;
    for (const Column* column = run.head; column != nullptr; column = column->next) {
      ++columns;
      KVASIR_CHECK(column->id(0) > last || newest == nullptr);
      KVASIR_CHECK(newest == nullptr || newest->ordinal < column->ordinal);
      KVASIR_CHECK(column->used > 0 && column->used <= pool_->shape().slots);
      KVASIR_CHECK(column->entry_count > 0 || (column->next == nullptr && r == 0));
      for (int s = 1; s < column->used; ++s) KVASIR_CHECK(column->id(s) > column->id(s - 1));
      last = column->id(column->used - 1);
      SlotMask seen = 0;
      for (int e = 0; e < column->entry_count; ++e) {
        const Entry& entry = column->entries[static_cast<std::size_t>(e)];
        KVASIR_CHECK(entry.live != 0 && (entry.live & ~slot_range(0, column->used)) == 0);
        KVASIR_CHECK((entry.live & seen) == 0 &&
                     (seen == 0 || std::countr_zero(entry.live) >= static_cast<int>(std::bit_width(seen))));
        KVASIR_CHECK(entry.frame >= frame && entry.frame < frame_count_);
        frame = entry.frame;
        seen |= entry.live;
        const Frame& f = frames_[static_cast<std::size_t>(frame)];
        KVASIR_CHECK(f.run == static_cast<int>(r));
        for (SlotMask left = entry.live; left != 0; left &= left - 1, ++held) {
          const int slot = std::countr_zero(left);
          tokens.emplace_back(column->id(slot), stored_rotation(*column, slot, f) + f.origin);
        }
      }
      count_pages(*column);
      newest = column;
    }
    KVASIR_CHECK(newest == run.tail && columns == run.columns && last < next_id_);
    KVASIR_CHECK(r == 0 || held <= run.capacity);
    live_tokens += held;
  }
  for (const Column* column = spare_; column != nullptr; column = column->next) count_pages(*column);
  KVASIR_CHECK(count == columns_ && live_tokens == length_);
  // Each retained token stands behind all retained tokens with smaller ids.
  std::sort(tokens.begin(), tokens.end());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    KVASIR_CHECK(tokens[i].second == (original_ ? tokens[i].first : static_cast<Position>(i)));
  if (dropping_ == Dropping::kRanges)
    KVASIR_CHECK(next_id_ + newest_frame().rotation + newest_frame().origin == length_);
}

}  // namespace kvasir
