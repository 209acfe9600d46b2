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

#include "kernels/kernels.h"
#include "kv/kv_cache.h"
#include "kv/table.h"
#include "property/plan_model.h"

namespace kvasir {
namespace {

constexpr double kTolerance = 1e-5;  // keys are rotated again and again in float

using test::Content;
using test::kHeadDim;
using test::kPairs;
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

  LaneGroup& group() { return real.group(); }
  const LaneGroup& group() const { return real.group(); }
};

class World {
 public:
  World(const Config& config, std::uint64_t seed) : config_(config), random_(seed) {
    const KvCacheShape shape{.layers = config.lanes,
                             .kv_heads = 1,
                             .page = {.head_dim = kHeadDim, .slots = config.slots, .type = KvType::kF32}};
    layout_.table.dropping = LaneGroup::Dropping::kPlans;
    layout_.table.original_positions = config.original;
    if (!single()) layout_.table.run_capacities.assign(config.capacities.begin() + 1, config.capacities.end());
    page_cost_ = 2u * kHeadDim * static_cast<unsigned>(config.slots) * 4u + 8u;
    column_bytes_ = sizeof(LaneGroup::Column) + 4u * static_cast<unsigned>(config.lanes + config.slots);
    const auto lanes = static_cast<std::uint64_t>(config.lanes);
    // Pages and tables never come out even.
    cache_ = std::move(*KvCache::create(
        shape, static_cast<std::uint64_t>(config.budget_columns) * (lanes * page_cost_ + column_bytes_) + 777));
    EXPECT_EQ(KvCache::column_cost(shape, layout_), lanes * page_cost_ + column_bytes_);
    add();
  }

  void step() {
    const int choice = draw(0, 99);
    if (choice < 70) return pass();
    if (choice < 78) {
      Twin& twin = pick();
      return prune(twin, random_plan(twin));
    }
    if (choice < 80) return unshare(pick());
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

  std::string dump_all() const {
    std::string text = test::dump(cache_->pool(), cache_->budget());
    for (const auto& twin : twins_) text += '\n' + test::dump(twin->group());
    return text;
  }

  bool shares(const Twin& twin) const {
    for (const test::LiveToken& token : test::live_tokens(twin.group()))
      if (cache_->pool().references(token.column->pages[0]) > 1) return true;
    return false;
  }

  // Writes the content of the newest `tokens` tokens.
  void write(Twin& twin, int tokens) {
    std::map<TokenIndex, test::LiveToken> places;
    for (const test::LiveToken& place : test::live_tokens(twin.group())) places[place.id] = place;
    for (auto token = twin.model.tokens.end() - tokens; token != twin.model.tokens.end(); ++token) {
      const test::LiveToken& place = places.at(token->id);
      const LaneGroup::Frame& frame = twin.group().frames()[static_cast<std::size_t>(place.frame)];
      const Position rotation = twin.group().stored_rotation(*place.column, place.slot, frame);
      for (int lane = 0; lane < config_.lanes; ++lane) {
        std::array<float, kHeadDim> key, value;
        const auto exact = content_.key_at(token->tag, lane, rotation);
        std::ranges::transform(exact, key.begin(), [](double x) { return static_cast<float>(x); });
        for (int d = 0; d < kHeadDim; ++d)
          value[static_cast<std::size_t>(d)] = Content::element(token->tag, lane, d, true);
        generic_kernels().store_kv(cache_->shape().page,
                                   cache_->pool().data(place.column->pages[static_cast<std::size_t>(lane)]), place.slot,
                                   key.data(), value.data());
      }
    }
  }

  // Tokens enter, for some sequences all before any is pruned, as in a batch.
  void pass() {
    std::vector<Twin*> entered;
    const Twin* only = chance(20) ? nullptr : &pick();
    for (const auto& twin : twins_) {
      if (only != nullptr && twin.get() != only) continue;
      ASSERT_NO_FATAL_FAILURE(append(*twin, chance(60) ? 1 : chance(80) ? draw(1, 24) : draw(1, 150)));
      if (!refused_) entered.push_back(twin.get());
    }
    for (Twin* twin : entered) {
      if (single() && chance(40)) continue;
      ASSERT_NO_FATAL_FAILURE(prune(*twin, random_plan(*twin)));
    }
  }

  // Own pages first, as the engine does, so that the plan can be applied.
  void append(Twin& twin, int tokens) {
    SCOPED_TRACE(fmt::format("append {}", tokens));
    refused_ = true;
    if (!single() || chance(90)) {
      ASSERT_NO_FATAL_FAILURE(unshare(twin));
      if (unshare_refused_) return;
    }
    LaneGroup& group = twin.group();
    const LaneGroup::AppendPlan plan = group.plan_append(tokens);
    if (single()) {
      ASSERT_NO_FATAL_FAILURE(verify_plan(twin, tokens, plan));
    }
    const bool expected = plan.bytes <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used(), pages = cache_->pool().in_use();
    const int columns = group.columns();
    const std::string before = dump_all();
    const Status status = group.append(tokens);
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts["appends refused"];
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    refused_ = false;
    ++counts["appends"];
    ASSERT_EQ(cache_->budget().used(), used + plan.bytes);
    ASSERT_EQ(cache_->pool().in_use(), pages + plan.pages);
    ASSERT_EQ(group.columns(), columns + plan.columns);
    for (int i = 0; i < tokens; ++i) twin.model.tokens.push_back({twin.model.next++, next_tag_++, 0});
    write(twin, tokens);
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  void verify_plan(const Twin& twin, int tokens, const LaneGroup::AppendPlan& plan) {
    const LaneGroup::Column* tail = twin.group().first_column();
    while (tail != nullptr && tail->next != nullptr) tail = tail->next;
    const int room = tail != nullptr ? config_.slots - tail->used : 0;
    const bool copies = room > 0 && cache_->pool().references(tail->pages[0]) > 1;
    const int columns = (std::max(tokens - room, 0) + config_.slots - 1) / config_.slots;
    ASSERT_EQ(plan.columns, columns);
    ASSERT_EQ(plan.pages, static_cast<std::uint64_t>((columns + (copies ? 1 : 0)) * config_.lanes));
    ASSERT_EQ(plan.bytes, plan.pages * page_cost_ + static_cast<std::uint64_t>(columns) * column_bytes_);
  }

  std::vector<Token> random_plan(const Twin& twin) {
    return single() ? random_.subset(twin.model, config_.slots, config_.usual)
                    : random_.cascade(twin.model, config_.capacities, config_.sinks);
  }

  void prune(Twin& twin, std::vector<Token> kept) {
    SCOPED_TRACE(fmt::format("keep {} of {}", kept.size(), twin.model.tokens.size()));
    ASSERT_NO_FATAL_FAILURE(unshare(twin));
    if (unshare_refused_) return;
    twin.model.planned = twin.model.next;
    KeepPlan plan;
    auto next = kept.begin();
    for (const Token& token : twin.model.tokens) {
      if (next == kept.end() || next->id != token.id) {
        plan.drop.push_back(token.id);
        continue;
      }
      if (next->run != token.run) plan.moves.push_back({token.id, next->run});
      ++next;
    }
    ASSERT_EQ(next, kept.end());
    if (plan.empty()) ++counts["empty plans"];
    counts["moves"] += static_cast<int>(plan.moves.size());
    counts["drops"] += static_cast<int>(plan.drop.size());
    const std::string before = dump_all();
    std::string due;
    if (single() && !plan.empty()) {
      due = MaskedColumns(twin.group(), plan.drop).due(twin.model.original);
      if (!due.empty()) ++counts["due for " + due];
    }
    mover_calls_ = 0;
    twin.group().apply(plan, mover(twin));
    twin.model.tokens = std::move(kept);
    if (plan.empty()) {
      ASSERT_EQ(dump_all(), before);
      ASSERT_EQ(mover_calls_, 0);
      return;
    }
    if (single()) {
      ASSERT_TRUE(!due.empty() || mover_calls_ == 0) << "moved without need\n" << before;
      ASSERT_TRUE(due.empty() || twin.group().dead_slots() == 0) << due;
      ASSERT_NO_FATAL_FAILURE(verify_tidy(twin));
    }
    ASSERT_NO_FATAL_FAILURE(verify(twin));
  }

  LaneGroup::SlotMover mover(const Twin& twin) {
    return [this, &twin](std::span<const LaneGroup::SlotCopy> copies) {
      ++mover_calls_;
      const KvPageShape& shape = cache_->shape().page;
      PagePool& pool = cache_->pool();
      for (int lane = 0; lane < config_.lanes; ++lane) {
        const auto l = static_cast<std::size_t>(lane);
        for (const LaneGroup::SlotCopy& copy : copies) {
          const int count = std::popcount(copy.slots);
          EXPECT_GT(count, 0);
          EXPECT_LE(copy.to_slot + count, shape.slots);
          EXPECT_EQ(copy.slots & ~slot_range(0, shape.slots), 0u);
          EXPECT_EQ(pool.references(copy.to->pages[l]), 1u) << "writes to a shared page";
          if (copy.from == copy.to) {
            EXPECT_LE(copy.to_slot, std::countr_zero(copy.slots));
            ++counts["copies within a page"];
          } else {
            ++counts["copies between pages"];
          }
          if (twin.group().runs() > 1) ++counts["copies between runs"];
          std::array<float, kPairs> cosine{}, sine{};
          const Content::Turns& turn = content_.turns(copy.shift);
          for (std::size_t i = 0; i < kPairs; ++i) {
            cosine[i] = static_cast<float>(turn[i].cosine);
            sine[i] = static_cast<float>(turn[i].sine);
          }
          generic_kernels().move_slots(shape, pool.data(copy.from->pages[l]), copy.slots, pool.data(copy.to->pages[l]),
                                       copy.to_slot, kHeadDim, copy.shift != 0 ? cosine.data() : nullptr, sine.data());
        }
      }
    };
  }

  void compact(Twin& twin) {
    SCOPED_TRACE("compact");
    ASSERT_NO_FATAL_FAILURE(unshare(twin));
    if (unshare_refused_) return;
    ++counts["compactions asked for"];
    twin.group().compact(mover(twin));
    ASSERT_EQ(twin.group().dead_slots(), 0);
    ASSERT_EQ(twin.group().frames().size(), 1u);
    ASSERT_NO_FATAL_FAILURE(verify_tidy(twin));
  }

  void make_compact(Twin& twin) {
    SCOPED_TRACE("to compact positions");
    ASSERT_NO_FATAL_FAILURE(unshare(twin));
    if (unshare_refused_) return;
    if (twin.model.original) ++counts["switches"];
    const std::string before = dump_all();
    twin.group().make_positions_compact(mover(twin));
    if (!twin.model.original) {
      ASSERT_EQ(dump_all(), before);
      return;
    }
    twin.model.original = false;
    ASSERT_FALSE(twin.group().original_positions());
    ASSERT_EQ(twin.group().dead_slots(), 0);
    ASSERT_EQ(twin.group().frames().size(), 1u);
    ASSERT_NO_FATAL_FAILURE(verify_tidy(twin));
  }

  // Own copies of all shared columns.
  void unshare(Twin& twin) {
    SCOPED_TRACE("unshare");
    std::set<const LaneGroup::Column*> shared;
    for (const test::LiveToken& token : test::live_tokens(twin.group()))
      if (cache_->pool().references(token.column->pages[0]) > 1) shared.insert(token.column);
    const std::uint64_t pages = shared.size() * static_cast<std::uint64_t>(config_.lanes);
    const bool expected = pages * page_cost_ <= cache_->budget().available();
    const std::uint64_t used = cache_->budget().used();
    const std::string before = dump_all();
    const Status status = twin.group().unshare_behind(0);
    unshare_refused_ = !status.ok();
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts["unshares refused"];
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (!shared.empty()) ++counts["unshares"];
    ASSERT_EQ(cache_->budget().used(), used + pages * page_cost_);
    ASSERT_FALSE(shares(twin));
  }

  void fork(const Twin& twin) {
    if (twins_.size() >= 4) return;
    SCOPED_TRACE("fork");
    const std::uint64_t linked = linked_columns(twin.group());
    const bool expected = linked * column_bytes_ <= cache_->budget().available();
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
    ASSERT_EQ(cache_->budget().used(), used + linked * column_bytes_);
    twins_.push_back(std::make_unique<Twin>(Twin{std::move(*copy), twin.model}));
  }

  void end() {
    if (chance(60)) return;  // long lives
    ++counts["ends"];
    twins_.erase(twins_.begin() + draw(0, static_cast<int>(twins_.size()) - 1));
    if (twins_.empty()) add();
  }

  static std::uint64_t linked_columns(const LaneGroup& group) {
    std::uint64_t count = 0;
    for (int run = 0; run < group.runs(); ++run)
      for (const LaneGroup::Column* column = group.first_column(run); column != nullptr; column = column->next) ++count;
    return count;
  }

  void verify_accounts() {
    std::set<PageId> pages;
    std::uint64_t spares = 0, columns = 0;
    for (const auto& twin : twins_) {
      const LaneGroup& group = twin->group();
      for (int run = 0; run < group.runs(); ++run)
        for (const LaneGroup::Column* column = group.first_column(run); column != nullptr; column = column->next)
          pages.insert(column->pages.begin(), column->pages.end());
      columns += static_cast<std::uint64_t>(group.columns());
      spares += static_cast<std::uint64_t>(group.columns()) - linked_columns(group);
    }
    ASSERT_TRUE(!single() || spares == 0);
    const std::uint64_t in_use = pages.size() + spares * static_cast<std::uint64_t>(config_.lanes);
    ASSERT_EQ(cache_->pool().in_use(), in_use);
    ASSERT_EQ(cache_->budget().used(), in_use * page_cost_ + columns * column_bytes_);
  }

  // What holds once a plan was applied to a single run.
  void verify_tidy(const Twin& twin) {
    const MaskedColumns columns(twin.group(), {});
    ASSERT_EQ(columns.parts.size(), linked_columns(twin.group())) << "a column without live slots";
    ASSERT_EQ(twin.group().dead_slots(), columns.dead()) << "the newest column has a dead end";
    ASSERT_LE(twin.group().dead_slots() * 4, columns.written());
    ASSERT_EQ(columns.due(twin.model.original), "");
    // All but the newest column are full, so that these dead slots are all that is lost.
    for (std::size_t i = 0; i + 1 < columns.parts.size(); ++i) ASSERT_EQ(columns.parts[i].used, config_.slots);
  }

  void verify(const Twin& twin) {
    const LaneGroup& group = twin.group();
    const test::PlanModel& model = twin.model;
    const auto live = test::live_tokens(group);
    ASSERT_EQ(group.next_id(), model.next);
    ASSERT_EQ(group.length(), static_cast<std::int64_t>(model.tokens.size()));
    ASSERT_EQ(live.size(), model.tokens.size());
    ASSERT_EQ(group.original_positions(), model.original);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const test::LiveToken& place = live[i];
      ASSERT_EQ(place.id, model.tokens[i].id);
      ASSERT_EQ(place.position, model.original ? place.id : static_cast<Position>(i));
      const LaneGroup::Frame& frame = group.frames()[static_cast<std::size_t>(place.frame)];
      ASSERT_EQ(frame.run, model.tokens[i].run) << place.id;
      ASSERT_NO_FATAL_FAILURE(
          verify_content(place, model.tokens[i], group.stored_rotation(*place.column, place.slot, frame)));
    }
    ASSERT_NO_FATAL_FAILURE(verify_runs(group));
  }

  void verify_content(const test::LiveToken& place, const Token& token, Position rotation) {
    for (int lane = 0; lane < config_.lanes; ++lane) {
      const std::byte* page = cache_->pool().data(place.column->pages[static_cast<std::size_t>(lane)]);
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
  void verify_runs(const LaneGroup& group) {
    std::vector<int> frames(static_cast<std::size_t>(group.runs()));
    for (const LaneGroup::Frame& frame : group.frames()) ++frames[static_cast<std::size_t>(frame.run)];
    for (int run = 1; run < group.runs(); ++run) {
      const std::int64_t capacity = config_.capacities[static_cast<std::size_t>(run)];
      std::int64_t columns = 0;
      for (const LaneGroup::Column* column = group.first_column(run); column != nullptr; column = column->next) {
        const SlotMask slots = LaneGroup::live_slots(*column);
        ASSERT_NE(slots, 0u);
        const int first = columns == 0 ? std::countr_zero(slots) : 0;
        ASSERT_EQ(slots, slot_range(first, column->used)) << "a hole in run " << run;
        ASSERT_TRUE(column->next == nullptr || column->used == config_.slots);
        ++columns;
      }
      ASSERT_LE(columns, (capacity + config_.slots - 1) / config_.slots + 1);
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
  std::unique_ptr<KvCache> cache_;
  std::uint64_t page_cost_ = 0;
  std::uint64_t column_bytes_ = 0;
  std::uint32_t next_tag_ = 1;
  bool refused_ = false;
  bool unshare_refused_ = false;
  int mover_calls_ = 0;
  double worst_key_ = 0;
  std::vector<std::unique_ptr<Twin>> twins_;
};

class LaneGroupPlans : public ::testing::TestWithParam<Config> {};

TEST_P(LaneGroupPlans, RandomPlansAgreeWithTheModel) {
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
  expect_more("copies between pages", 500);
  if (config.capacities.empty()) {
    expect_more("copies within a page", 500);
    expect_more("compactions asked for", 20);
    if (config.usual == 0) {
      expect_more("due for dead", 200);
      expect_more("due for entries", 10);
      expect_more("due for column entries", 0);
      expect_more("unshares refused", 0);
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
    {.name = "Compact64", .slots = 64, .lanes = 2, .budget_columns = 12},
    {.name = "Compact64Usual", .slots = 64, .lanes = 1, .budget_columns = 20, .usual = 250},
    {.name = "Original16", .slots = 16, .lanes = 2, .budget_columns = 24, .original = true},
    {.name = "Original32", .slots = 32, .lanes = 1, .budget_columns = 20, .original = true, .usual = 100},
    {.name = "Original64", .slots = 64, .lanes = 3, .budget_columns = 12, .original = true},
    {.name = "Cascade16", .slots = 16, .lanes = 1, .budget_columns = 30, .capacities = {20, 20, 20, 20}, .sinks = 4},
    {.name = "Cascade32", .slots = 32, .lanes = 3, .budget_columns = 30, .capacities = {70, 70}, .sinks = 40},
    {.name = "Cascade64", .slots = 64, .lanes = 2, .budget_columns = 25, .capacities = {64, 64, 64, 64}},
    {.name = "CascadeOfOnes",
     .slots = 16,
     .lanes = 1,
     .budget_columns = 80,
     .capacities = std::vector<std::int64_t>(16, 1),
     .sinks = 3},
    {.name = "CascadeUneven", .slots = 16, .lanes = 2, .budget_columns = 40, .capacities = {9, 16, 3, 50}, .sinks = 17},
};

INSTANTIATE_TEST_SUITE_P(Tables, LaneGroupPlans, ::testing::ValuesIn(kConfigs),
                         [](const auto& config) { return config.param.name; });

// A plan of memory runs the same tables on a pool without memory, where nothing is moved.
TEST(LaneGroupPlansUnbacked, TablesAreTheSameWithoutMemoryBehindThePages) {
  for (const bool original : {false, true}) {
    test::RandomPlans random(original ? 1 : 2);
    const KvCacheShape shape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 2, .slots = 16, .type = KvType::kF16}};
    SequenceLayout layout;
    layout.table.dropping = LaneGroup::Dropping::kPlans;
    layout.table.original_positions = original;
    const std::uint64_t budget = 100 * KvCache::column_cost(shape, layout);
    const auto real = std::move(*KvCache::create(shape, budget));
    const auto counted = std::move(*KvCache::create(shape, budget, Backing::kNone));
    KvSequence with = real->new_sequence(layout), without = counted->new_sequence(layout);
    test::PlanModel model;
    int moves = 0;
    for (int step = 0; step < 500; ++step) {
      const int tokens = random.draw(1, 20);
      ASSERT_TRUE(with.append(tokens).ok() && without.append(tokens).ok());
      for (int i = 0; i < tokens; ++i) model.tokens.push_back({model.next++, 0, 0});
      std::vector<Token> kept = random.subset(model, 16, 100);
      KeepPlan plan;
      for (const Token& token : model.tokens)
        if (std::ranges::find(kept, token.id, &Token::id) == kept.end()) plan.drop.push_back(token.id);
      model.tokens = std::move(kept);
      with.group().apply(plan, [&](std::span<const LaneGroup::SlotCopy>) { ++moves; });
      without.group().apply(plan, {});
      ASSERT_EQ(test::dump(with.group()), test::dump(without.group()));
      ASSERT_EQ(real->budget().used(), counted->budget().used());
    }
    EXPECT_GT(moves, 20);
  }
}

}  // namespace
}  // namespace kvasir
