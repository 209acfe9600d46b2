// Random operations on forked sequences against a naive model: lists of retained tokens, and what was written for each.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "kv/paged_cache.h"
#include "kv/table.h"

namespace kvasir {
namespace {

constexpr int kHeadDim = 2;
constexpr double kFrequency = 0.21;
constexpr double kTolerance = 1e-5;  // keys are rotated again and again in float

// What a write puts into a lane, in [-1, 1): no other write has the same.
float element(std::uint32_t tag, int lane, int d, bool value) {
  std::uint64_t x = tag * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(lane * 64 + d * 2 + (value ? 1 : 0));
  for (int i = 0; i < 2; ++i) x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

struct Turn {
  double cosine = 1;
  double sine = 0;
};
Turn turn_to(Position position) {
  const double angle = kFrequency * static_cast<double>(position);
  return {std::cos(angle), std::sin(angle)};
}

// The key of a write, rotated.
std::array<double, kHeadDim> key_of(std::uint32_t tag, int lane, const Turn& turn) {
  const double a = double{element(tag, lane, 0, false)}, b = double{element(tag, lane, 1, false)};
  return {a * turn.cosine - b * turn.sine, a * turn.sine + b * turn.cosine};
}

struct Token {
  TokenIndex id = 0;
  std::uint32_t tag = 0;  // names the write of its key and value
  Position rotation = 0;  // its key is stored rotated by id + rotation
};

struct Model {
  std::vector<Token> tokens;  // retained, by id
  TokenIndex next = 0;
  Position rotation = 0;                                 // of tokens to come
  std::map<std::int64_t, std::shared_ptr<int>> columns;  // by id / slots; forks hold the same object
  std::size_t most_columns = 0;                          // there ever were

  bool last_is_retained() const { return !tokens.empty() && tokens.back().id == next - 1; }
};

// Frames and entries that a table with these tokens has: one frame per run of consecutive ids, one for tokens to come.
struct Shape {
  std::size_t frames = 0;
  std::size_t most_entries = 0;
};
Shape shape_of(const Model& model, int slots) {
  std::map<std::int64_t, std::size_t> entries;
  std::size_t runs = 0;
  for (std::size_t i = 0; i < model.tokens.size(); ++i) {
    const bool starts = i == 0 || model.tokens[i - 1].id + 1 != model.tokens[i].id;
    if (starts) ++runs;
    if (starts || model.tokens[i].id % slots == 0) ++entries[model.tokens[i].id / slots];
  }
  if (!model.last_is_retained()) {
    ++runs;
    if (model.next % slots != 0) ++entries[model.next / slots];
  }
  Shape shape{runs, 0};
  for (const auto& [column, count] : entries) shape.most_entries = std::max(shape.most_entries, count);
  return shape;
}

struct Counts {
  int appends = 0, appends_refused = 0, copies = 0, drops = 0, drops_shared = 0, drops_frames = 0, drops_entries = 0,
      forks = 0, forks_refused = 0, unshares = 0, unshares_refused = 0, rotations = 0, ends = 0;
};

class World {
 public:
  World(int slots, int lanes, int budget_columns, bool punctures, std::uint64_t seed)
      : slots_(slots),
        lanes_(lanes),
        punctures_(punctures),
        random_(seed),
        cache_({.layers = lanes, .kv_heads = 1, .page = {.head_dim = kHeadDim, .slots = slots, .key = KvType::kF32}},
               budget(slots, lanes, budget_columns), {kFrequency}) {
    add(Twin{cache_->new_sequence(), {}});
  }

  void step() {
    const int choice = draw(0, 99);
    if (choice < 40) return append(pick(), draw(0, 4) == 0 ? draw(1, 100) : draw(1, 9));
    if (choice < 80) return drop(pick());
    if (choice < 84) return rewrite(pick());
    if (choice < 92) return fork(pick());
    if (choice < 97) return end();
    if (twins_.size() < 4) add(Twin{cache_->new_sequence(), {}});
  }

  void verify() {
    std::vector<const KvSequence*> all;
    for (const auto& twin : twins_) all.push_back(&twin->real);
    cache_->check_invariants(all);
    ASSERT_EQ(cache_->budget().used(), used());
    for (const auto& twin : twins_) ASSERT_NO_FATAL_FAILURE(verify(*twin));
  }

  Counts counts;

 private:
  struct Twin {
    KvSequence real;
    Model model;
  };

  static std::uint64_t page_cost(int slots) { return 2u * kHeadDim * static_cast<unsigned>(slots) * 4u + 12u; }
  // An odd number of bytes more than whole columns and the arrays of four tables: pages and tables never come out
  // even.
  static std::uint64_t budget(int slots, int lanes, int columns) {
    return static_cast<std::uint64_t>(columns) * static_cast<std::uint64_t>(lanes) * page_cost(slots) +
           4 * TableMemory::bytes_at(lanes, slots, {}, columns) + 777;
  }

  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Twin& pick() { return *twins_[static_cast<std::size_t>(draw(0, static_cast<int>(twins_.size()) - 1))]; }
  void add(Twin twin) { twins_.push_back(std::make_unique<Twin>(std::move(twin))); }

  std::uint64_t table_bytes(std::size_t most_columns) const {
    return TableMemory::bytes_at(lanes_, slots_, {}, static_cast<std::int64_t>(most_columns));
  }
  std::uint64_t used() const {
    std::set<const int*> pages;
    std::uint64_t tables = 0;
    for (const auto& twin : twins_) {
      tables += table_bytes(twin->model.most_columns);
      for (const auto& [index, page] : twin->model.columns) pages.insert(page.get());
    }
    return pages.size() * static_cast<std::uint64_t>(lanes_) * page_cost(slots_) + tables;
  }
  bool fits(std::uint64_t pages_per_lane, std::uint64_t bytes) const {
    return used() + pages_per_lane * static_cast<std::uint64_t>(lanes_) * page_cost(slots_) + bytes <=
           cache_->budget().capacity();
  }
  std::string dump_all() const {
    std::string text = test::dump(cache_->pool(), cache_->budget());
    for (const auto& twin : twins_) text += '\n' + test::dump(twin->real.only_table());
    return text;
  }

  // Gives tokens new content, in the pages and in the model.
  void write(Twin& twin, TokenIndex first) {
    const PageTable& table = twin.real.only_table();
    std::map<TokenIndex, test::LiveToken> places;
    for (const test::LiveToken& place : test::live_tokens(table)) places[place.id] = place;
    for (Token& token : twin.model.tokens) {
      if (token.id < first) continue;
      token.tag = next_tag_++;
      const test::LiveToken& place = places.at(token.id);
      const Turn turn = turn_to(token.id + token.rotation);
      for (int lane = 0; lane < lanes_; ++lane) {
        const auto exact = key_of(token.tag, lane, turn);
        const float key[kHeadDim] = {static_cast<float>(exact[0]), static_cast<float>(exact[1])};
        const float value[kHeadDim] = {element(token.tag, lane, 0, true), element(token.tag, lane, 1, true)};
        cache_.write(table.pages().of(place.column)[static_cast<std::size_t>(lane)], place.slot, key, value);
      }
    }
  }

  void append(Twin& twin, int tokens) {
    SCOPED_TRACE(fmt::format("append {}", tokens));
    Model& model = twin.model;
    const bool copies = model.next % slots_ != 0 && model.columns.at(model.next / slots_).use_count() > 1;
    std::uint64_t columns = 0;
    for (TokenIndex id = model.next; id < model.next + tokens; ++id) columns += id % slots_ == 0 ? 1 : 0;
    const std::size_t most = std::max(model.most_columns, model.columns.size() + columns);
    const std::uint64_t grown = table_bytes(most) - table_bytes(model.most_columns);
    const bool expected = fits(columns + (copies ? 1 : 0), grown);
    const std::string before = dump_all();
    const Status status = twin.real.only_table().append(tokens);
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts.appends_refused;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    ++counts.appends;
    if (copies) {
      ++counts.copies;
      model.columns[model.next / slots_] = std::make_shared<int>();
    }
    model.most_columns = most;
    const TokenIndex first = model.next;
    for (int i = 0; i < tokens; ++i, ++model.next) {
      model.tokens.push_back({model.next, 0, model.rotation});
      if (model.next % slots_ == 0) model.columns[model.next / slots_] = std::make_shared<int>();
    }
    write(twin, first);
  }

  IndexRange hole(const Model& model) {
    const int next = static_cast<int>(model.next);
    const auto begin_of = [&] { return static_cast<TokenIndex>(draw(0, std::max(next - 1, 0))); };
    switch (punctures_ && draw(0, 11) > 0 ? 9 : draw(0, 9)) {
      case 0: return {0, begin_of()};                                                     // from the start
      case 1: return {next - draw(1, 5), next + draw(0, 3)};                              // the newest, and beyond
      case 2: return {begin_of() / slots_ * slots_, (begin_of() / slots_ + 1) * slots_};  // whole pages, or nothing
      case 3: return {begin_of(), begin_of()};                                            // anything, backwards too
      case 4: return draw(0, 9) == 0 ? IndexRange{0, next} : IndexRange{4, begin_of()};   // everything; behind sinks
      default: {
        // A small one; half of them in the newest pages, where more tokens are to come.
        const TokenIndex begin = draw(0, 1) == 0 ? begin_of() : std::max<TokenIndex>(0, next - draw(1, slots_ + 4));
        return {begin, begin + draw(1, 3)};
      }
    }
  }

  void drop(Twin& twin) {
    Model& model = twin.model;
    IndexRange range = hole(model);
    range.begin = std::max<TokenIndex>(range.begin, 0);
    const Realign realign = draw(0, 3) == 0 ? Realign::kRotate : Realign::kFrames;
    SCOPED_TRACE(
        fmt::format("drop {} {} {}", range.begin, range.end, realign == Realign::kRotate ? "rotate" : "frames"));
    const auto inside = [&](const Token& t) { return t.id >= range.begin && t.id < range.end; };
    const auto dropped = static_cast<std::int64_t>(std::ranges::count_if(model.tokens, inside));
    ASSERT_EQ(twin.real.only_table().tokens().retained_in(range), dropped);
    if (realign == Realign::kRotate && dropped > 0) {
      unshare(twin, {range.end, model.next});
      if (unshare_refused_) return;
    }
    Model after = model;
    std::erase_if(after.tokens, inside);
    const Shape shape = shape_of(after, slots_);
    const bool expected = dropped == 0 || (shape.frames <= PageTableLayout::kMaxFrames &&
                                           shape.most_entries <= PageTableLayout::kMaxColumnEntries);
    const std::string before = dump_all();
    KeepPlan plan;
    plan.drop.push_back(range);
    plan.realign = realign;
    const std::uint64_t copied = twin.real.only_table().pages().pages_copied();
    const Status status = twin.real.only_table().apply(plan);
    ASSERT_EQ(status.ok(), expected) << status.message() << before;
    ASSERT_EQ(twin.real.only_table().pages().pages_copied(), copied);
    if (!expected) {
      ++(shape.frames > PageTableLayout::kMaxFrames ? counts.drops_frames : counts.drops_entries);
      ASSERT_EQ(status.code(), StatusCode::kUnsupported);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (dropped == 0) {
      ASSERT_EQ(dump_all(), before);
      return;
    }
    ++counts.drops;
    for (const auto& [index, page] : model.columns)
      if (page.use_count() > 2) {  // `after` holds it too
        ++counts.drops_shared;
        break;
      }
    if (realign == Realign::kRotate) {
      after.rotation -= dropped;
      for (Token& token : after.tokens)
        if (token.id >= range.end) {
          token.rotation -= dropped;
          ++counts.rotations;
        }
    }
    std::set<std::int64_t> kept;
    for (const Token& token : after.tokens) kept.insert(token.id / slots_);
    if (after.next % slots_ != 0) kept.insert(after.next / slots_);
    std::erase_if(after.columns, [&](const auto& column) { return kept.count(column.first) == 0; });
    model = std::move(after);
  }

  // Own copies of what lies in a range.
  void unshare(Twin& twin, IndexRange range) {
    SCOPED_TRACE(fmt::format("unshare {} {}", range.begin, range.end));
    Model& model = twin.model;
    std::set<std::int64_t> shared;
    for (const Token& token : model.tokens)
      if (token.id >= range.begin && token.id < range.end && model.columns.at(token.id / slots_).use_count() > 1)
        shared.insert(token.id / slots_);
    const bool expected = fits(shared.size(), 0);
    ASSERT_EQ(twin.real.only_table().memory().unshare_bytes(range),
              shared.size() * static_cast<std::uint64_t>(lanes_) * page_cost(slots_));
    const std::string before = dump_all();
    const Status status = twin.real.only_table().unshare(range);
    unshare_refused_ = !status.ok();
    ASSERT_EQ(status.ok(), expected);
    if (!expected) {
      ++counts.unshares_refused;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(dump_all(), before);
      return;
    }
    if (!shared.empty()) ++counts.unshares;
    for (const std::int64_t index : shared) model.columns[index] = std::make_shared<int>();
  }

  // Own copies of all that lies behind some token, and new content there.
  void rewrite(Twin& twin) {
    const TokenIndex first = draw(0, static_cast<int>(twin.model.next));
    ASSERT_NO_FATAL_FAILURE(unshare(twin, {first, twin.model.next}));
    if (!unshare_refused_) write(twin, first);
  }

  void fork(const Twin& twin) {
    if (twins_.size() >= 4) return;
    SCOPED_TRACE("fork");
    const bool expected = fits(0, table_bytes(twin.model.most_columns));
    const std::string before = dump_all();
    auto copy = cache_->fork(twin.real);
    ASSERT_EQ(copy.ok(), expected);
    if (!expected) {
      ++counts.forks_refused;
      ASSERT_EQ(dump_all(), before);
      return;
    }
    ++counts.forks;
    Twin forked{std::move(*copy), twin.model};
    add(std::move(forked));
  }

  void end() {
    if (punctures_ && draw(0, 3) > 0) return;
    ++counts.ends;
    twins_.erase(twins_.begin() + draw(0, static_cast<int>(twins_.size()) - 1));
    if (twins_.empty()) add(Twin{cache_->new_sequence(), {}});
  }

  void verify(const Twin& twin) {
    const PageTable& table = twin.real.only_table();
    const Model& model = twin.model;
    const auto live = test::live_tokens(table);
    ASSERT_EQ(table.next_index(), model.next);
    ASSERT_EQ(table.length(), static_cast<std::int64_t>(model.tokens.size()));
    ASSERT_EQ(live.size(), model.tokens.size());
    ASSERT_EQ(static_cast<std::size_t>(table.columns().count()), model.columns.size());
    ASSERT_EQ(table.bytes(), table_bytes(model.most_columns));
    ASSERT_EQ(table.frames().size(), shape_of(model, slots_).frames);
    ASSERT_EQ(table.frames().back().rotation, model.rotation);
    for (std::size_t i = 0; i < live.size(); ++i) {
      ASSERT_EQ(live[i].id, model.tokens[i].id);
      ASSERT_EQ(live[i].position, static_cast<Position>(i));
      ASSERT_EQ(table.frames()[static_cast<std::size_t>(live[i].frame)].rotation, model.tokens[i].rotation);
      ASSERT_NO_FATAL_FAILURE(verify_content(table, live[i], model.tokens[i]));
    }
  }

  void verify_content(const PageTable& table, const test::LiveToken& place, const Token& token) {
    const Turn turn = turn_to(token.id + token.rotation);
    for (int lane = 0; lane < lanes_; ++lane) {
      const std::byte* page = cache_.data(table.pages().of(place.column)[static_cast<std::size_t>(lane)]);
      const auto wanted = key_of(token.tag, lane, turn);
      for (int d = 0; d < kHeadDim; ++d) {
        float key = 0, value = 0;
        std::memcpy(&key, page + 4 * (d * slots_ + place.slot), 4);
        std::memcpy(&value, page + 4 * (kHeadDim * slots_ + place.slot * kHeadDim + d), 4);
        ASSERT_NEAR(key, wanted[static_cast<std::size_t>(d)], kTolerance) << "key of " << token.id;
        ASSERT_EQ(value, element(token.tag, lane, d, true)) << "value of " << token.id;
      }
    }
  }

  int slots_;
  int lanes_;
  bool punctures_;  // small holes, long lives
  std::mt19937_64 random_;
  test::PagedCache cache_;
  std::uint32_t next_tag_ = 1;
  bool unshare_refused_ = false;
  std::vector<std::unique_ptr<Twin>> twins_;
};

struct Config {
  int slots;
  int lanes;
  int budget_columns;
  bool punctures;
};

void PrintTo(const Config& config, std::ostream* out) {
  *out << config.slots << " slots, " << config.lanes << " lanes";
}

class PageTableRangesProperty : public ::testing::TestWithParam<Config> {};

TEST_P(PageTableRangesProperty, RandomOperationsAgreeWithTheModel) {
  const Config& config = GetParam();
  World world(config.slots, config.lanes, config.budget_columns, config.punctures,
              static_cast<std::uint64_t>(config.slots * 1000 + config.lanes * 100 + config.budget_columns));
  for (int step = 0; step < 6000; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    ASSERT_NO_FATAL_FAILURE(world.step());
    ASSERT_NO_FATAL_FAILURE(world.verify());
  }
  const Counts& counts = world.counts;
  RecordProperty("counts",
                 fmt::format("appends {} refused {} copies {} drops {} shared {} frames {} entries {} forks "
                             "{} refused {} unshares {} refused {} rotations {} ends {}",
                             counts.appends, counts.appends_refused, counts.copies, counts.drops, counts.drops_shared,
                             counts.drops_frames, counts.drops_entries, counts.forks, counts.forks_refused,
                             counts.unshares, counts.unshares_refused, counts.rotations, counts.ends));
  // What is to be tested really happened.
  EXPECT_GT(counts.appends, 200);
  EXPECT_GT(counts.appends_refused, 200);
  EXPECT_GT(counts.copies, 20);
  EXPECT_GT(counts.drops, 500);
  EXPECT_GT(counts.drops_shared, 20);
  EXPECT_GT(counts.rotations, 500);
  EXPECT_GT(counts.forks, 20);
  EXPECT_GT(counts.unshares, 10);
  EXPECT_GT(counts.unshares_refused, 10);
  EXPECT_GT(counts.ends, 20);
  if (config.slots > 16) {
    EXPECT_GT(counts.drops_entries, 5);
  }
  if (config.slots < 64) {
    EXPECT_GT(counts.forks_refused, 0);
  }
  if (config.punctures && config.slots < 64) {
    EXPECT_GT(counts.drops_frames, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PageTableRangesProperty,
                         ::testing::Values(Config{16, 1, 3, false}, Config{16, 6, 10, false}, Config{16, 1, 40, true},
                                           Config{16, 6, 30, true}, Config{32, 1, 8, false}, Config{32, 6, 5, false},
                                           Config{32, 1, 30, true}, Config{64, 1, 3, false}, Config{64, 6, 6, false},
                                           Config{64, 6, 20, true}),
                         [](const auto& config) {
                           return fmt::format("Page{}Lanes{}Columns{}{}", config.param.slots, config.param.lanes,
                                              config.param.budget_columns, config.param.punctures ? "Punctures" : "");
                         });

}  // namespace
}  // namespace kvasir
