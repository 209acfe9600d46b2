// What tables of lists do to pages, watched: what is copied before a write, and what stays as it is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "kv/kv_cache.h"
#include "kv/table.h"
#include "property/plan_model.h"

namespace kvasir::test {

// Checks what a table asks of the store before it is done: nothing is written to a page that others hold.
class WatchedStore final : public PageStore {
 public:
  WatchedStore(const PageFormat& format, std::map<std::string, int>* counts)
      : format_(format),
        pages_(&generic_kernels(), &threads_,
               {Rotation{2 * static_cast<int>(Content::kFrequencies.size()),
                         {Content::kFrequencies.begin(), Content::kFrequencies.end()},
                         1}}),
        counts_(*counts) {}

  void watch(const PagePool* pool) { pool_ = pool; }
  std::byte* data(PageId page) const { return pages_.data(page); }
  std::uint64_t slots_moved() const { return slots_moved_; }

  Status reserve(PageClass of, const PageFormat& format, std::uint64_t count) override {
    return pages_.reserve(of, format, count);
  }
  void give_back(PageClass of, std::uint64_t first, std::uint64_t count) override {
    pages_.give_back(of, first, count);
  }
  void clear(std::span<const PageId> pages) override { pages_.clear(pages); }
  void copy(std::span<const PageId> from, std::span<const PageId> to) override {
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_GT(pool_->references(from[i]), 1u) << "a copy of a page that nobody shares";
      EXPECT_EQ(pool_->references(to[i]), 1u);
    }
    pages_.copy(from, to);
  }
  void move(ColumnLanes lanes, std::span<const SlotMove> moves) override {
    for (const SlotMove& move : moves) {
      const int count = std::popcount(move.slots);
      EXPECT_GT(count, 0);
      EXPECT_LE(move.to_slot + count, format_.slots);
      EXPECT_EQ(move.slots & ~slot_range(0, format_.slots), 0u);
      for (int lane = 0; lane < lanes.count; ++lane)
        EXPECT_EQ(pool_->references(move.to[lane]), 1u) << "writes to a shared page";
      if (move.from[0] == move.to[0]) {
        EXPECT_LE(move.to_slot, std::countr_zero(move.slots));
        ++counts_["copies within a page"];
      } else {
        ++counts_["copies between pages"];
      }
      slots_moved_ += static_cast<std::uint64_t>(count);
    }
    pages_.move(lanes, moves);
  }
  void repack(ColumnLanes, std::span<const SlotMove>) override { ADD_FAILURE() << "pages are not encoded"; }
  void seal(int, std::span<const PageSeal>) override { ADD_FAILURE() << "pages are not encoded"; }
  void rotate(ColumnLanes, std::span<const SlotRotation>, std::int64_t) override {
    ADD_FAILURE() << "lists move, or stay";
  }
  void read_keys(PageId page, float* keys) const override { pages_.read_keys(page, keys); }
  void read_values(PageId page, float* values) const override { pages_.read_values(page, values); }
  void read_rows(PageId page, int first, int count, std::byte* out) const override {
    pages_.read_rows(page, first, count, out);
  }
  void write_rows(PageId, int, int, const std::byte*) override { ADD_FAILURE() << "tables do not write rows"; }
  void put_row(PageId, int, const std::byte*) override { ADD_FAILURE() << "tables do not write rows"; }
  void read(PageId page, std::span<std::byte> out) const override { pages_.read(page, out); }
  void write(PageId page, std::span<const std::byte> in) override { pages_.write(page, in); }

 private:
  PageFormat format_;
  ThreadPool threads_{1};
  CpuPageStore pages_;
  const PagePool* pool_ = nullptr;
  std::map<std::string, int>& counts_;
  std::uint64_t slots_moved_ = 0;
};

// Columns of live tokens that another table holds too.
inline std::set<std::uint32_t> shared_columns(const PageTable& table, const PagePool& pool) {
  std::set<std::uint32_t> shared;
  for (const LiveToken& token : live_tokens(table))
    if (pool.references(table.pages().of(token.column)[0]) > 1) shared.insert(token.column);
  return shared;
}

// A change of a table, from before it to after it.
class WatchedChange {
 public:
  // `written`: columns that are expected to be written to; `staying`: those of which something stays where it is.
  WatchedChange(const PageTable& table, const PagePool& pool, const WatchedStore& store,
                const std::set<std::uint32_t>& written, const std::set<std::uint32_t>& staying)
      : table_(table),
        store_(store),
        pages_copied_(table.pages().pages_copied()),
        slots_moved_(table.pages().slots_moved()),
        slots_moved_in_store_(store.slots_moved()) {
    std::ranges::set_intersection(written, shared_columns(table, pool), std::inserter(copied_, copied_.end()));
    for (const std::uint32_t column : staying) {
      const auto pages = table.pages().of(column);
      pages_[column].assign(pages.begin(), pages.end());
    }
  }

  std::uint64_t slots_moved() const { return table_.pages().slots_moved() - slots_moved_; }
  int columns_copied() const { return static_cast<int>(copied_.size()); }

  // Copied was what was written to while shared, and nothing else.
  void verify() const {
    ASSERT_EQ(table_.pages().pages_copied() - pages_copied_,
              copied_.size() * static_cast<std::uint64_t>(table_.pages().lanes()));
    ASSERT_EQ(slots_moved(), store_.slots_moved() - slots_moved_in_store_);
    std::set<std::uint32_t> now;
    for (const LiveToken& token : live_tokens(table_)) now.insert(token.column);
    for (const auto& [column, pages] : pages_) {
      if (!now.contains(column)) continue;  // emptied by compaction
      ASSERT_EQ(std::ranges::equal(table_.pages().of(column), pages), !copied_.contains(column));
    }
  }

 private:
  const PageTable& table_;
  const WatchedStore& store_;
  std::set<std::uint32_t> copied_;                      // that are expected to be
  std::map<std::uint32_t, std::vector<PageId>> pages_;  // of columns of which something stays where it is
  std::uint64_t pages_copied_;
  std::uint64_t slots_moved_;
  std::uint64_t slots_moved_in_store_;
};

// Of each run that takes tokens: the column where the first of them goes, if it holds others already. `stay`: tokens
// that stay in their run.
inline std::set<std::uint32_t> open_columns(const PageTable& table, const KeepPlan& plan,
                                            const std::set<TokenIndex>& stay, int slots) {
  std::set<std::uint32_t> open;
  const std::vector<LiveToken> live = live_tokens(table);
  for (int run = 1; run < table.layout().runs(); ++run) {
    if (std::ranges::find(plan.moves, run, &KeepPlan::Move::run) == plan.moves.end()) continue;
    const LiveToken* newest = nullptr;
    for (const LiveToken& token : live)
      if (table.frames()[static_cast<std::size_t>(token.frame)].run == run && stay.contains(token.id)) newest = &token;
    if (newest != nullptr && newest->slot + 1 < slots) open.insert(newest->column);
  }
  return open;
}

inline std::uint64_t linked_columns(const PageTable& table) {
  std::uint64_t count = 0;
  for (int run = 0; run < table.layout().runs(); ++run) count += columns_of(table, run).size();
  return count;
}

// What holds once a plan was applied to a single run.
inline void verify_tidy(const PageTable& table, int slots) {
  const MaskedColumns columns(table, {});
  ASSERT_EQ(columns.parts.size(), linked_columns(table)) << "a column without live slots";
  ASSERT_EQ(table.tokens().dead_slots(), columns.dead()) << "the newest column has a dead end";
  ASSERT_LE(table.tokens().dead_slots() * 4, columns.written());
  ASSERT_EQ(columns.due(table.tokens().original), "");
  // All but the newest column are full, so that these dead slots are all that is lost.
  for (std::size_t i = 0; i + 1 < columns.parts.size(); ++i) ASSERT_EQ(columns.parts[i].used, slots);
}

// Runs but the first are rings: no holes, no more columns than their capacity fills, and one frame each.
inline void verify_rings(const PageTable& table, const std::vector<std::int64_t>& capacities, int slots) {
  std::vector<int> frames(static_cast<std::size_t>(table.layout().runs()));
  for (const PageTable::Frame& frame : table.frames()) ++frames[static_cast<std::size_t>(frame.run)];
  for (int run = 1; run < table.layout().runs(); ++run) {
    const std::int64_t capacity = capacities[static_cast<std::size_t>(run)];
    const std::vector<std::uint32_t> columns = columns_of(table, run);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const PageTable::Column& column = table.columns()[columns[i]];
      ASSERT_NE(column.live, 0u);
      const int first = i == 0 ? std::countr_zero(column.live) : 0;
      ASSERT_EQ(column.live, slot_range(first, column.used)) << "a hole in run " << run;
      ASSERT_TRUE(i + 1 == columns.size() || column.used == slots);
    }
    ASSERT_LE(static_cast<std::int64_t>(columns.size()), (capacity + slots - 1) / slots + 1);
    ASSERT_LE(frames[static_cast<std::size_t>(run)], 1);
  }
}

}  // namespace kvasir::test
