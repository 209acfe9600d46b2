// What policies are shown of a chunk beside masses: keys, values and sums of queries, whatever passes it runs in.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>

#include "planning/memory_plan.h"
#include "sequence/policy_cases.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

using Place = std::pair<int, TokenIndex>;  // table and token

// What a policy was shown. Keys and values: of all lanes.
struct Shown {
  std::map<Place, std::vector<float>> keys, values;
  std::map<Place, std::vector<std::int64_t>> rotations;  // [lanes]
  // Of the chunk that begins at the token: rows, then sums and products of each head.
  std::map<Place, std::vector<double>> queries;

  bool operator==(const Shown&) const = default;
};

// Tables are read by several threads at once.
std::mutex spying;

// Evicts the second token of every eight, so that tables have holes and frames; writes down what it is shown. It wants
// the queries of each third token.
class Spy final : public RetentionPolicy, public ReadsKv, public ReadsHeldKv, public SumsQueries {
 public:
  struct Wants {
    PolicyScope scope = PolicyScope::kLayer;
    bool keys = true;
    bool values = true;
    bool queries = true;
    bool held = false;                   // all that is held, at the end of each chunk
    const LoadedModel* norms = nullptr;  // and norms of projected values by this model; null: none
    bool throws = false;                 // wherever several threads show it something
    bool exact = true;                   // pages hold what they held when a chunk ended
    int chunk = 24;
    PositionMode positions = PositionMode::kOriginal;
  };
  Spy(const Wants& wants, Shown* shown)
      : RetentionPolicy({.spec = "spy",
                         .scope = wants.scope,
                         .positions = wants.positions,
                         .chunk = wants.chunk,
                         .compacts = true}),
        ReadsKv(wants.keys, wants.values),
        wants_(wants),
        shown_(*shown) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<Spy>(*this); }
  TokenIndex seen() const override { return seen_; }
  void retained(int, int, std::vector<IndexRange>& ranges) const override {
    for (TokenIndex id = 0; id < seen_; ++id)
      if (id % 8 != 1) add(ranges, id);
  }
  std::int64_t exact_prefix(std::int64_t) const override { return 0; }
  void end_chunk(const PolicyChunk& chunk, int, KeepPlan& plan) override {
    seen_ = chunk.end();
    for (TokenIndex id = chunk.first; id < chunk.end(); ++id)
      if (id % 8 == 1) plan.add_drop({id, id + 1});
  }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) override {
    ASSERT_EQ(kv.rows, chunk.rows);
    ASSERT_EQ(kv.keys.empty(), !wants_.keys);
    ASSERT_EQ(kv.values.empty(), !wants_.values);
    for (int row = 0; row < kv.rows; ++row) {
      const Place place{table, chunk.first + row};
      ASSERT_FALSE(shown_.rotations.contains(place)) << "twice";
      for (int lane = 0; lane < kv.lanes; ++lane) {
        shown_.rotations[place].push_back(kv.rotation(lane, row));
        if (wants_.keys) append(shown_.keys[place], kv.key(lane, row));
        if (wants_.values) append(shown_.values[place], kv.value(lane, row));
      }
    }
  }
  bool wants_held(const PolicyChunk&, int) const override { return true; }
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) override {
    if (wants_.throws) throw std::bad_alloc();
    std::vector<TokenIndex> held;
    for (TokenIndex id = 0; id < chunk.end(); ++id)
      if (id % 8 != 1 || id >= chunk.first) held.push_back(id);
    ASSERT_EQ(kv.tokens(), std::ssize(held));
    for (const auto sides :
         {HeldKv::Sides::kNeither, HeldKv::Sides::kBoth, HeldKv::Sides::kKeys, HeldKv::Sides::kValues}) {
      std::int64_t place = 0;
      kv.visit(sides, [&](const HeldKv::Block& block) {
        ASSERT_EQ(block.first, place);
        ASSERT_EQ(block.kv.keys.empty(), sides == HeldKv::Sides::kNeither || sides == HeldKv::Sides::kValues);
        ASSERT_EQ(block.kv.values.empty(), sides == HeldKv::Sides::kNeither || sides == HeldKv::Sides::kKeys);
        for (int row = 0; row < block.kv.rows; ++row, ++place) check_row(block, table, row, held, place);
      });
      ASSERT_EQ(place, kv.tokens());
    }
    if (wants_.norms != nullptr) check_norms(table, kv);
    const std::lock_guard lock(spying);
    ++times_held_;
  }
  bool projects_values() const override { return wants_.norms != nullptr; }
  int times_held() const { return times_held_; }

  bool wants_queries(const PolicyChunk& chunk, int row) const override { return (chunk.first + row) % 3 == 0; }
  void read_queries(const PolicyChunk& chunk, int table, const QuerySums& queries) override {
    if (wants_.throws && !wants_.held) throw std::bad_alloc();
    const std::lock_guard lock(spying);
    std::vector<double>& out = shown_.queries[{table, chunk.first}];
    ASSERT_TRUE(out.empty()) << "twice";
    out.push_back(static_cast<double>(queries.rows));
    out.insert(out.end(), queries.sums.begin(), queries.sums.end());
    for (int head = 0; head < queries.heads; ++head)
      for (int i = 0; i < queries.head_dim; ++i)
        for (int j = 0; j <= i; ++j) out.push_back(queries.product(head, i, j));
    EXPECT_EQ(queries.product(0, 0, 1), queries.product(0, 1, 0));
    EXPECT_EQ(queries.products.empty(), queries.rows == 1);
    if (queries.products.empty()) return;
    EXPECT_EQ(queries.product(0, 0, 1), queries.products[1]);
    EXPECT_EQ(queries.product(queries.heads - 1, queries.head_dim - 1, queries.head_dim - 1), queries.products.back());
  }

 private:
  Capabilities capabilities() const override {
    return Capabilities()
        .with<ReadsKv>(wants_keys() || wants_values() ? this : nullptr)
        .with<ReadsHeldKv>(wants_.held ? this : nullptr)
        .with<SumsQueries>(wants_.queries ? this : nullptr);
  }
  // A token that is held has its position, and the keys and values that it had when its chunk ended.
  void check_row(const HeldKv::Block& block, int table, int row, const std::vector<TokenIndex>& held,
                 std::int64_t place) {
    const TokenIndex token = held[static_cast<std::size_t>(place)];
    const bool original = wants_.positions == PositionMode::kOriginal;
    std::vector<float> keys, values;
    for (int lane = 0; lane < block.kv.lanes; ++lane) {
      // Families whose keys some layers leave as they are have a test of their own.
      if (wants_.norms == nullptr) {
        EXPECT_EQ(block.origin + block.kv.rotation(lane, row), original ? token : place);
      }
      if (!block.kv.keys.empty()) append(keys, block.kv.key(lane, row));
      if (!block.kv.values.empty()) append(values, block.kv.value(lane, row));
    }
    if (!wants_.exact) return;
    if (!keys.empty() && original) {
      EXPECT_EQ(keys, shown_.keys.at({table, token}));
    }
    if (!values.empty()) {
      EXPECT_EQ(values, shown_.values.at({table, token}));
    }
  }

  // The norms of a table are the mean over its lanes of those of the values that it shows.
  void check_norms(int table, HeldKv& kv) {
    const ModelConfig& config = wants_.norms->config;
    std::vector<int> governed;
    for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
      const AttentionSpec& spec = config.layers[layer].attention;
      if (!config.layers[layer].state && spec.keys_of < 0 && spec.shares_tables_with(config.governed()))
        governed.push_back(static_cast<int>(layer));
    }
    std::vector<std::vector<float>> values;  // of each lane
    kv.visit(HeldKv::Sides::kValues, [&](const HeldKv::Block& block) {
      values.resize(static_cast<std::size_t>(block.kv.lanes));
      for (int lane = 0; lane < block.kv.lanes; ++lane)
        for (int row = 0; row < block.kv.rows; ++row)
          append(values[static_cast<std::size_t>(lane)], block.kv.value(lane, row));
    });
    const int kv_heads = config.governed().kv_heads;
    std::vector<double> norms(static_cast<std::size_t>(kv.tokens())), expected(norms.size()), of_lane(norms.size());
    for (std::size_t lane = 0; lane < values.size(); ++lane) {
      const std::size_t number = static_cast<std::size_t>(table) * values.size() + lane;
      wants_.norms->transformer->projected_norms(governed[number / static_cast<std::size_t>(kv_heads)],
                                                 static_cast<int>(number % static_cast<std::size_t>(kv_heads)),
                                                 values[lane], of_lane);
      for (std::size_t i = 0; i < norms.size(); ++i) expected[i] += of_lane[i] / static_cast<double>(values.size());
    }
    kv.projected_norms(norms);
    EXPECT_EQ(norms, expected);
    EXPECT_GT(norms.front(), 0);
  }

  static void append(std::vector<float>& to, std::span<const float> floats) {
    to.insert(to.end(), floats.begin(), floats.end());
  }
  static void add(std::vector<IndexRange>& ranges, TokenIndex id) {
    if (!ranges.empty() && ranges.back().end == id)
      ++ranges.back().end;
    else
      ranges.push_back({id, id + 1});
  }

  void save_state(ByteWriter& out) const override { out.put(seen_); }
  bool restore_state(ByteReader& in) override { return in.get(seen_); }

  Wants wants_;
  Shown& shown_;
  int times_held_ = 0;
  TokenIndex seen_ = 0;
};

// Keys are stored rotated by their place in the text, and encoded pages alone change what they hold.
void expect_those_of_pages(const PageStore& store, const KvSequence& sequence, const Shown& shown) {
  std::vector<float> page(64 * 1024);
  std::int64_t compared = 0;
  for (int t = 0; t < sequence.governed_tables(); ++t) {
    const PageTable& table = sequence.table(t);
    const auto lanes = static_cast<std::size_t>(table.pages().lanes());
    for (const auto& frame : table.frames())
      for (const PageEntry& entry : table.entries_of(frame))
        for (std::size_t lane = 0; lane < lanes; ++lane)
          for (const auto* side : {&shown.keys, &shown.values}) {
            const PageId id = table.pages().of(entry.column)[lane];
            side == &shown.keys ? store.read_keys(id, page.data()) : store.read_values(id, page.data());
            for (SlotMask rest = entry.live; rest != 0; rest &= rest - 1) {
              const int slot = std::countr_zero(rest);
              const TokenIndex token = table.columns().index(entry.column, slot);
              const std::vector<float>& floats = side->at({t, token});
              const std::size_t dim = floats.size() / lanes;
              const auto first = page.begin() + static_cast<std::ptrdiff_t>(dim) * slot;
              const auto own = floats.begin() + static_cast<std::ptrdiff_t>(dim * lane);
              ASSERT_TRUE(std::equal(own, own + static_cast<std::ptrdiff_t>(dim), first));
              EXPECT_EQ(shown.rotations.at({t, token})[lane], token);
              ++compared;
            }
          }
  }
  EXPECT_GT(compared, 0);
}

TEST(PolicyListener, ShowsThoseOfThePagesWhateverThePasses) {
  const RandomModelSpec spec = family_cases().front().spec;
  const TemporaryFile file(make_random_model(spec));
  const Text text(70, 9, 1);
  for (const char* type : {"f32", "f16", "q8"})
    for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kLayer, PolicyScope::kHead}) {
      SCOPED_TRACE(std::string(type) + " " + std::to_string(static_cast<int>(scope)));
      Shown first;
      for (const auto& [rows, threads] : {std::pair{1000, 2}, std::pair{5, 1}}) {
        const auto model = load(file.path(), {.threads = threads, .kv_type = type, .page_slots = 16});
        Shown shown;
        SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                              std::make_unique<Spy>(Spy::Wants{.scope = scope}, &shown));
        runner.set_most_rows(rows);
        run_text(runner, text, 0);
        const KvCacheShape& shape = model->kv_shape;
        EXPECT_EQ(std::ssize(shown.keys), (70 + 9) * shape.tables(scope));
        // Chunks of the prompt, and of the generated tokens those of which the query is wanted.
        EXPECT_EQ(std::ssize(shown.queries), (3 + 3) * shape.tables(scope));
        const auto floats = static_cast<std::size_t>(shape.lanes_per_table(scope) * shape.page.head_dim);
        for (const auto& [place, keys] : shown.keys) ASSERT_EQ(keys.size(), floats);
        for (const auto& [place, values] : shown.values) ASSERT_EQ(values.size(), floats);
        if (std::string(type) != "q8")
          expect_those_of_pages(*runner.whole().cache()->pool().store(), runner.sequence(), shown);
        if (first.keys.empty()) first = shown;
        EXPECT_EQ(shown, first);
        // Nothing is held between chunks.
        EXPECT_EQ(runner.whole().state_bytes(), 0u);
      }
    }
}

TEST(PolicyListener, ShowsAllThatIsHeld) {
  const TemporaryFile file(make_random_model(family_cases().front().spec));
  for (const char* type : {"f32", "q8"})
    for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kLayer, PolicyScope::kHead})
      for (const PositionMode positions : {PositionMode::kOriginal, PositionMode::kCompact}) {
        SCOPED_TRACE(
            fmt::format("{} scope {} positions {}", type, static_cast<int>(scope), static_cast<int>(positions)));
        const auto model = load(file.path(), {.threads = 2, .kv_type = type, .page_slots = 16});
        Shown shown;
        const bool exact = std::string(type) == "f32";
        auto spy = std::make_unique<Spy>(
            Spy::Wants{.scope = scope, .held = true, .exact = exact, .positions = positions}, &shown);
        const Spy& policy = *spy;
        SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28), std::move(spy));
        run_text(runner, Text(70, 9, 1), 0);
        EXPECT_EQ(policy.times_held(), (3 + 9) * model->kv_shape.tables(scope));  // chunks
      }
}

TEST(PolicyListener, NormsAreThoseOfTheValuesThatAreHeld) {
  for (const FamilyCase& family : family_cases()) {
    SCOPED_TRACE(family.name);
    const TemporaryFile file(make_random_model(family.spec));
    const auto model = load(file.path(), {.threads = 2, .kv_type = "q8", .page_slots = 16});
    if (model->config.governed().latent) continue;
    for (const PolicyScope scope : {PolicyScope::kLayer, PolicyScope::kHead}) {
      Shown shown;
      auto spy = std::make_unique<Spy>(
          Spy::Wants{.scope = scope, .queries = false, .held = true, .norms = model.get(), .exact = false}, &shown);
      const Spy& policy = *spy;
      SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28), std::move(spy));
      run_text(runner, Text(40, 2, 1), 0);
      EXPECT_EQ(policy.times_held(), (2 + 2) * model->kv_shape.tables(scope));
    }
  }
}

// Every fourth layer of SmolLM3 leaves keys as they are.
TEST(PolicyListener, KeysOfLayersWithoutRotationAreTurnedByNothing) {
  const auto families = family_cases();
  const auto smollm3 = std::ranges::find(families, "smollm3", &FamilyCase::name);
  ASSERT_NE(smollm3, families.end());
  const TemporaryFile file(make_random_model(smollm3->spec));
  const auto model = load(file.path());
  for (const PolicyScope scope : {PolicyScope::kSequence, PolicyScope::kLayer, PolicyScope::kHead}) {
    Shown shown;
    SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                          std::make_unique<Spy>(Spy::Wants{.scope = scope}, &shown));
    run_text(runner, Text(70, 9, 1), 0);
    const std::size_t lanes = static_cast<std::size_t>(model->kv_shape.lanes_per_table(scope));
    std::size_t unrotated = 0;
    for (const auto& [place, rotations] : shown.rotations) {
      ASSERT_EQ(rotations.size(), lanes);
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const std::size_t layer =
            (static_cast<std::size_t>(place.first) * lanes + lane) / static_cast<std::size_t>(smollm3->spec.kv_heads);
        EXPECT_EQ(rotations[lane], (layer + 1) % 4 == 0 ? 0 : place.second) << layer;
        unrotated += (layer + 1) % 4 == 0;
      }
    }
    EXPECT_EQ(unrotated, static_cast<std::size_t>(79 * smollm3->spec.kv_heads));
  }
}

// Takes down the attention of each row.
class Weights final : public kvasir::AttentionObserver {
 public:
  void observe(const ObservedAttention& attention) override {
    for (int row = 0; row < attention.rows; ++row)
      for (int head = 0; head < attention.heads; ++head) {
        const std::span<const float> weights = attention.of(row, head);
        rows_[{attention.layer, head, std::ssize(weights) - 1}].assign(weights.begin(), weights.end());
      }
  }
  const std::vector<float>& of(int layer, int head, std::int64_t token) const { return rows_.at({layer, head, token}); }

 private:
  std::map<std::tuple<int, int, std::int64_t>, std::vector<float>> rows_;
};

// Queries, turned by the formula of RoPE, and keys give the weights that the engine used. Sums of chunks of several
// rows are sums of those of one.
TEST(PolicyListener, QueriesAndKeysGiveTheAttention) {
  const TemporaryFile file(make_random_model(family_cases().front().spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f32", .page_slots = 16});
  const KvCacheShape& shape = model->kv_shape;
  const auto heads = static_cast<std::size_t>(shape.query_heads), dim = static_cast<std::size_t>(shape.page.head_dim);
  const std::size_t group = heads / static_cast<std::size_t>(shape.kv_heads);
  const RotaryEmbedding& rotary = model->config.rotary.front();
  const Text text(20, 1, 3);
  std::map<int, Shown> by_chunk;
  Weights weights;
  for (const int chunk : {1, 20}) {
    SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                          std::make_unique<Spy>(Spy::Wants{.chunk = chunk}, &by_chunk[chunk]));
    if (chunk == 20) runner.listener().set_tap(&weights);
    run_text(runner, text, chunk);
  }
  const Shown& shown = by_chunk[20];
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<double> sums(1 + heads * (dim + dim * (dim + 1) / 2));
    for (TokenIndex token = 0; token < 20; token += 3) {
      // With another chunk tokens are dropped earlier, which the first layer does not see in its queries.
      if (layer > 0) break;
      const std::vector<double>& own = by_chunk[1].queries.at({layer, token});
      sums[0] += 1;
      for (std::size_t h = 0; h < heads; ++h) {
        const auto query = [&](std::size_t i) { return own[1 + h * dim + i]; };
        std::size_t at = 1 + heads * dim + h * (dim * (dim + 1) / 2);
        for (std::size_t i = 0; i < dim; ++i) {
          sums[1 + h * dim + i] += query(i);
          for (std::size_t j = 0; j <= i; ++j) sums[at++] += query(i) * query(j);
        }
        std::vector<double> turned;
        for (std::size_t i = 0; i < dim; i += 2) {
          const double angle = i / 2 < rotary.inverse_frequencies.size()
                                   ? static_cast<double>(token) * rotary.inverse_frequencies[i / 2]
                                   : 0.0;
          turned.push_back(query(i) * std::cos(angle) - query(i + 1) * std::sin(angle));
          turned.push_back(query(i) * std::sin(angle) + query(i + 1) * std::cos(angle));
        }
        const std::vector<float>& of_row = weights.of(layer, static_cast<int>(h), token);
        std::vector<double> expected;
        double sum = 0;
        for (TokenIndex t = 0; t <= token; ++t) {
          double score = 0;
          const std::vector<float>& keys = shown.keys.at({layer, t});
          for (std::size_t i = 0; i < dim; ++i) score += turned[i] * static_cast<double>(keys[h / group * dim + i]);
          sum += expected.emplace_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        }
        for (std::size_t t = 0; t < expected.size(); ++t) ASSERT_NEAR(of_row[t], expected[t] / sum, 1e-5);
      }
    }
    if (layer == 0) {
      EXPECT_EQ(shown.queries.at({layer, 0}), sums);
    }
  }
}

// A sequence never takes more than was planned, and what one input less takes is less by just that.
TEST(PolicyListener, ArePlannedToTheByte) {
  const TemporaryFile file(make_random_model(family_cases().front().spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f16", .page_slots = 16});
  const KvCacheShape& shape = model->kv_shape;
  const auto planned = [&](const Spy::Wants& wants) {
    Shown shown;
    return plan_kv_memory(shape, Spy(wants, &shown), {70, 70, 0, 1}).policy_bytes;
  };
  const auto dim = static_cast<std::uint64_t>(shape.page.head_dim);
  const std::uint64_t side = static_cast<std::uint64_t>(shape.kv_heads) * 24 * dim * sizeof(float);
  const std::uint64_t page_and_places =
      16 * dim * sizeof(float) + static_cast<std::uint64_t>(shape.kv_heads) * 24 * sizeof(std::int64_t);
  const std::uint64_t sums =
      static_cast<std::uint64_t>(shape.layers * shape.query_heads) * (dim + dim * (dim + 1) / 2) * sizeof(double);
  EXPECT_EQ(planned({.keys = false, .values = false, .queries = false}), 0u);
  EXPECT_EQ(planned({.values = false, .queries = false}), side + page_and_places);
  EXPECT_EQ(planned({.keys = false, .queries = false}), side + page_and_places);
  EXPECT_EQ(planned({.keys = false, .values = false}), sums);
  EXPECT_EQ(planned({}), 2 * side + page_and_places + sums);
  // Up to four tables are read at once; with norms, one. Norms of the 70 tokens of a lane, and their values.
  const int readers = std::min(shape.layers, 4);
  EXPECT_GT(readers, 1);
  const std::uint64_t held =
      planned({.keys = false, .values = false, .queries = false, .held = true}) / static_cast<std::uint64_t>(readers);
  const int group = shape.query_heads / shape.kv_heads;
  EXPECT_EQ(planned({.keys = false, .values = false, .queries = false, .held = true, .norms = model.get()}) - held,
            70 * (dim * sizeof(float) + sizeof(double)) +
                128 * (static_cast<std::uint64_t>(shape.query_heads) + static_cast<std::uint64_t>(group)) * dim *
                    sizeof(float));
  // The same is charged while a chunk is under way.
  Shown shown;
  SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28), std::make_unique<Spy>(Spy::Wants{}, &shown));
  std::uint64_t most = 0;
  runner.set_watch([&](const KvSequence&) { most = std::max(most, runner.whole().state_bytes()); });
  run_text(runner, Text(70, 9, 1), 0);
  EXPECT_EQ(most, planned({}));
  // Two threads read two tables.
  Shown also;
  const Spy::Wants all{.held = true};
  SequenceRunner reader(model, *new_cache(model, std::uint64_t{1} << 28), std::make_unique<Spy>(all, &also));
  most = 0;
  reader.set_watch([&](const KvSequence&) { most = std::max(most, reader.whole().state_bytes()); });
  run_text(reader, Text(70, 9, 1), 0);
  EXPECT_EQ(most, planned(all) - held * static_cast<std::uint64_t>(readers - 2));
}

// An exception that a policy throws on another thread reaches the caller, and the threads go on.
TEST(PolicyListener, PassesOnWhatAPolicyThrows) {
  const TemporaryFile file(make_random_model(family_cases().front().spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f16", .page_slots = 16});
  for (const bool held : {false, true}) {
    Shown shown;
    SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                          std::make_unique<Spy>(Spy::Wants{.held = held, .throws = true}, &shown));
    EXPECT_THROW(run_text(runner, Text(70, 9, 1), 0), std::bad_alloc);
  }
  Shown shown;
  SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28), std::make_unique<Spy>(Spy::Wants{}, &shown));
  run_text(runner, Text(70, 9, 1), 0);
  EXPECT_FALSE(shown.keys.empty());
}

}  // namespace
}  // namespace kvasir::test
