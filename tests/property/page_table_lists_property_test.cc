// Random keep plans on tables with real pages, against a naive model: a list of tokens, and what was written for each.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "kv/kv_cache.h"
#include "kv/paged_cache.h"
#include "kv/table.h"
#include "property/plan_model.h"

namespace kvasir {
namespace {

constexpr double kTolerance = 1e-5;  // keys are rotated again and again in float

using test::Content;
using test::kHeadDim;
using test::MaskedColumns;
using test::Token;

struct Config {
  std::string name;
  int slots = 16;
  int lanes = 1;
  int budget_columns = 40;
  bool original = false;                 // to begin with
  int usual = 0;                         // tokens that most plans keep
  std::vector<std::int64_t> capacities;  // of all runs, if there are several
  std::int64_t sinks = 0;                // that run 0 holds besides
};

void PrintTo(const Config& config, std::ostream* out) {
  *out << config.name;
}

struct Twin {
  KvSequence real;
  test::PlanModel model;

  PageTable& table() { return real.only_table(); }
  const PageTable& table() const { return real.only_table(); }
};

// Checks what a table asks of the store before it is done: nothing is written to a page that others hold.
class WatchedStore final : public PageStore {
 public:
  WatchedStore(const PageFormat& format, std::map<std::string, int>* counts)
      : format_(format),
        pages_(format, &generic_kernels(), &threads_, {Content::kFrequencies.begin(), Content::kFrequencies.end()}),
        counts_(*counts) {}

  void watch(const PagePool* pool) { pool_ = pool; }
  std::byte* data(PageId page) const { return pages_.data(page); }
  std::uint64_t slots_moved() const { return slots_moved_; }

  Status reserve(std::uint64_t count) override { return pages_.reserve(count); }
  void clear(std::span<const PageId> pages) override { pages_.clear(pages); }
  void copy(std::span<const PageId> from, std::span<const PageId> to) override {
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_GT(pool_->references(from[i]), 1u) << "a copy of a page that nobody shares";
      EXPECT_EQ(pool_->references(to[i]), 1u);
    }
    pages_.copy(from, to);
  }
  void move(int lanes, std::span<const SlotMove> moves) override {
    for (const SlotMove& move : moves) {
      const int count = std::popcount(move.slots);
      EXPECT_GT(count, 0);
      EXPECT_LE(move.to_slot + count, format_.slots);
      EXPECT_EQ(move.slots & ~slot_range(0, format_.slots), 0u);
      for (int lane = 0; lane < lanes; ++lane)
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
  void rotate(int, std::span<const SlotRotation>, std::int64_t) override { ADD_FAILURE() << "lists move, or stay"; }
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

class World {
 public:
  World(const Config& config, std::uint64_t seed)
      : config_(config), random_(seed), store_(shape_of(config).page, &counts) {
    layout_.table.lists = true;
    layout_.table.original_positions = config.original;
    if (!single()) layout_.table.run_capacities.assign(config.capacities.begin() + 1, config.capacities.end());
    page_cost_ = 2u * kHeadDim * static_cast<unsigned>(config.slots) * 4u + 8u;
    // Room for pages, and for the arrays of three tables. They never come out even.
    const std::uint64_t pages = static_cast<std::uint64_t>(config.budget_columns) * column_cost();
    cache_ =
        std::move(*KvCache::create(shape_of(config), pages + 3 * table_bytes(config.budget_columns) + 777, &store_));
    store_.watch(&cache_->pool());
    EXPECT_EQ(KvCache::cost(shape_of(config), layout_, 1), column_cost() + table_bytes(1));
    add();
  }

  void step() {
    const int choice = draw(0, 99);
    if (choice < 70) return pass();
    if (choice < 78) {
      Twin& twin = pick();
      return prune(twin, random_plan(twin));
    }
    if (choice < 82) return unshare(pick());
    if (choice < 90) return fork(pick());
    if (choice < 96) return end();
    if (choice < 98 && single()) return compact(pick());
    if (choice == 98 && single()) return make_compact(pick());
    if (twins_.size() < 4) add();
  }

  void verify() {
    std::vector<const KvSequence*> all;
    for (const auto& twin : twins_) all.push_back(&twin->real);
    cache_->check_invariants(all);
    ASSERT_NO_FATAL_FAILURE(verify_accounts());
    for (const auto& twin : twins_) ASSERT_NO_FATAL_FAILURE(verify(*twin));
  }

  std::map<std::string, int> counts;  // how often what is to be tested happened

 private:
  int draw(int low, int high) { return random_.draw(low, high); }
  bool chance(int percent) { return random_.chance(percent); }
  bool single() const { return config_.capacities.empty(); }
  Twin& pick() { return *twins_[static_cast<std::size_t>(draw(0, static_cast<int>(twins_.size()) - 1))]; }
  void add() {
    twins_.push_back(std::make_unique<Twin>(Twin{cache_->new_sequence(layout_), {}}));
    twins_.back()->model.original = config_.original;
  }

  static KvCacheShape shape_of(const Config& config) {
    return {.layers = config.lanes,
            .kv_heads = 1,
            .page = {.head_dim = kHeadDim, .slots = config.slots, .key = KvType::kF32}};
  }
  std::uint64_t column_cost() const { return static_cast<std::uint64_t>(config_.lanes) * page_cost_; }
  std::uint64_t table_bytes(int most_columns) const {
    return PageTable::bytes_at(config_.lanes, config_.slots, layout_.table, most_columns);
  }

  std::string dump_all() const {
    std::string text = test::dump(cache_->pool(), cache_->budget());
    for (const auto& twin : twins_) text += '\n' + test::dump(twin->table());
    return text;
  }

  // Columns of live tokens that another table holds too.
  std::set<std::uint32_t> shared_columns(const Twin& twin) const {
    std::set<std::uint32_t> shared;
    for (const test::LiveToken& token : test::live_tokens(twin.table()))
      if (cache_->pool().references(twin.table().pages_of(token.column)[0]) > 1) shared.insert(token.column);
    return shared;
  }

  // What a change of a table may write to, and what it holds before.
  struct Before {
    std::set<std::uint32_t> copied;                        // columns that are expected to be
    std::map<std::uint32_t, std::vector<PageId>> staying;  // pages of columns of which some tokens stay where they are
    std::uint64_t pages_copied = 0;
    std::uint64_t slots_moved = 0;
    std::uint64_t slots_moved_in_store = 0;
  };
  // `written`: columns that are expected to be written to; `staying`: those of which something is left.
  Before before_change(const Twin& twin, const std::set<std::uint32_t>& written,
                       const std::set<std::uint32_t>& staying) const {
    Before before;
    const auto shared = shared_columns(twin);
    std::ranges::set_intersection(written, shared, std::inserter(before.copied, before.copied.end()));
    for (const std::uint32_t column : staying) {
      const auto pages = twin.table().pages_of(column);
      before.staying[column].assign(pages.begin(), pages.end());
    }
    before.pages_copied = twin.table().pages_copied();
    before.slots_moved = twin.table().slots_moved();
    before.slots_moved_in_store = store_.slots_moved();
    return before;
  }
  // Copied was what was written to while shared, and nothing else.
  void verify_change(const Twin& twin, const Before& before) {
    const PageTable& table = twin.table();
    ASSERT_EQ(table.pages_copied() - before.pages_copied,
              before.copied.size() * static_cast<std::uint64_t>(config_.lanes));
    ASSERT_EQ(table.slots_moved() - before.slots_moved, store_.slots_moved() - before.slots_moved_in_store);
    counts["columns copied on write"] += static_cast<int>(before.copied.size());
    std::set<std::uint32_t> now;
    for (const test::LiveToken& token : test::live_tokens(table)) now.insert(token.column);
    for (const auto& [column, pages] : before.staying) {
      if (!now.contains(column)) continue;  // emptied by compaction
      ASSERT_EQ(std::ranges::equal(table.pages_of(column), pages), !before.copied.contains(column));
    }
  }
  // Whether what a change may copy is available. Exactly the shared columns are reserved for.
  void check_reserve(const Twin& twin) {
    const std::uint64_t reserve = twin.table().sharing_reserve();
    ASSERT_EQ(reserve, shared_columns(twin).size() * column_cost());
    refused_ = reserve > cache_->budget().available();
    if (refused_) ++counts["changes without room"];
  }

  // Writes the content of the newest `tokens` tokens.
  void write(Twin& twin, int tokens) {
    std::map<TokenIndex, test::LiveToken> places;
    for (const test::LiveToken& place : test::live_tokens(twin.table())) places[place.id] = place;
    for (auto token = twin.model.tokens.end() - tokens; token != twin.model.tokens.end(); ++token) {
      const test::LiveToken& place = places.at(token->id);
      const PageTable::Frame& frame = twin.table().frames()[static_cast<std::size_t>(place.frame)];
      const Position rotation = twin.table().stored_rotation(place.column, place.slot, frame);
      for (int lane = 0; lane < config_.lanes; ++lane) {
        std::array<float, kHeadDim> key, value;
        const auto exact = content_.key_at(token->tag, lane, rotation);
        std::ranges::transform(exact, key.begin(), [](double x) { return static_cast<float>(x); });
        for (int d = 0; d < kHeadDim; ++d)
          value[static_cast<std::size_t>(d)] = Content::element(token->tag, lane, d, true);
        const PageId page = twin.table().pages_of(place.column)[static_cast<std::size_t>(lane)];
        generic_kernels().store_kv(cache_->shape().page, store_.data(page), place.slot, key.data(), value.data());
      }
    }
  }

  // Tokens enter, for some sequences all before any is pruned, as in a batch.
  void pass() {
    std::vector<Twin*> entered;
    const Twin* only = chance(20) ? nullptr : &pick();
    std::uint64_t reserved = 0;  // by the sequences that entered
    for (const auto& twin : twins_) {
      if (only != nullptr && twin.get() != only) continue;
      const int tokens = chance(60) ? 1 : chance(80) ? draw(1, 24) : draw(1, 150);
      const KvSequence::Room room = twin->real.plan_append(tokens);
      if (reserved > 0 && reserved + room.append + room.reserve > cache_->budget().available()) {
        ++counts["appends left to others"];
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(append(*twin, tokens));
      if (refused_) continue;
      entered.push_back(twin.get());
      reserved += room.reserve;
    }
    for (Twin* twin : entered) {
      if (single() && chance(40)) continue;
      ASSERT_NO_FATAL_FAILURE(prune(*twin, random_plan(*twin)));
    }
  }

  // With room for what the plan that follows may copy, as the engine does; sometimes without.
  void append(Twin& twin, int tokens) {
    SCOPED_TRACE(fmt::format("append {}", tokens));
    refused_ = true;
    PageTable& table = twin.table();
    const bool reserves = !single() || chance(90);
    const PageTable::AppendPlan plan = table.plan_append(tokens);
    ASSERT_EQ(twin.real.plan_append(tokens).append, plan.bytes);
    const std::uint64_t reserve = twin.real.plan_append(tokens).reserve;
    // The append itself copies a shared open page.
    const std::vector<std::uint32_t> newest = test::columns_of(table);
    const bool copies = !newest.empty() && table.column(newest.back()).used < config_.slots &&
                        shared_columns(twin).contains(newest.back());
    ASSERT_EQ(reserve, (shared_columns(twin).size() - (copies ? 1 : 0)) * column_cost());
    if (single()) {
      ASSERT_NO_FATAL_FAILURE(verify_plan(twin, tokens, plan));
    }
    const bool expected = plan.bytes + (reserves ? reserve : 0) <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used(), pages = cache_->pool().in_use();
    const int columns = table.columns();
    const std::string before = dump_all();
    const Status status = reserves ? twin.real.append(tokens) : table.append(tokens);
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts["appends refused"];
      if (plan.bytes <= cache_->budget().available()) ++counts["appends refused for copies to come"];
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    refused_ = false;
    ++counts["appends"];
    ASSERT_EQ(cache_->budget().used(), used + plan.bytes);
    ASSERT_EQ(cache_->pool().in_use(), pages + plan.pages);
    ASSERT_EQ(table.columns(), columns + plan.columns);
    twin.model.most_columns = std::max(twin.model.most_columns, table.columns());
    for (int i = 0; i < tokens; ++i) twin.model.tokens.push_back({twin.model.next++, next_tag_++, 0});
    write(twin, tokens);
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  void verify_plan(const Twin& twin, int tokens, const PageTable::AppendPlan& plan) {
    const std::vector<std::uint32_t> all = test::columns_of(twin.table());
    const int room = !all.empty() ? config_.slots - twin.table().column(all.back()).used : 0;
    const bool copies = room > 0 && cache_->pool().references(twin.table().pages_of(all.back())[0]) > 1;
    const int columns = (std::max(tokens - room, 0) + config_.slots - 1) / config_.slots;
    ASSERT_EQ(plan.columns, columns);
    ASSERT_EQ(plan.pages, static_cast<std::uint64_t>((columns + (copies ? 1 : 0)) * config_.lanes));
    const int most = std::max(twin.model.most_columns, static_cast<int>(all.size()) + columns);
    ASSERT_EQ(plan.bytes, plan.pages * page_cost_ + table_bytes(most) - table_bytes(twin.model.most_columns));
  }

  std::vector<Token> random_plan(const Twin& twin) {
    return single() ? random_.subset(twin.model, config_.slots, config_.usual)
                    : random_.cascade(twin.model, config_.capacities, config_.sinks);
  }

  void prune(Twin& twin, std::vector<Token> kept) {
    SCOPED_TRACE(fmt::format("keep {} of {}", kept.size(), twin.model.tokens.size()));
    ASSERT_NO_FATAL_FAILURE(check_reserve(twin));
    if (refused_) return;
    twin.model.planned = twin.model.next;
    KeepPlan plan;
    std::vector<TokenIndex> dropped;
    std::set<TokenIndex> stay;
    auto next = kept.begin();
    for (const Token& token : twin.model.tokens) {
      if (next == kept.end() || next->id != token.id) {
        dropped.push_back(token.id);
        plan.add_drop({token.id, token.id + 1});
        continue;
      }
      if (next->run != token.run) {
        plan.moves.push_back({token.id, next->run});
      } else {
        stay.insert(token.id);
      }
      ++next;
    }
    ASSERT_EQ(next, kept.end());
    if (plan.empty()) ++counts["empty plans"];
    counts["moves"] += static_cast<int>(plan.moves.size());
    counts["drops"] += static_cast<int>(dropped.size());
    const std::string before = dump_all();
    std::string due;
    std::set<std::uint32_t> written;
    if (single() && !plan.empty()) {
      const MaskedColumns masked(twin.table(), dropped);
      due = masked.due(twin.model.original);
      if (!due.empty()) {
        ++counts["due for " + due];
        written = masked.written_by_compaction(twin.table(), config_.slots, twin.model.original);
      } else if (!shared_columns(twin).empty()) {
        ++counts["masked while shared"];
      }
    }
    if (!single()) written = open_columns(twin, plan, stay);
    std::set<std::uint32_t> staying;
    for (const test::LiveToken& token : test::live_tokens(twin.table()))
      if (stay.contains(token.id)) staying.insert(token.column);
    const Before change = before_change(twin, written, staying);
    ASSERT_TRUE(twin.table().apply(plan).ok());
    ASSERT_NO_FATAL_FAILURE(verify_change(twin, change));
    twin.model.tokens = std::move(kept);
    if (plan.empty()) {
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (single()) {
      ASSERT_TRUE(!due.empty() || store_.slots_moved() == change.slots_moved_in_store) << "moved without need\n"
                                                                                       << before;
      ASSERT_TRUE(due.empty() || twin.table().dead_slots() == 0) << due;
      ASSERT_NO_FATAL_FAILURE(verify_tidy(twin));
    }
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  // Of each run that takes tokens: the column where the first of them goes, if it holds others already.
  std::set<std::uint32_t> open_columns(const Twin& twin, const KeepPlan& plan, const std::set<TokenIndex>& stay) const {
    std::set<std::uint32_t> open;
    for (int run = 1; run < twin.table().runs(); ++run) {
      if (std::ranges::find(plan.moves, run, &KeepPlan::Move::run) == plan.moves.end()) continue;
      const test::LiveToken* newest = nullptr;
      const auto live = test::live_tokens(twin.table());
      for (const test::LiveToken& token : live)
        if (twin.table().frames()[static_cast<std::size_t>(token.frame)].run == run && stay.contains(token.id))
          newest = &token;
      if (newest != nullptr && newest->slot + 1 < config_.slots) open.insert(newest->column);
    }
    return open;
  }

  // All tokens together, with or without a change of what their keys are rotated by.
  void compact_all(Twin& twin, bool original) {
    const MaskedColumns columns(twin.table(), {});
    std::set<std::uint32_t> staying;
    for (const MaskedColumns::Part& part : columns.parts) staying.insert(part.column);
    const Before change =
        before_change(twin, columns.written_by_compaction(twin.table(), config_.slots, original), staying);
    if (original == twin.model.original) {
      twin.table().compact();
    } else {
      twin.table().make_positions_compact();
    }
    ASSERT_NO_FATAL_FAILURE(verify_change(twin, change));
    ASSERT_EQ(twin.table().dead_slots(), 0);
    ASSERT_EQ(twin.table().frames().size(), 1u);
    ASSERT_NO_FATAL_FAILURE(verify_tidy(twin));
  }

  void compact(Twin& twin) {
    SCOPED_TRACE("compact");
    ASSERT_NO_FATAL_FAILURE(check_reserve(twin));
    if (refused_) return;
    ++counts["compactions asked for"];
    ASSERT_NO_FATAL_FAILURE(compact_all(twin, twin.model.original));
  }

  void make_compact(Twin& twin) {
    SCOPED_TRACE("to compact positions");
    ASSERT_NO_FATAL_FAILURE(check_reserve(twin));
    if (refused_) return;
    if (!twin.model.original) {
      const std::string before = dump_all();
      twin.table().make_positions_compact();
      ASSERT_EQ(dump_all(), before);
      return;
    }
    ++counts["switches"];
    ASSERT_NO_FATAL_FAILURE(compact_all(twin, false));
    twin.model.original = false;
    ASSERT_FALSE(twin.table().original_positions());
  }

  // Own copies of all shared columns.
  void unshare(Twin& twin) {
    SCOPED_TRACE("unshare");
    const std::uint64_t pages = shared_columns(twin).size() * static_cast<std::uint64_t>(config_.lanes);
    const bool expected = pages * page_cost_ <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used();
    const std::string before = dump_all();
    const IndexRange all{0, twin.model.next};
    ASSERT_EQ(twin.table().unshare_bytes(all), pages * page_cost_);
    const Status status = twin.table().unshare(all);
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts["unshares refused"];
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (pages > 0) ++counts["unshares"];
    ASSERT_EQ(cache_->budget().used(), used + pages * page_cost_);
    ASSERT_TRUE(shared_columns(twin).empty());
  }

  void fork(const Twin& twin) {
    if (twins_.size() >= 4) return;
    SCOPED_TRACE("fork");
    const std::uint64_t bytes = table_bytes(twin.model.most_columns);
    const bool expected = bytes <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used();
    const std::string before = dump_all();
    auto copy = cache_->fork(twin.real);
    ASSERT_EQ(copy.ok(), expected);
    if (!expected) {
      ++counts["forks refused"];
      ASSERT_EQ(dump_all(), before);
      return;
    }
    ++counts["forks"];
    ASSERT_EQ(cache_->budget().used(), used + bytes);
    twins_.push_back(std::make_unique<Twin>(Twin{std::move(*copy), twin.model}));
    Twin& forked = *twins_.back();
    // Half of them go different ways while all is shared.
    if (chance(35)) {
      ASSERT_NO_FATAL_FAILURE(unshare(forked));
    } else if (chance(50)) {
      ASSERT_NO_FATAL_FAILURE(prune(forked, random_plan(forked)));
    }
  }

  void end() {
    if (chance(40)) return;  // long lives
    ++counts["ends"];
    twins_.erase(twins_.begin() + draw(0, static_cast<int>(twins_.size()) - 1));
    if (twins_.empty()) add();
  }

  static std::uint64_t linked_columns(const PageTable& table) {
    std::uint64_t count = 0;
    for (int run = 0; run < table.runs(); ++run) count += test::columns_of(table, run).size();
    return count;
  }

  void verify_accounts() {
    std::set<PageId> pages;
    std::uint64_t spares = 0, tables = 0;
    for (const auto& twin : twins_) {
      const PageTable& table = twin->table();
      for (int run = 0; run < table.runs(); ++run)
        for (const std::uint32_t column : test::columns_of(table, run))
          pages.insert(table.pages_of(column).begin(), table.pages_of(column).end());
      ASSERT_EQ(table.bytes(), table_bytes(twin->model.most_columns));
      tables += table_bytes(twin->model.most_columns);
      spares += static_cast<std::uint64_t>(table.columns()) - linked_columns(table);
    }
    ASSERT_TRUE(!single() || spares == 0);
    const std::uint64_t in_use = pages.size() + spares * static_cast<std::uint64_t>(config_.lanes);
    ASSERT_EQ(cache_->pool().in_use(), in_use);
    ASSERT_EQ(cache_->budget().used(), in_use * page_cost_ + tables);
  }

  // What holds once a plan was applied to a single run.
  void verify_tidy(const Twin& twin) {
    const MaskedColumns columns(twin.table(), {});
    ASSERT_EQ(columns.parts.size(), linked_columns(twin.table())) << "a column without live slots";
    ASSERT_EQ(twin.table().dead_slots(), columns.dead()) << "the newest column has a dead end";
    ASSERT_LE(twin.table().dead_slots() * 4, columns.written());
    ASSERT_EQ(columns.due(twin.model.original), "");
    // All but the newest column are full, so that these dead slots are all that is lost.
    for (std::size_t i = 0; i + 1 < columns.parts.size(); ++i) ASSERT_EQ(columns.parts[i].used, config_.slots);
  }

  void verify(const Twin& twin) {
    const PageTable& table = twin.table();
    const test::PlanModel& model = twin.model;
    const auto live = test::live_tokens(table);
    ASSERT_EQ(table.next_index(), model.next);
    ASSERT_EQ(table.length(), static_cast<std::int64_t>(model.tokens.size()));
    ASSERT_EQ(live.size(), model.tokens.size());
    ASSERT_EQ(table.original_positions(), model.original);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const test::LiveToken& place = live[i];
      ASSERT_EQ(place.id, model.tokens[i].id);
      ASSERT_EQ(place.position, model.original ? place.id : static_cast<Position>(i));
      const PageTable::Frame& frame = table.frames()[static_cast<std::size_t>(place.frame)];
      ASSERT_EQ(frame.run, model.tokens[i].run) << place.id;
      ASSERT_NO_FATAL_FAILURE(verify_content(table.pages_of(place.column), place, model.tokens[i],
                                             table.stored_rotation(place.column, place.slot, frame)));
    }
    ASSERT_NO_FATAL_FAILURE(verify_runs(table));
  }

  void verify_content(std::span<const PageId> pages, const test::LiveToken& place, const Token& token,
                      Position rotation) {
    for (int lane = 0; lane < config_.lanes; ++lane) {
      const std::byte* page = store_.data(pages[static_cast<std::size_t>(lane)]);
      const auto wanted = content_.key_at(token.tag, lane, rotation);
      for (int d = 0; d < kHeadDim; ++d) {
        float key = 0, value = 0;
        std::memcpy(&key, page + 4 * (d * config_.slots + place.slot), 4);
        std::memcpy(&value, page + 4 * (kHeadDim * config_.slots + place.slot * kHeadDim + d), 4);
        const float exact = Content::element(token.tag, lane, d, true);
        ASSERT_EQ(std::memcmp(&value, &exact, 4), 0) << "value of " << token.id;
        ASSERT_NEAR(key, wanted[static_cast<std::size_t>(d)], kTolerance) << "key of " << token.id;
        worst_key_ = std::max(worst_key_, std::fabs(double{key} - wanted[static_cast<std::size_t>(d)]));
      }
    }
  }

  // Other runs are rings: no holes, no more columns than their capacity fills, and one frame each.
  void verify_runs(const PageTable& table) {
    std::vector<int> frames(static_cast<std::size_t>(table.runs()));
    for (const PageTable::Frame& frame : table.frames()) ++frames[static_cast<std::size_t>(frame.run)];
    for (int run = 1; run < table.runs(); ++run) {
      const std::int64_t capacity = config_.capacities[static_cast<std::size_t>(run)];
      const std::vector<std::uint32_t> columns = test::columns_of(table, run);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const PageTable::Column& column = table.column(columns[i]);
        ASSERT_NE(column.live, 0u);
        const int first = i == 0 ? std::countr_zero(column.live) : 0;
        ASSERT_EQ(column.live, slot_range(first, column.used)) << "a hole in run " << run;
        ASSERT_TRUE(i + 1 == columns.size() || column.used == config_.slots);
      }
      ASSERT_LE(static_cast<std::int64_t>(columns.size()), (capacity + config_.slots - 1) / config_.slots + 1);
      ASSERT_LE(frames[static_cast<std::size_t>(run)], 1);
    }
  }

 public:
  double worst_key() const { return worst_key_; }

 private:
  Config config_;
  test::RandomPlans random_;
  Content content_;
  SequenceLayout layout_;
  WatchedStore store_;
  std::unique_ptr<KvCache> cache_;
  std::uint64_t page_cost_ = 0;
  std::uint32_t next_tag_ = 1;
  bool refused_ = false;
  double worst_key_ = 0;
  std::vector<std::unique_ptr<Twin>> twins_;
};

class PageTableLists : public ::testing::TestWithParam<Config> {};

TEST_P(PageTableLists, RandomPlansAgreeWithTheModel) {
  const Config& config = GetParam();
  World world(config, static_cast<std::uint64_t>(config.slots * 1000 + config.budget_columns));
  for (int step = 0; step < 2500; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    ASSERT_NO_FATAL_FAILURE(world.step());
    ASSERT_NO_FATAL_FAILURE(world.verify());
  }
  std::string counts = fmt::format("worst key {:.1e}", world.worst_key());
  for (const auto& [name, count] : world.counts) counts += fmt::format(", {} {}", name, count);
  RecordProperty("counts", counts);
  // What is to be tested really happened.
  const auto expect_more = [&](const char* name, int count) { EXPECT_GT(world.counts[name], count) << name; };
  expect_more("appends", 1000);
  expect_more("appends refused", 0);
  expect_more("drops", 3000);
  expect_more("empty plans", 20);
  expect_more("forks", 20);
  expect_more("unshares", 10);
  expect_more("ends", 20);
  if (config.name != "CascadeOfOnes") expect_more("columns copied on write", 10);  // a ring of one is replaced whole
  expect_more("appends refused for copies to come", 0);
  expect_more("copies between pages", 500);
  if (config.capacities.empty()) {
    expect_more("copies within a page", 500);
    expect_more("compactions asked for", 20);
    expect_more("masked while shared", 20);
    if (config.usual == 0) {
      expect_more("due for dead", 200);
      expect_more("due for entries", 10);
      expect_more("due for column entries", 0);
      expect_more("changes without room", 0);
    }
  } else {
    expect_more("moves", 2000);
  }
  if (config.original) expect_more("switches", 0);
  if (config.name == "Compact16Usual") expect_more("due for frames", 20);
}

const Config kConfigs[] = {
    {.name = "Compact16", .slots = 16, .lanes = 1, .budget_columns = 24},
    {.name = "Compact16Usual", .slots = 16, .lanes = 1, .budget_columns = 120, .usual = 700},
    {.name = "Compact32", .slots = 32, .lanes = 3, .budget_columns = 16},
    {.name = "Compact64", .slots = 64, .lanes = 2, .budget_columns = 11},
    {.name = "Compact64Usual", .slots = 64, .lanes = 1, .budget_columns = 14, .usual = 250},
    {.name = "Original16", .slots = 16, .lanes = 2, .budget_columns = 22, .original = true},
    {.name = "Original32", .slots = 32, .lanes = 1, .budget_columns = 14, .original = true, .usual = 100},
    {.name = "Original64", .slots = 64, .lanes = 3, .budget_columns = 11, .original = true},
    {.name = "Cascade16", .slots = 16, .lanes = 1, .budget_columns = 30, .capacities = {20, 20, 20, 20}, .sinks = 4},
    {.name = "Cascade32", .slots = 32, .lanes = 3, .budget_columns = 30, .capacities = {70, 70}, .sinks = 40},
    {.name = "Cascade64", .slots = 64, .lanes = 2, .budget_columns = 25, .capacities = {64, 64, 64, 64}},
    {.name = "CascadeOfOnes",
     .slots = 16,
     .lanes = 1,
     .budget_columns = 50,
     .capacities = std::vector<std::int64_t>(16, 1),
     .sinks = 3},
    {.name = "CascadeUneven", .slots = 16, .lanes = 2, .budget_columns = 40, .capacities = {9, 16, 3, 50}, .sinks = 17},
};

INSTANTIATE_TEST_SUITE_P(Tables, PageTableLists, ::testing::ValuesIn(kConfigs),
                         [](const auto& config) { return config.param.name; });

// A plan of memory runs the same tables on a pool without a store, where nothing is moved.
TEST(PageTableListsUnbacked, TablesAreTheSameWithoutAStore) {
  for (const bool original : {false, true}) {
    test::RandomPlans random(original ? 1 : 2);
    const KvCacheShape shape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF16}};
    SequenceLayout layout;
    layout.table.lists = true;
    layout.table.original_positions = original;
    const std::uint64_t budget = KvCache::cost(shape, layout, 100);
    const test::PagedCache real(shape, budget);
    const auto counted = std::move(*KvCache::create(shape, budget));
    KvSequence with = real->new_sequence(layout), without = counted->new_sequence(layout);
    test::PlanModel model;
    for (int step = 0; step < 500; ++step) {
      const int tokens = random.draw(1, 20);
      ASSERT_TRUE(with.append(tokens).ok() && without.append(tokens).ok());
      for (int i = 0; i < tokens; ++i) model.tokens.push_back({model.next++, 0, 0});
      std::vector<Token> kept = random.subset(model, 16, 100);
      KeepPlan plan;
      for (const Token& token : model.tokens)
        if (std::ranges::find(kept, token.id, &Token::id) == kept.end()) plan.add_drop({token.id, token.id + 1});
      model.tokens = std::move(kept);
      ASSERT_TRUE(with.only_table().apply(plan).ok() && without.only_table().apply(plan).ok());
      ASSERT_EQ(test::dump(with.only_table()), test::dump(without.only_table()));
      ASSERT_EQ(with.slots_moved(), without.slots_moved());
      ASSERT_EQ(real->budget().used(), counted->budget().used());
    }
    EXPECT_GT(with.slots_moved(), 500u);
  }
}

}  // namespace
}  // namespace kvasir
