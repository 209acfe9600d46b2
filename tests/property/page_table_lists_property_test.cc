// Random keep plans on tables with real pages, against a naive model: a list of tokens, and what was written for each.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "backend/cpu/kernels/kernels.h"
#include "kv/kv_cache.h"
#include "kv/table.h"
#include "property/list_configs.h"
#include "property/plan_model.h"
#include "property/watched_store.h"

namespace kvasir {
namespace {

constexpr double kTolerance = 1e-5;  // keys are rotated again and again in float

using Config = test::ListConfig;
using test::Content;
using test::kHeadDim;
using test::MaskedColumns;
using test::Token;
using test::WatchedChange;
using test::WatchedStore;

struct Twin {
  KvSequence real;
  test::PlanModel model;

  PageTable& table() { return real.only_table(); }
  const PageTable& table() const { return real.only_table(); }
};

class World {
 public:
  World(const Config& config, std::uint64_t seed)
      : config_(config), random_(seed), store_(shape_of(config).page, &counts) {
    layout_.table.lists = true;
    layout_.table.original_positions = config.original;
    if (!single()) layout_.table.run_capacities.assign(config.capacities.begin() + 1, config.capacities.end());
    page_cost_ = 2u * kHeadDim * static_cast<unsigned>(config.slots) * 4u + 12u;
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
    return TableMemory::bytes_at(config_.lanes, config_.slots, layout_.table, most_columns);
  }

  std::string dump_all() const {
    std::string text = test::dump(cache_->pool(), cache_->budget());
    for (const auto& twin : twins_) text += '\n' + test::dump(twin->table());
    return text;
  }

  std::set<std::uint32_t> shared_columns(const Twin& twin) const {
    return test::shared_columns(twin.table(), cache_->pool());
  }
  // Whether what a change may copy is available. Exactly the shared columns are reserved for.
  void check_reserve(const Twin& twin) {
    const std::uint64_t reserve = twin.table().memory().sharing_reserve();
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
      const Position rotation = twin.table().tokens().stored_rotation(place.column, place.slot, frame);
      for (int lane = 0; lane < config_.lanes; ++lane) {
        std::array<float, kHeadDim> key, value;
        const auto exact = content_.key_at(token->tag, lane, rotation);
        std::ranges::transform(exact, key.begin(), [](double x) { return static_cast<float>(x); });
        for (int d = 0; d < kHeadDim; ++d)
          value[static_cast<std::size_t>(d)] = Content::element(token->tag, lane, d, true);
        const PageId page = twin.table().pages().of(place.column)[static_cast<std::size_t>(lane)];
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
    const TableMemory::AppendPlan plan = table.memory().plan_append(tokens);
    ASSERT_EQ(twin.real.plan_append(tokens).append, plan.bytes);
    const std::uint64_t reserve = twin.real.plan_append(tokens).reserve;
    // The append itself copies a shared open page.
    const std::vector<std::uint32_t> newest = test::columns_of(table);
    const bool copies = !newest.empty() && table.columns()[newest.back()].used < config_.slots &&
                        shared_columns(twin).contains(newest.back());
    ASSERT_EQ(reserve, (shared_columns(twin).size() - (copies ? 1 : 0)) * column_cost());
    if (single()) {
      ASSERT_NO_FATAL_FAILURE(verify_plan(twin, tokens, plan));
    }
    const bool expected = plan.bytes + (reserves ? reserve : 0) <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used(), pages = cache_->pool().in_use();
    const int columns = table.columns().count();
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
    ASSERT_EQ(table.columns().count(), columns + plan.columns);
    twin.model.most_columns = std::max(twin.model.most_columns, table.columns().count());
    for (int i = 0; i < tokens; ++i) twin.model.tokens.push_back({twin.model.next++, next_tag_++, 0});
    write(twin, tokens);
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  void verify_plan(const Twin& twin, int tokens, const TableMemory::AppendPlan& plan) {
    const std::vector<std::uint32_t> all = test::columns_of(twin.table());
    const int room = !all.empty() ? config_.slots - twin.table().columns()[all.back()].used : 0;
    const bool copies = room > 0 && cache_->pool().references(twin.table().pages().of(all.back())[0]) > 1;
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
    if (!single()) written = test::open_columns(twin.table(), plan, stay, config_.slots);
    std::set<std::uint32_t> staying;
    for (const test::LiveToken& token : test::live_tokens(twin.table()))
      if (stay.contains(token.id)) staying.insert(token.column);
    const WatchedChange change(twin.table(), cache_->pool(), store_, written, staying);
    ASSERT_TRUE(twin.table().apply(plan).ok());
    ASSERT_NO_FATAL_FAILURE(change.verify());
    counts["columns copied on write"] += change.columns_copied();
    twin.model.tokens = std::move(kept);
    if (plan.empty()) {
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (single()) {
      ASSERT_TRUE(!due.empty() || change.slots_moved() == 0) << "moved without need\n" << before;
      ASSERT_TRUE(due.empty() || twin.table().tokens().dead_slots() == 0) << due;
      ASSERT_NO_FATAL_FAILURE(test::verify_tidy(twin.table(), config_.slots));
    }
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  // All tokens together, with or without a change of what their keys are rotated by.
  void compact_all(Twin& twin, bool original) {
    const MaskedColumns columns(twin.table(), {});
    std::set<std::uint32_t> staying;
    for (const MaskedColumns::Part& part : columns.parts) staying.insert(part.column);
    const WatchedChange change(twin.table(), cache_->pool(), store_,
                               columns.written_by_compaction(twin.table(), config_.slots, original), staying);
    if (original == twin.model.original) {
      twin.table().compact();
    } else {
      twin.table().make_positions_compact();
    }
    ASSERT_NO_FATAL_FAILURE(change.verify());
    counts["columns copied on write"] += change.columns_copied();
    ASSERT_EQ(twin.table().tokens().dead_slots(), 0);
    ASSERT_EQ(twin.table().frames().size(), 1u);
    ASSERT_NO_FATAL_FAILURE(test::verify_tidy(twin.table(), config_.slots));
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
    ASSERT_FALSE(twin.table().tokens().original);
  }

  // Own copies of all shared columns.
  void unshare(Twin& twin) {
    SCOPED_TRACE("unshare");
    const std::uint64_t pages = shared_columns(twin).size() * static_cast<std::uint64_t>(config_.lanes);
    const bool expected = pages * page_cost_ <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used();
    const std::string before = dump_all();
    const IndexRange all{0, twin.model.next};
    ASSERT_EQ(twin.table().memory().unshare_bytes(all), pages * page_cost_);
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

  void verify_accounts() {
    std::set<PageId> pages;
    std::uint64_t spares = 0, tables = 0;
    for (const auto& twin : twins_) {
      const PageTable& table = twin->table();
      for (int run = 0; run < table.layout().runs(); ++run)
        for (const std::uint32_t column : test::columns_of(table, run))
          pages.insert(table.pages().of(column).begin(), table.pages().of(column).end());
      ASSERT_EQ(table.bytes(), table_bytes(twin->model.most_columns));
      tables += table_bytes(twin->model.most_columns);
      spares += static_cast<std::uint64_t>(table.columns().count()) - test::linked_columns(table);
    }
    ASSERT_TRUE(!single() || spares == 0);
    const std::uint64_t in_use = pages.size() + spares * static_cast<std::uint64_t>(config_.lanes);
    ASSERT_EQ(cache_->pool().in_use(), in_use);
    ASSERT_EQ(cache_->budget().used(), in_use * page_cost_ + tables);
  }

  void verify(const Twin& twin) {
    const PageTable& table = twin.table();
    const test::PlanModel& model = twin.model;
    const auto live = test::live_tokens(table);
    ASSERT_EQ(table.next_index(), model.next);
    ASSERT_EQ(table.length(), static_cast<std::int64_t>(model.tokens.size()));
    ASSERT_EQ(live.size(), model.tokens.size());
    ASSERT_EQ(table.tokens().original, model.original);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const test::LiveToken& place = live[i];
      ASSERT_EQ(place.id, model.tokens[i].id);
      ASSERT_EQ(place.position, model.original ? place.id : static_cast<Position>(i));
      const PageTable::Frame& frame = table.frames()[static_cast<std::size_t>(place.frame)];
      ASSERT_EQ(frame.run, model.tokens[i].run) << place.id;
      ASSERT_NO_FATAL_FAILURE(verify_content(table.pages().of(place.column), place, model.tokens[i],
                                             table.tokens().stored_rotation(place.column, place.slot, frame)));
    }
    ASSERT_NO_FATAL_FAILURE(test::verify_rings(table, config_.capacities, config_.slots));
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

INSTANTIATE_TEST_SUITE_P(Tables, PageTableLists, ::testing::ValuesIn(test::list_configs()),
                         [](const auto& config) { return config.param.name; });

}  // namespace
}  // namespace kvasir
