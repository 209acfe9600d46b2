#include "kv/lane_group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

// Slots of a column whose tokens are in [begin, end).
SlotMask slots_of(const LaneGroup::Column& column, TokenId begin, TokenId end) {
  const auto clamp = [&](TokenId id) {
    return static_cast<int>(std::clamp<TokenId>(id - column.first, 0, column.used));
  };
  return slot_range(clamp(begin), std::max(clamp(begin), clamp(end)));
}

}  // namespace

LaneGroup::LaneGroup(int lanes, PagePool* pool, MemoryBudget* budget) : lanes_(lanes), pool_(pool), budget_(budget) {}

LaneGroup::LaneGroup(LaneGroup&& other) noexcept : LaneGroup(other.lanes_, other.pool_, other.budget_) {
  *this = std::move(other);
}

LaneGroup& LaneGroup::operator=(LaneGroup&& other) noexcept {
  std::swap(lanes_, other.lanes_);
  std::swap(pool_, other.pool_);
  std::swap(budget_, other.budget_);
  std::swap(head_, other.head_);
  std::swap(tail_, other.tail_);
  std::swap(columns_, other.columns_);
  std::swap(frame_count_, other.frame_count_);
  std::swap(frames_, other.frames_);
  std::swap(next_id_, other.next_id_);
  std::swap(length_, other.length_);
  std::swap(next_ordinal_, other.next_ordinal_);
  return *this;
}

LaneGroup::~LaneGroup() {
  while (head_ != nullptr) {
    Column* next = head_->next;
    destroy_column(head_);
    head_ = next;
  }
}

// REQUIRES: column_bytes() charged.
LaneGroup::Column* LaneGroup::make_column() {
  auto* column = new (::operator new(column_bytes())) Column;
  auto* pages = new (column + 1) PageId[static_cast<std::size_t>(lanes_)];
  column->pages = {pages, static_cast<std::size_t>(lanes_)};
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

PageId* LaneGroup::mutable_pages(Column* column) const {
  return const_cast<PageId*>(column->pages.data());
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

LaneGroup::AppendPlan LaneGroup::plan_append(int tokens) const {
  AppendPlan plan;
  const int slots = pool_->shape().slots;
  const int room = tail_ != nullptr ? slots - tail_->used : 0;
  const auto lanes = static_cast<std::uint64_t>(lanes_);
  if (tokens > 0 && room > 0 && is_shared(*tail_)) plan.pages += lanes;
  if (tokens > room) plan.columns = (tokens - room + slots - 1) / slots;
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
  const int slots = pool_->shape().slots;
  const int frame = frame_count_ - 1;
  int left = tokens;
  if (tail_ != nullptr && tail_->used < slots && is_shared(*tail_)) copy_pages(tail_, take());
  while (left > 0) {
    if (tail_ == nullptr || tail_->used == slots) {
      Column* column = make_column();
      column->ordinal = next_ordinal_++;
      column->first = next_id_;
      std::ranges::copy(take(), mutable_pages(column));
      (tail_ == nullptr ? head_ : tail_->next) = column;
      tail_ = column;
    }
    const int count = std::min(left, slots - tail_->used);
    if (tail_->entry_count == 0 || tail_->entries[static_cast<std::size_t>(tail_->entry_count) - 1].frame != frame) {
      KVASIR_CHECK(tail_->entry_count < kMaxColumnEntries);
      tail_->entries[static_cast<std::size_t>(tail_->entry_count++)] = Entry{0, frame};
    }
    tail_->entries[static_cast<std::size_t>(tail_->entry_count) - 1].live |=
        slot_range(tail_->used, tail_->used + count);
    tail_->used += count;
    next_id_ += count;
    length_ += count;
    left -= count;
  }
  return {};
}

std::int64_t LaneGroup::retained_in(IdRange range) const {
  std::int64_t count = 0;
  for (const Column* column = head_; column != nullptr; column = column->next)
    for (int e = 0; e < column->entry_count; ++e)
      count +=
          std::popcount(column->entries[static_cast<std::size_t>(e)].live & slots_of(*column, range.begin, range.end));
  return count;
}

SlotMask LaneGroup::live_behind(const Column& column, TokenId id) {
  SlotMask live = 0;
  for (int e = 0; e < column.entry_count; ++e) live |= column.entries[static_cast<std::size_t>(e)].live;
  return live & slots_of(column, id, column.first + column.used);
}

Status LaneGroup::drop(IdRange range, Realign realign) {
  range.end = std::min(range.end, next_id_);
  const std::int64_t dropped = range.empty() ? 0 : retained_in(range);
  if (dropped == 0) return {};

  // The frame that holds tokens before the hole keeps them; tokens behind it need a frame of their own.
  int split = -1;
  bool behind = false;
  for (const Column* column = head_; column != nullptr; column = column->next) {
    for (int e = 0; e < column->entry_count; ++e) {
      const Entry& entry = column->entries[static_cast<std::size_t>(e)];
      if ((entry.live & slots_of(*column, column->first, range.begin)) != 0) split = entry.frame;
    }
  }
  for (const Column* column = head_; column != nullptr; column = column->next) {
    for (int e = 0; e < column->entry_count; ++e) {
      const Entry& entry = column->entries[static_cast<std::size_t>(e)];
      behind = behind || (entry.frame == split && (entry.live & slots_of(*column, range.end, next_id_)) != 0);
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
    const SlotMask hole = slots_of(column, range.begin, range.end);
    const SlotMask rear = slots_of(column, range.end, next_id_);
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
  for (const Column* column = head_; column != nullptr && fits; column = column->next) {
    const Remaining kept = remaining_of(*column);
    // The open column keeps a place for the tokens to come.
    const bool full = column->used == pool_->shape().slots;
    const bool lacks_newest = kept.count == 0 || kept.entries[kept.count - 1].frame != newest;
    fits = kept.count + (!full && lacks_newest ? 1 : 0) <= kMaxColumnEntries;
  }
  if (!fits) return unsupported("too many holes in one run of tokens: the cache is due for compaction");

  for (Column* column = head_; column != nullptr; column = column->next) {
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
  Column** link = &head_;
  tail_ = nullptr;
  while (*link != nullptr) {
    Column* column = *link;
    // The open column stays, even when all its tokens were dropped: the next tokens go there.
    const bool open = column->next == nullptr && column->used < pool_->shape().slots;
    if (column->entry_count == 0 && !open) {
      *link = column->next;
      destroy_column(column);
    } else {
      tail_ = column;
      link = &column->next;
    }
  }
}

void LaneGroup::remove_empty_frames() {
  std::array<bool, kMaxFrames> used{};
  used[static_cast<std::size_t>(frame_count_) - 1] = true;  // the newest stays open
  for (const Column* column = head_; column != nullptr; column = column->next)
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
  for (Column* column = head_; column != nullptr; column = column->next)
    for (int e = 0; e < column->entry_count; ++e) {
      int& frame = column->entries[static_cast<std::size_t>(e)].frame;
      frame = renamed[static_cast<std::size_t>(frame)];
    }
}

Status LaneGroup::unshare_behind(TokenId id) {
  std::vector<Column*> shared;
  for (Column* column = head_; column != nullptr; column = column->next)
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
  if (!budget_->try_charge(table_bytes()))
    return exhausted("the KV memory of {} bytes cannot hold the tables of a fork ({} bytes); raise --kv-memory",
                     budget_->capacity(), table_bytes());
  LaneGroup copy(lanes_, pool_, budget_);
  copy.frame_count_ = frame_count_;
  copy.frames_ = frames_;
  copy.next_id_ = next_id_;
  copy.length_ = length_;
  copy.next_ordinal_ = next_ordinal_;
  Column** link = &copy.head_;
  for (const Column* column = head_; column != nullptr; column = column->next) {
    Column* twin = copy.make_column();
    const std::span<const PageId> pages = twin->pages;
    *twin = *column;
    twin->pages = pages;
    twin->next = nullptr;
    std::ranges::copy(column->pages, copy.mutable_pages(twin));
    for (const PageId page : twin->pages) pool_->retain(page);
    *link = twin;
    link = &twin->next;
    copy.tail_ = twin;
  }
  return copy;
}

void LaneGroup::check_invariants(std::span<std::uint32_t> references) const {
  std::int64_t live_tokens = 0;
  int count = 0;
  TokenId last = -1;
  int frame = 0;
  const Column* newest = nullptr;
  for (const Column* column = head_; column != nullptr; column = column->next) {
    ++count;
    KVASIR_CHECK(column->first > last || newest == nullptr);
    KVASIR_CHECK(newest == nullptr || newest->ordinal < column->ordinal);
    KVASIR_CHECK(column->used > 0 && column->used <= pool_->shape().slots);
    KVASIR_CHECK(column->entry_count > 0 || column->next == nullptr);
    last = column->first + column->used - 1;
    SlotMask seen = 0;
    for (int e = 0; e < column->entry_count; ++e) {
      const Entry& entry = column->entries[static_cast<std::size_t>(e)];
      KVASIR_CHECK(entry.live != 0 && (entry.live & ~slot_range(0, column->used)) == 0);
      KVASIR_CHECK((entry.live & seen) == 0 &&
                   (seen == 0 || std::countr_zero(entry.live) >= static_cast<int>(std::bit_width(seen))));
      KVASIR_CHECK(entry.frame >= frame && entry.frame < frame_count_);
      frame = entry.frame;
      seen |= entry.live;
      // Compact positions: each retained token's position is the number of retained tokens before it.
      const Frame& f = frames_[static_cast<std::size_t>(frame)];
      std::int64_t index = live_tokens;
      for (SlotMask left = entry.live; left != 0; left &= left - 1, ++index)
        KVASIR_CHECK(column->first + std::countr_zero(left) + f.rotation + f.origin == index);
      live_tokens = index;
    }
    KVASIR_CHECK(column->pages.size() == static_cast<std::size_t>(lanes_));
    for (const PageId page : column->pages) ++references[static_cast<std::size_t>(page)];
    newest = column;
  }
  KVASIR_CHECK(newest == tail_ && count == columns_ && live_tokens == length_ && last < next_id_);
  KVASIR_CHECK(next_id_ + newest_frame().rotation + newest_frame().origin == length_);
}

}  // namespace kvasir
