// Compositions `a+b` against their definitions: a prunes at the end of a prompt, b while generating, both see all.
#include "retention/composed.h"

#include <fmt/core.h>

#include "retention/expect_refused.h"
#include "retention/scored.h"
#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::expect_refused;
using test::PassShape;
using test::TableMass;

// A set of tokens, its cumulative masses and the rows of the prompt; `prune_prompt` and `prune_step` are the parts.
struct NaivePair {
  struct State {
    std::vector<TokenIndex> kept;
    std::map<TokenIndex, double> sum;                                       // of all rows
    std::vector<std::pair<TokenIndex, std::map<TokenIndex, double>>> rows;  // of this prompt
    std::map<TokenIndex, double> last;                                      // the current row
    void keep_best(const std::map<TokenIndex, double>& score, std::size_t first, std::size_t last_index,
                   std::size_t best) {
      std::vector<TokenIndex> middle(kept.begin() + static_cast<std::ptrdiff_t>(first),
                                     kept.begin() + static_cast<std::ptrdiff_t>(last_index));
      std::sort(middle.begin(), middle.end(), [&](TokenIndex a, TokenIndex b) {
        return score.at(a) != score.at(b) ? score.at(a) > score.at(b) : a > b;
      });
      middle.resize(std::min(best, middle.size()));
      middle.insert(middle.end(), kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(first));
      middle.insert(middle.end(), kept.begin() + static_cast<std::ptrdiff_t>(last_index), kept.end());
      std::sort(middle.begin(), middle.end());
      kept = middle;
    }
  };
  std::function<void(State&)> prune_prompt;
  std::function<void(State&)> prune_step;
  State state;
  std::vector<TokenIndex> kept;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      state.kept.push_back(id);
      state.last.clear();
      for (const TokenIndex key : state.kept) {
        state.last[key] = mass(id, key);
        state.sum[key] += mass(id, key);
      }
      if (shape.prompt) state.rows.emplace_back(id, state.last);
    }
    if (!shape.prompt) prune_step(state);
    if (shape.prompt && shape.prompt_left == 0) {
      prune_prompt(state);
      state.rows.clear();
    }
    kept = state.kept;
  }
};

// snapkv:budget=B,window=W,kernel=1
std::function<void(NaivePair::State&)> snap(std::size_t budget, std::size_t window) {
  return [=](NaivePair::State& s) {
    if (s.kept.size() <= budget) return;
    std::map<TokenIndex, double> score;
    const std::size_t rows = std::min(window, s.rows.size());
    for (const TokenIndex id : s.kept) {
      double sum = 0;
      for (std::size_t r = s.rows.size() - rows; r < s.rows.size(); ++r) {
        const auto found = s.rows[r].second.find(id);
        sum += found != s.rows[r].second.end() ? found->second : 0;
      }
      score[id] = sum / static_cast<double>(rows);
    }
    s.keep_best(score, 0, s.kept.size() - window, budget - window);
  };
}

std::function<void(NaivePair::State&)> heavy(std::size_t budget, std::size_t recent) {
  return [=](NaivePair::State& s) {
    if (s.kept.size() > budget) s.keep_best(s.sum, 0, s.kept.size() - recent, budget - recent);
  };
}

std::function<void(NaivePair::State&)> current(std::size_t budget) {
  return [=](NaivePair::State& s) {
    if (s.kept.size() > budget) s.keep_best(s.last, 0, s.kept.size(), budget);
  };
}

std::function<void(NaivePair::State&)> first_and_last(std::ptrdiff_t sinks, std::ptrdiff_t window,
                                                      std::ptrdiff_t every) {
  return [=](NaivePair::State& s) {
    const std::ptrdiff_t excess = std::ssize(s.kept) - sinks - window;
    if (excess >= every) s.kept.erase(s.kept.begin() + sinks, s.kept.begin() + sinks + excess);
  };
}

TEST(Composed, KeepsWhatTheDefinitionKeeps) {
  const auto nothing = [](NaivePair::State&) {};
  const std::pair<std::string, NaivePair> cases[] = {
      {"snapkv:budget=24,window=6,kernel=1+h2o:budget=30,recent=9", {snap(24, 6), heavy(30, 9), {}, {}}},
      {"snapkv:budget=40,window=6,kernel=1+h2o:budget=20,recent=3", {snap(40, 6), heavy(20, 3), {}, {}}},
      {"snapkv:budget=24,window=6,kernel=1+tova:budget=28", {snap(24, 6), current(28), {}, {}}},
      {"snapkv:budget=24,window=6,kernel=1+streaming:sinks=3,window=20",
       {snap(24, 6), first_and_last(3, 20, 1), {}, {}}},
      {"snapkv:budget=24,window=6,kernel=1+streaming:sinks=2,window=18,every=7",
       {snap(24, 6), first_and_last(2, 18, 7), {}, {}}},
      {"snapkv:budget=24,window=6,kernel=1+window:size=15", {snap(24, 6), first_and_last(0, 15, 1), {}, {}}},
      {"snapkv:budget=24,window=6,kernel=1+full", {snap(24, 6), nothing, {}, {}}},
      {"h2o:budget=20,recent=5+full", {heavy(20, 5), nothing, {}, {}}},
      {"h2o:budget=20,recent=5+tova:budget=25", {heavy(20, 5), current(25), {}, {}}},
      {"tova:budget=20+h2o:budget=25,recent=5", {current(20), heavy(25, 5), {}, {}}},
      {"h2o:budget=20,recent=5+h2o:budget=30,recent=12", {heavy(20, 5), heavy(30, 12), {}, {}}},
  };
  for (const auto& c : cases)
    for (const auto& schedule : test::schedules())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 2)})
        test::compare_with(c.first, mass, schedule, [&](int) { return c.second; },
                           {.layers = 2, .per_layer = 2, .heads = 4});
}

// lethe's own definition is tested elsewhere; here, that a prompt is its one step and that it starts from what is left.
TEST(Composed, LetheBoundsWhatFollowsSnapKv) {
  const TableLayout layout{.layers = 2, .per_layer = 2, .heads = 2};
  const auto policy =
      test::policy_of_tables("snapkv:budget=40,window=8+lethe:tau=4,start=50,recent=0.2,max=64", layout);
  test::TableDriver driver(*policy, layout, test::skewed_mass(3));
  driver.prompt(300, 64);
  for (int t = 0; t < layout.tables(); ++t) EXPECT_EQ(driver.held(t).size(), 40u);
  std::size_t least = 1000, most = 0;
  for (int i = 0; i < 400; ++i) {
    driver.pass(1);
    for (int t = 0; t < layout.tables(); ++t) {
      least = std::min(least, driver.held(t).size());
      most = std::max(most, driver.held(t).size());
    }
  }
  EXPECT_LT(least, 50u);
  EXPECT_LE(most, 64u);
  EXPECT_GE(most, 50u);
}

TEST(Composed, CakeActsBeforeTheSecond) {
  const TableLayout layout{.layers = 4, .per_layer = 2, .heads = 2};
  const auto policy = test::policy_of_tables("cake:budget=40,window=8+h2o:budget=100,recent=50", layout);
  const auto alone = test::policy_of_tables("cake:budget=40,window=8", layout);
  test::TableDriver driver(*policy, layout, test::random_mass(3));
  test::TableDriver expected(*alone, layout, test::random_mass(3));
  driver.prompt(300, 64);
  expected.prompt(300, 64);
  for (int t = 0; t < layout.tables(); ++t) EXPECT_EQ(driver.held(t), expected.held(t));
  driver.generate(200);
  for (int t = 0; t < layout.tables(); ++t) EXPECT_EQ(driver.held(t).size(), 100u);
}

// Remembers what it is shown, and drops nothing.
class Probe final : public ScoredPolicy {
 public:
  Probe(std::string name, std::optional<MassReduction> reduction, PolicyScope scope, std::vector<double>* seen)
      : ScoredPolicy({.spec = std::move(name), .reduction = reduction, .scope = scope}), seen_(seen) {}
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<Probe>(*this); }

 private:
  void score(ScoreList&, const Step&, std::span<const double> mass) override {
    seen_->assign(mass.begin(), mass.end());
  }
  void prune(ScoreList&, const Step&) override {}

  std::vector<double>* seen_;
};

TEST(Composed, EachPartIsShownTheMassesThatItAsksFor) {
  using enum MassReduction;
  const std::optional<MassReduction> none;
  struct Case {
    std::optional<MassReduction> first, second;
    std::vector<MassReduction> asked;
    int to_first, to_second;  // which of them; -1: none
  };
  for (const Case& c :
       {Case{kMean, kSum, {kMean, kSum}, 0, 1}, Case{kSum, kMean, {kSum, kMean}, 0, 1}, Case{kMax, kMax, {kMax}, 0, 0},
        Case{kSum, kSum, {kSum}, 0, 0}, Case{none, kMedian, {kMedian}, -1, 0}, Case{kMax, none, {kMax}, 0, -1},
        Case{kMax, kSum, {kMax, kSum}, 0, 1}, Case{kMedian, kMax, {kMedian, kMax}, 0, 1},
        Case{none, none, {}, -1, -1}}) {
    std::vector<double> seen_a, seen_b;
    const auto both =
        compose(Probe("a", c.first, PolicyScope::kLayer, &seen_a), Probe("b", c.second, PolicyScope::kHead, &seen_b));
    ASSERT_TRUE(both.ok()) << both.status().message();
    EXPECT_EQ(reductions_of(**both), c.asked);
    EXPECT_EQ((*both)->traits().scope, PolicyScope::kHead);
    EXPECT_EQ((*both)->traits().spec, "a+b");
    (*both)->begin({.layers = 1, .per_layer = 1, .heads = 4});
    const std::vector<double> first = {0.5, 0.25, 1.0}, second = {2.0, 1.0, 3.0};
    const std::vector<std::span<const double>> masses = {first, second};
    const PolicyChunk chunk{.first = 0, .rows = 3};
    EXPECT_EQ(wants_row(**both, chunk, 2), !c.asked.empty());
    if (!c.asked.empty()) (*both)->as<ObservesMasses>()->observe(chunk, 0, 2, std::span(masses).first(c.asked.size()));
    const auto shown = [&](int which) { return which < 0 ? std::vector<double>{} : which == 0 ? first : second; };
    EXPECT_EQ(seen_a, shown(c.to_first));
    EXPECT_EQ(seen_b, shown(c.to_second));
  }
}

// A row that only one part looks at is reduced for that part alone.
TEST(Composed, AReductionIsWantedWhereAPartWantsIt) {
  const auto policy = test::policy_of_tables("snapkv:budget=20,window=4+lethe");
  EXPECT_EQ(reductions_of(*policy), (std::vector{MassReduction::kMean, MassReduction::kSum}));
  const PolicyChunk chunk{.first = 0, .rows = 10, .prompt = true, .prompt_left = 0};
  for (int row = 0; row < 10; ++row) {
    EXPECT_EQ(policy->as<ObservesMasses>()->wants(chunk, row, 0), row >= 6);
    EXPECT_TRUE(policy->as<ObservesMasses>()->wants(chunk, row, 1));
  }
  // tova looks at the current row alone, and does not act in a prompt.
  const auto by_row = test::policy_of_tables("snapkv:budget=20,window=4+tova:budget=30");
  EXPECT_EQ(reductions_of(*by_row), std::vector{MassReduction::kMean});
  for (int row = 0; row < 10; ++row) EXPECT_EQ(wants_row(*by_row, chunk, row), row >= 6);
  EXPECT_TRUE(wants_row(*by_row, {.first = 10, .rows = 1}, 0));
}

TEST(Composed, ScopeAndPositionsAreThoseOfBoth) {
  const auto scope = [](const std::string& spec) { return test::policy_of_tables(spec)->traits().scope; };
  EXPECT_EQ(scope("snapkv+lethe"), PolicyScope::kHead);
  EXPECT_EQ(scope("h2o+lethe"), PolicyScope::kLayer);
  EXPECT_EQ(scope("h2o+lethe:heads=independent"), PolicyScope::kHead);
  EXPECT_EQ(scope("h2o+streaming"), PolicyScope::kLayer);
  const auto positions = [](const std::string& spec) { return test::policy_of_tables(spec)->traits().positions; };
  EXPECT_EQ(positions("snapkv+lethe"), PositionMode::kAuto);
  EXPECT_EQ(positions("snapkv+full"), PositionMode::kAuto);
  EXPECT_EQ(positions("snapkv:pos=original+lethe"), PositionMode::kOriginal);
  EXPECT_EQ(positions("snapkv:pos=original+full"), PositionMode::kOriginal);
  EXPECT_EQ(positions("snapkv+lethe:pos=compact"), PositionMode::kCompact);
  EXPECT_EQ(positions("snapkv+streaming"), PositionMode::kCompact);
  EXPECT_EQ(positions("snapkv:pos=compact+window"), PositionMode::kCompact);
  EXPECT_EQ(test::policy_of_tables("snapkv+h2o")->bound(), std::nullopt);
  EXPECT_EQ(test::policy_of_tables("snapkv+h2o")->traits().chunk, 256);
}

TEST(Composed, SpecsAreCanonicalAndMakeEqualPolicies) {
  const std::pair<std::string, std::string> specs[] = {
      {"snapkv+lethe", "snapkv:budget=1024,window=16,kernel=15+lethe:tau=400,start=512"},
      {"snapkv:budget=0040+streaming:cap=100", "snapkv:budget=40,window=16,kernel=15+streaming:sinks=4,window=96"},
      {"lethe:tau=1e+20+h2o", "lethe:tau=1e+20,start=512+h2o:budget=1024,recent=512"},
      {"cake+random:seed=3,budget=30%", "cake:budget=1024,window=16,kernel=15+random:budget=30%,seed=3"},
  };
  for (const auto& [given, canonical] : specs) {
    const auto policy = test::policy_of_tables(given);
    ASSERT_NE(policy, nullptr);
    EXPECT_EQ(policy->traits().spec, canonical);
    EXPECT_EQ(test::policy_of_tables(canonical)->traits().spec, canonical);
  }
}

TEST(Composed, WhatDoesNotGoTogetherIsRefused) {
  expect_refused("snapkv+h2o+lethe", {"at most two"});
  for (const char* spec : {"streaming+h2o", "window+full", "full+lethe"}) EXPECT_TRUE(make_policy(spec).ok()) << spec;
  expect_refused("h2o+snapkv", {"snapkv", "second", "before the +"});
  expect_refused("snapkv+cake", {"cake", "second"});
  expect_refused("cascade+h2o", {"cascade", "alone"});
  expect_refused("snapkv+cascade", {"cascade", "alone"});
  expect_refused("snapkv+recompute", {"recompute", "eval"});
  expect_refused("recompute+h2o", {"recompute", "eval"});
  expect_refused("snapkv+streaming:realign=rotate", {"realign=rotate"});
  expect_refused("snapkv:pos=original+streaming", {"positions", "give 'snapkv:", ",pos=original' pos=auto"});
  expect_refused("snapkv:pos=original+lethe:pos=compact", {"positions", "give one of them pos=auto"});
  expect_refused("snapkv+nothing", {"nothing", "lethe", "streaming"});
  expect_refused("snapkv:kernel=4+lethe", {"kernel=4", "odd"});
  expect_refused("snapkv+lethe:tau=0", {"tau=0", "above 1"});
  expect_refused("+lethe", {"missing in front of the '+'", "lethe"});
  for (const char* spec : {"snapkv+", "snapkv:budget=40+", "snapkv++lethe"})
    expect_refused(spec, {"missing behind the '+'", spec});
  for (const char* spec : {"", ":", ":size=4"}) expect_refused(spec, {"name of a policy is missing; the policies are"});
  expect_refused("streaming:cap=64@foo=1", {"'@foo=1' is unknown", "'@demote='"});
  expect_refused("window:size=+3", {"size=+3", "whole number"});
}

// Asks for the sums of even rows' queries, or gives every token its bias; drops nothing.
class Companion final : public ScoredPolicy, public SumsQueries, public WeighsSlots {
 public:
  Companion(std::string name, bool sums, float bias, std::int64_t* rows_shown = nullptr)
      : ScoredPolicy(Traits{.spec = std::move(name)}), sums_(sums), bias_(bias), rows_shown_(rows_shown) {}
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<Companion>(*this); }
  bool wants_queries(const PolicyChunk&, int row) const override { return row % 2 == 0; }
  void read_queries(const PolicyChunk&, int, const QuerySums& queries) override { *rows_shown_ += queries.rows; }
  bool biases(int, int lane, std::span<float> biases) const override {
    std::ranges::fill(biases, bias_ + static_cast<float>(lane));
    return true;
  }

 private:
  Capabilities capabilities() const override {
    return ScoredPolicy::capabilities()
        .with<SumsQueries>(sums_ ? this : nullptr)
        .with<WeighsSlots>(bias_ != 0 ? this : nullptr);
  }
  void prune(ScoreList&, const Step&) override {}

  bool sums_;
  float bias_;
  std::int64_t* rows_shown_;
};

TEST(Composed, APartMaySumQueriesAndOneMayWeighSlots) {
  std::int64_t rows_shown = 0;
  const Companion summing("a", true, 0, &rows_shown), weighing("b", false, 0.5F), all("c", true, 0.5F, &rows_shown);
  const auto full = std::move(*make_policy("full"));
  const std::pair<const RetentionPolicy*, const RetentionPolicy*> pairs[] = {
      {&summing, &weighing}, {&weighing, &summing}, {&all, full.get()}, {full.get(), &all}};
  for (const auto& [first, second] : pairs) {
    auto original = compose(*first, *second);
    ASSERT_TRUE(original.ok()) << original.status().message();
    const std::unique_ptr<RetentionPolicy> both = (*original)->clone();
    original->reset();  // a clone's capabilities are its own
    both->begin({.layers = 1, .per_layer = 1, .heads = 2, .lanes = 2});
    const PolicyChunk chunk{.first = 0, .rows = 3};
    SumsQueries* queries = both->as<SumsQueries>();
    ASSERT_NE(queries, nullptr);
    for (int row = 0; row < 3; ++row) EXPECT_EQ(queries->wants_queries(chunk, row), row != 1);
    rows_shown = 0;
    queries->read_queries(chunk, 0, {.rows = 2});
    EXPECT_EQ(rows_shown, 2);
    const WeighsSlots* weights = both->as<WeighsSlots>();
    ASSERT_NE(weights, nullptr);
    std::vector<float> biases(3);
    EXPECT_TRUE(weights->biases(0, 1, biases));
    EXPECT_EQ(biases, std::vector(3, 1.5F));
    EXPECT_TRUE(both->by_token());
  }
  const auto neither = compose(*full, *full);
  EXPECT_TRUE((*neither)->as<SumsQueries>() == nullptr && (*neither)->as<WeighsSlots>() == nullptr);
  EXPECT_EQ(compose(summing, all).status().message(),
            "policies 'a' and 'c' both look at sums of queries; only one part of a composition can");
  EXPECT_EQ(compose(weighing, all).status().message(),
            "policies 'b' and 'c' both give tokens a bias; only one part of a composition can");
}

TEST(Composed, BehavesAsEveryScoredPolicy) {
  for (const char* spec :
       {"snapkv:budget=20,window=6+lethe:tau=4,start=30", "cake:budget=20,window=6+h2o:budget=25,recent=5",
        "h2o:budget=16,recent=8+tova:budget=20", "snapkv:budget=20,window=6+streaming:sinks=2,window=20",
        "random:budget=20+random:budget=25"})
    test::check_scored_policy(spec);
}

TEST(Composed, EvaluationOnlyIsToldByName) {
  EXPECT_TRUE(PolicySpec::parse("recompute")->evaluation_only());
  EXPECT_TRUE(PolicySpec::parse("recompute:size=4")->evaluation_only());
  for (const char* spec : {"full", "snapkv+lethe", "recompute+h2o", "recompute@demote=q4"})
    EXPECT_FALSE(PolicySpec::parse(spec)->evaluation_only()) << spec;
}

}  // namespace
}  // namespace kvasir
