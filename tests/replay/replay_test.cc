// Replay against traces small enough to work out by hand, with policies made here; and against a published example.
#include "replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "replay/trace_file.h"
#include "retention/registry.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

using test::trace_bytes;

// Owns the bytes of a trace that was checked.
class Recorded {
 public:
  Recorded(int layers, int heads, int tokens, const test::WeightOf& weight)
      : bytes_(trace_bytes(layers, heads, tokens, weight)),
        trace_(*AttentionTrace::parse(std::as_bytes(std::span(bytes_)), "x.npy")) {
    EXPECT_TRUE(trace_.check({}).ok()) << trace_.check({}).message();
  }
  const AttentionTrace& operator*() const { return trace_; }

 private:
  std::string bytes_;
  AttentionTrace trace_;
};

// What tests make policies of: may drop any token; every call can be watched. Replay asks for no state.
class TestPolicy : public RetentionPolicy, public ObservesMasses {
 public:
  explicit TestPolicy(PolicyScope scope = PolicyScope::kLayer,
                      std::vector<MassReduction> reductions = {MassReduction::kMean})
      : RetentionPolicy({.spec = "test", .scope = scope, .chunk = 256, .compacts = true}),
        ObservesMasses(std::move(reductions)) {}

  void observe(const PolicyChunk&, int, int, std::span<const std::span<const double>>) override {}
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return nullptr; }
  TokenIndex seen() const override { return 0; }
  void retained(int, int, std::vector<IndexRange>&) const override {}
  std::int64_t exact_prefix(std::int64_t) const override { return 0; }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }
  void end_chunk(const PolicyChunk&, int, KeepPlan&) override {}

 protected:
  Capabilities capabilities() const override { return Capabilities().with<ObservesMasses>(this); }

 private:
  void save_state(ByteWriter&) const override {}
  bool restore_state(ByteReader&) override { return false; }
};

IndexRange only(TokenIndex token) {
  return {token, token + 1};
}

ReplayResult replayed(const Recorded& trace, RetentionPolicy& policy, const ReplayOptions& options = {}) {
  auto result = replay(*trace, policy, options, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : ReplayResult{};
}

std::vector<TokenIndex> ids(TokenIndex begin, TokenIndex end) {
  std::vector<TokenIndex> list(static_cast<std::size_t>(end - begin));
  std::iota(list.begin(), list.end(), begin);
  return list;
}

// Keeps the `budget` tokens of largest mass in the current row, one token at a time.
class LargestMass final : public TestPolicy {
 public:
  explicit LargestMass(std::size_t budget) : budget_(budget) {}

  void observe(const PolicyChunk& pass, int, int row, std::span<const std::span<const double>> masses) override {
    ASSERT_EQ(masses.size(), 1u);
    const std::span<const double> mass = masses[0];
    EXPECT_EQ(pass.rows, 1);
    EXPECT_EQ(row, 0);
    held_.push_back(pass.first);
    ASSERT_EQ(mass.size(), held_.size());
    EXPECT_NEAR(std::accumulate(mass.begin(), mass.end(), 0.0), 1, 1e-6) << "normalised anew";
    masses_.emplace_back(mass.begin(), mass.end());
  }
  void end_chunk(const PolicyChunk&, int, KeepPlan& plan) override {
    if (held_.size() <= budget_) return;
    const std::vector<double>& mass = masses_.back();
    const auto least = std::min_element(mass.begin(), mass.end()) - mass.begin();
    plan.drop.push_back(only(held_[static_cast<std::size_t>(least)]));
    held_.erase(held_.begin() + least);
  }

  std::vector<std::vector<double>> masses_;

 private:
  std::size_t budget_;
  std::vector<TokenIndex> held_;
};

// Two heads, four tokens, eighths: head 0 likes the first token, head 1 its own.
float by_hand(int, int head, int row, int token) {
  static constexpr float kWeights[2][4][4] = {{{8}, {6, 2}, {4, 1, 3}, {4, 1, 2, 1}},
                                              {{8}, {1, 7}, {2, 1, 5}, {1, 2, 1, 4}}};
  return kWeights[head][row][token] / 8;
}

TEST(ReplayTest, WorkedOutByHand) {
  const Recorded trace(1, 2, 4, by_hand);
  LargestMass policy(2);
  const ReplayResult result = replayed(trace, policy);
  // Row 2: the mean mass of 0, 1, 2 is 6/16, 2/16, 8/16: token 1 goes. Row 3 sees 0, 2, 3: head 0 has 4, 2, 1 of 7,
  // head 1 has 1, 1, 4 of 6: the means are 31/84, 19/84 and 34/84, so token 2 goes.
  ASSERT_EQ(policy.masses_.size(), 4u);
  EXPECT_EQ(policy.masses_[0], (std::vector<double>{1}));
  EXPECT_EQ(policy.masses_[1], (std::vector<double>{7 / 16., 9 / 16.}));
  EXPECT_EQ(policy.masses_[2], (std::vector<double>{6 / 16., 2 / 16., 8 / 16.}));
  ASSERT_EQ(policy.masses_[3].size(), 3u);
  EXPECT_NEAR(policy.masses_[3][0], 31 / 84., 1e-12);
  EXPECT_NEAR(policy.masses_[3][1], 19 / 84., 1e-12);
  EXPECT_NEAR(policy.masses_[3][2], 34 / 84., 1e-12);
  ASSERT_EQ(result.layers.size(), 1u);
  EXPECT_FALSE(result.by_head);
  const ReplayedLayer& layer = result.layers[0];
  ASSERT_EQ(layer.tables.size(), 1u);
  EXPECT_EQ(layer.tables[0].final, (std::vector<TokenIndex>{0, 3}));
  EXPECT_DOUBLE_EQ(layer.figures.kept_mean, (1 + 2 + 2 + 2) / 4.);
  EXPECT_EQ(layer.figures.kept_max, 2);
  EXPECT_EQ(layer.figures.prunes, 2);
  // All is seen but token 1 in row 3: 1/8 of head 0 and 2/8 of head 1.
  EXPECT_DOUBLE_EQ(layer.figures.recall, (8 - 3 / 8.) / 8);
}

TEST(ReplayTest, RangesWorkedOutByHand) {
  const Recorded trace(1, 2, 4, by_hand);
  const auto window = make_policy("window:size=2");
  ASSERT_TRUE(window.ok());
  const ReplayResult result = replayed(trace, **window);
  const ReplayedLayer& layer = result.layers.at(0);
  EXPECT_EQ(layer.tables.at(0).final, ids(2, 4));
  EXPECT_DOUBLE_EQ(layer.figures.kept_mean, (1 + 2 + 2 + 2) / 4.);
  EXPECT_EQ(layer.figures.kept_max, 2);
  EXPECT_EQ(layer.figures.prunes, 2);
  // The pass sees the window and its own token: token 0 is missed in row 3.
  EXPECT_DOUBLE_EQ(layer.figures.recall, (8 - 5 / 8.) / 8);

  const auto batched = make_policy("streaming:sinks=1,window=1,every=2");
  ASSERT_TRUE(batched.ok());
  const ReplayedLayer lazy = replayed(trace, **batched).layers.at(0);
  EXPECT_EQ(lazy.tables.at(0).final, (std::vector<TokenIndex>{0, 3}));
  EXPECT_DOUBLE_EQ(lazy.figures.kept_mean, (1 + 2 + 3 + 2) / 4.);
  EXPECT_EQ(lazy.figures.kept_max, 3);
  EXPECT_EQ(lazy.figures.prunes, 1);
  EXPECT_DOUBLE_EQ(lazy.figures.recall, 1);
}

TEST(ReplayTest, APromptChangesNothingForRanges) {
  const Recorded trace(2, 3, 40, test::uneven_weight);
  for (const std::string spec : {"full", "window:size=7", "streaming:sinks=2,window=5,every=3"}) {
    const auto alone = make_policy(spec);
    const auto prompt = make_policy(spec);
    ASSERT_TRUE(alone.ok() && prompt.ok());
    const ReplayResult a = replayed(trace, **alone);
    const ReplayResult b = replayed(trace, **prompt, {.prefill = 33, .chunk = 8});
    ASSERT_EQ(a.layers.size(), 2u);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(a.layers[layer].tables[0].final, b.layers[layer].tables[0].final);
      EXPECT_EQ(a.layers[layer].figures.recall, b.layers[layer].figures.recall);
      EXPECT_EQ(a.layers[layer].figures.kept_mean, b.layers[layer].figures.kept_mean);
    }
    EXPECT_NE(a.layers[0].figures.prunes > 0, spec == "full");
  }
}

// Writes every call down, and drops nothing.
class Watcher final : public TestPolicy {
 public:
  using TestPolicy::TestPolicy;
  void begin(const TableLayout& layout) override { layout_ = layout; }
  void observe(const PolicyChunk& pass, int table, int row, std::span<const std::span<const double>> masses) override {
    ASSERT_EQ(masses.size(), 1u);
    note("observe", pass, table, row, masses[0].size());
  }
  void end_chunk(const PolicyChunk& pass, int table, KeepPlan& plan) override {
    EXPECT_TRUE(plan.empty() && plan.held.empty());
    note("end", pass, table, 0, 0);
  }
  void finish_chunk(const PolicyChunk& pass, int table, KeepPlan& plan) override {
    EXPECT_TRUE(plan.empty() && plan.held.empty());
    note("finish", pass, table, 0, 0);
  }

  TableLayout layout_;
  std::vector<std::string> calls_;

 private:
  void note(const std::string& what, const PolicyChunk& pass, int table, int row, std::size_t size) {
    calls_.push_back(what + " table " + std::to_string(table) + ": " + std::to_string(pass.first) + "+" +
                     std::to_string(pass.rows) + (pass.prompt ? " prompt " : " ") + std::to_string(pass.prompt_left) +
                     " row " + std::to_string(row) + " on " + std::to_string(size));
  }
};

TEST(ReplayTest, FollowsTheProtocol) {
  const Recorded trace(2, 1, 4, test::uneven_weight);
  Watcher policy;
  const ReplayResult result = replayed(trace, policy, {.prefill = 3, .chunk = 2});
  EXPECT_EQ(policy.layout_.layers, 2);
  EXPECT_EQ(policy.layout_.per_layer, 1);
  EXPECT_EQ(policy.layout_.heads, 1);
  const std::vector<std::string> expected = {"observe table 0: 0+2 prompt 1 row 0 on 1",
                                             "observe table 0: 0+2 prompt 1 row 1 on 2",
                                             "observe table 1: 0+2 prompt 1 row 0 on 1",
                                             "observe table 1: 0+2 prompt 1 row 1 on 2",
                                             "end table 0: 0+2 prompt 1 row 0 on 0",
                                             "end table 1: 0+2 prompt 1 row 0 on 0",
                                             "finish table 0: 0+2 prompt 1 row 0 on 0",
                                             "finish table 1: 0+2 prompt 1 row 0 on 0",
                                             "observe table 0: 2+1 prompt 0 row 0 on 3",
                                             "observe table 1: 2+1 prompt 0 row 0 on 3",
                                             "end table 0: 2+1 prompt 0 row 0 on 0",
                                             "end table 1: 2+1 prompt 0 row 0 on 0",
                                             "finish table 0: 2+1 prompt 0 row 0 on 0",
                                             "finish table 1: 2+1 prompt 0 row 0 on 0",
                                             "observe table 0: 3+1 0 row 0 on 4",
                                             "observe table 1: 3+1 0 row 0 on 4",
                                             "end table 0: 3+1 0 row 0 on 0",
                                             "end table 1: 3+1 0 row 0 on 0",
                                             "finish table 0: 3+1 0 row 0 on 0",
                                             "finish table 1: 3+1 0 row 0 on 0"};
  EXPECT_EQ(policy.calls_, expected);
  for (const ReplayedLayer& layer : result.layers) {
    EXPECT_EQ(layer.tables[0].final, ids(0, 4));
    EXPECT_DOUBLE_EQ(layer.figures.kept_mean, 2.5) << "one step per token, in a chunk too";
    EXPECT_NEAR(layer.figures.recall, 1, 1e-6);
    EXPECT_EQ(layer.figures.prunes, 0);
  }
}

TEST(ReplayTest, ThePromptIsOneChunkUnlessCut) {
  const Recorded trace(1, 1, 5, test::uneven_weight);
  Watcher whole;
  replayed(trace, whole, {.prefill = 4});
  ASSERT_FALSE(whole.calls_.empty());
  EXPECT_EQ(whole.calls_[0], "observe table 0: 0+4 prompt 0 row 0 on 1");
  EXPECT_EQ(whole.calls_.back(), "finish table 0: 4+1 0 row 0 on 0");
  Watcher none(PolicyScope::kLayer, {});
  replayed(trace, none);
  EXPECT_EQ(none.calls_.size(), 10u) << "no observe";
}

TEST(ReplayTest, HeadsAreGrouped) {
  const Recorded trace(2, 6, 2, test::uneven_weight);
  for (const std::int64_t kv_heads : {0, 1, 2, 3, 6}) {
    Watcher policy(PolicyScope::kHead);
    const ReplayResult result = replayed(trace, policy, {.kv_heads = kv_heads});
    const int groups = kv_heads == 0 ? 6 : static_cast<int>(kv_heads);
    EXPECT_TRUE(result.by_head);
    EXPECT_EQ(policy.layout_.layers, 2);
    EXPECT_EQ(policy.layout_.per_layer, groups);
    EXPECT_EQ(policy.layout_.heads, 6 / groups);
    for (const ReplayedLayer& layer : result.layers) EXPECT_EQ(layer.tables.size(), static_cast<std::size_t>(groups));
    Watcher by_layer;
    replayed(trace, by_layer, {.kv_heads = kv_heads});
    EXPECT_EQ(by_layer.layout_.per_layer, 1);
    EXPECT_EQ(by_layer.layout_.heads, 6);
  }
}

// Each KV head drops its own: head h of layer l drops token l + h when token 2 + h comes.
class OwnDrops final : public TestPolicy {
 public:
  OwnDrops() : TestPolicy(PolicyScope::kHead, {MassReduction::kSum}) {}
  void begin(const TableLayout& layout) override { per_layer_ = layout.per_layer; }
  void observe(const PolicyChunk& pass, int table, int, std::span<const std::span<const double>> masses) override {
    const std::span<const double> mass = masses[0];
    if (pass.first == 0 && table == 1) first_mass_ = mass.front();
    last_mass_.assign(mass.begin(), mass.end());
  }
  void end_chunk(const PolicyChunk& pass, int table, KeepPlan& plan) override {
    const int layer = table / per_layer_, head = table % per_layer_;
    if (pass.first == 2 + head) plan.drop.push_back(only(layer + head));
  }
  int per_layer_ = 0;
  double first_mass_ = 0;
  std::vector<double> last_mass_;
};

TEST(ReplayTest, FiguresOfHeadsAndLayers) {
  const Recorded trace(2, 4, 4, test::uneven_weight);
  OwnDrops policy;
  const ReplayResult result = replayed(trace, policy, {.kv_heads = 2});
  EXPECT_NEAR(policy.first_mass_, 2, 1e-6) << "two query heads in each group";
  const auto final_of = [&](std::size_t layer, std::size_t head) { return result.layers[layer].tables[head].final; };
  EXPECT_EQ(final_of(0, 0), (std::vector<TokenIndex>{1, 2, 3}));
  EXPECT_EQ(final_of(0, 1), (std::vector<TokenIndex>{0, 2, 3}));
  EXPECT_EQ(final_of(1, 0), (std::vector<TokenIndex>{0, 2, 3}));
  EXPECT_EQ(final_of(1, 1), (std::vector<TokenIndex>{0, 1, 3}));
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const auto& [figures, tables] = result.layers[layer];
    // Head 0 holds 1, 2, 2, 3 and head 1 holds 1, 2, 3, 3.
    EXPECT_DOUBLE_EQ(tables[0].figures.kept_mean, 2);
    EXPECT_DOUBLE_EQ(tables[1].figures.kept_mean, 2.25);
    EXPECT_DOUBLE_EQ(figures.kept_mean, 2.125);
    EXPECT_EQ(figures.kept_max, 3);
    EXPECT_EQ(tables[0].figures.prunes, 1);
    EXPECT_EQ(figures.prunes, 2) << "at different steps";
    // Head 0's queries 0 and 1 miss a token in row 3; head 1 misses none.
    const int l = static_cast<int>(layer);
    const double missed = test::uneven_weight(l, 0, 3, l) + test::uneven_weight(l, 1, 3, l);
    EXPECT_NEAR(tables[0].figures.recall, (8 - missed) / 8, 1e-6);
    EXPECT_NEAR(tables[1].figures.recall, 1, 1e-6);
    EXPECT_NEAR(figures.recall, (16 - missed) / 16, 1e-6);
  }
}

// In a pass of many rows, keeps the last `budget` tokens; says what it held after each, or does not.
class LastTokens final : public TestPolicy {
 public:
  LastTokens(std::int64_t budget, bool tells) : budget_(budget), tells_(tells) {}
  void end_chunk(const PolicyChunk& pass, int, KeepPlan& plan) override {
    for (int row = 0; row < pass.rows; ++row) {
      held_.push_back(pass.first + row);
      if (static_cast<std::int64_t>(held_.size()) > budget_) {
        plan.drop.push_back(only(held_.front()));
        held_.erase(held_.begin());
      }
      if (tells_) plan.held.push_back(static_cast<std::int64_t>(held_.size()));
    }
  }
  // Once, a second opinion.
  void finish_chunk(const PolicyChunk& pass, int, KeepPlan& plan) override {
    if (pass.first != finish_at_) return;
    plan.drop.push_back(only(held_.front()));
    held_.erase(held_.begin());
  }
  TokenIndex finish_at_ = -1;

 private:
  std::int64_t budget_;
  bool tells_;
  std::vector<TokenIndex> held_;
};

TEST(ReplayTest, AChunkIsManySteps) {
  const Recorded trace(1, 1, 7, test::uniform_weight);
  LastTokens tells(2, true);
  const ReplayedLayer layer = replayed(trace, tells, {.prefill = 6, .chunk = 4}).layers.at(0);
  EXPECT_EQ(layer.tables[0].final, ids(5, 7));
  EXPECT_DOUBLE_EQ(layer.figures.kept_mean, (1 + 2 * 6) / 7.);
  EXPECT_EQ(layer.figures.kept_max, 2);
  EXPECT_EQ(layer.figures.prunes, 5);
  // The rows of a chunk see all of the chunk before them; row 5 sees tokens 2 to 5, row 6 tokens 4 to 6.
  EXPECT_NEAR(layer.figures.recall, (4 + 3 / 5. + 4 / 6. + 3 / 7.) / 7, 1e-6);

  LastTokens silent(2, false);
  const ReplayedLayer net = replayed(trace, silent, {.prefill = 6, .chunk = 4}).layers.at(0);
  EXPECT_EQ(net.tables[0].final, ids(5, 7));
  EXPECT_DOUBLE_EQ(net.figures.kept_mean, (1 + 2 + 3 + 2 + 3 + 2 + 2) / 7.);
  EXPECT_EQ(net.figures.prunes, 3);
  EXPECT_EQ(net.figures.recall, layer.figures.recall);

  LastTokens twice(2, true);
  twice.finish_at_ = 4;
  const ReplayedLayer finished = replayed(trace, twice, {.prefill = 6, .chunk = 4}).layers.at(0);
  EXPECT_EQ(finished.tables[0].final, ids(5, 7));
  EXPECT_DOUBLE_EQ(finished.figures.kept_mean, (1 + 2 + 2 + 2 + 2 + 1 + 2) / 7.);
  EXPECT_EQ(finished.figures.prunes, 4) << "the last token found room";
}

TEST(ReplayTest, OptionsMustFitTheTrace) {
  const Recorded trace(1, 6, 4, test::uniform_weight);
  for (const auto& [options, part] : std::vector<std::pair<ReplayOptions, std::string>>{
           {{.prefill = 5}, "prefill=5 must be from 0 to the 4 tokens"},
           {{.prefill = -1}, "prefill=-1"},
           {{.prefill = 2, .chunk = -1}, "chunk=-1"},
           {{.kv_heads = 4}, "6 query heads of 'x.npy' cannot be shared among 4"},
           {{.kv_heads = 12}, "among 12"},
           {{.kv_heads = -1}, "among -1"}}) {
    Watcher policy;
    const Status status = replay(*trace, policy, options, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_TRUE(policy.calls_.empty());
  }
}

TEST(ReplayTest, CanBeStopped) {
  const Recorded trace(2, 2, 10, test::uniform_weight);
  const auto full = make_policy("full");
  ASSERT_TRUE(full.ok());
  Watcher watcher;
  for (RetentionPolicy* policy : {full->get(), static_cast<RetentionPolicy*>(&watcher)}) {
    std::int64_t last = -1;
    const auto result = replay(*trace, *policy, {}, [&](std::int64_t done, std::int64_t total) {
      EXPECT_GT(done, last);
      EXPECT_LT(done, total);
      last = done;
      return done < total / 2;
    });
    EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
  }
  EXPECT_EQ(watcher.calls_.size(), 5u * 2 * 3);
}

TEST(ReplayTest, TooManyHeads) {
  const Recorded trace(1, 1025, 1, test::uniform_weight);
  Watcher policy;
  EXPECT_EQ(replay(*trace, policy, {}, {}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(check_replay_options(*trace, {}).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(check_replay_options(*Recorded(1, 1024, 1, test::uniform_weight), {}).ok());
}

TEST(ReplayTest, KeepsWhatTheExampleKeeps) {
  KVASIR_SHARED_OR_SKIP(answers, "traces/example.json");
  KVASIR_SHARED_OR_SKIP(path, "traces/example.npy");
  std::ifstream file(answers);
  const auto example = nlohmann::json::parse(file);
  const auto trace = AttentionTrace::open(path);
  ASSERT_TRUE(trace.ok() && trace->check({}).ok());
  int compared = 0;
  for (const auto& [spec, expected] : example.items()) {
    SCOPED_TRACE(spec);
    const auto policy = make_policy(spec);
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const auto result = replay(*trace, **policy, {}, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_EQ(result->layers.size(), expected["layers"].size());
    for (std::size_t i = 0; i < result->layers.size(); ++i) {
      const auto& layer = expected["layers"][i];
      EXPECT_EQ(result->layers[i].tables.at(0).final, layer["final"].get<std::vector<TokenIndex>>());
      EXPECT_DOUBLE_EQ(result->layers[i].figures.kept_mean, layer["kept_mean"].get<double>());
      EXPECT_EQ(result->layers[i].figures.kept_max, layer["kept_max"].get<std::int64_t>());
      EXPECT_NEAR(result->layers[i].figures.recall, layer["recall"].get<double>(), 1e-9);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 5);
}

// This recording has no keys.
class KeyReader final : public TestPolicy, public ReadsKv {
  Capabilities capabilities() const override { return TestPolicy::capabilities().with<ReadsKv>(this); }
  void read_kv(const PolicyChunk&, int, const ChunkKv&) override {}
};

TEST(ReplayTest, PoliciesThatLookAtKeysAreRefused) {
  const Recorded trace(1, 1, 4, test::uniform_weight);
  KeyReader policy;
  EXPECT_EQ(replay(*trace, policy, {}, {}).status().code(), StatusCode::kUnsupported);
}

TEST(ReplayTest, PoliciesThatProjectValuesAreRefused) {
  const Recorded trace(1, 1, 4, test::uniform_weight);
  for (const char* spec : {"h2o:value=wo", "snapkv:value=wo", "expected:norm=wo", "snapkv+h2o:value=wo"}) {
    const auto policy = make_policy(spec);
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const Status refused = replay(*trace, **policy, {}, {}).status();
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported) << spec;
    EXPECT_NE(refused.message().find("output projection"), std::string::npos) << refused.message();
  }
}

}  // namespace
}  // namespace kvasir
