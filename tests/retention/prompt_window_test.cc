// `snapkv`, `pyramidkv` and `cake` against their definitions, computed from the whole rows of each prompt.
#include "retention/prompt_window.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct WindowCase {
  std::int64_t budget = 20;
  int percent = 0;
  std::int64_t window = 6;
  std::int64_t kernel = 3;
  bool max_pool = false;
  double beta = 0;  // 0: snapkv

  std::string spec() const {
    std::string text = fmt::format("{}:budget={},window={},kernel={},pool={}", beta > 0 ? "pyramidkv" : "snapkv",
                                   percent > 0 ? fmt::format("{}%", percent) : fmt::format("{}", budget), window,
                                   kernel, max_pool ? "max" : "avg");
    return beta > 0 ? text + fmt::format(",beta={}", beta) : text;
  }
};

// The rows of one prompt, block of a prompt, or run of generated tokens, and what was held.
struct PromptRows {
  bool blocks = false;
  std::int64_t every = 0;
  std::vector<TokenIndex> kept;
  std::vector<TokenIndex> queries;  // so far
  TokenIndex prompt_end = 0;
  TokenIndex answer_begin = 0;
  bool in_prompt = true;
  std::map<TokenIndex, std::map<TokenIndex, double>> rows;

  // True when a prompt, a block or a run ends.
  bool pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    const TokenIndex end = first + shape.rows + shape.prompt_left;
    if (shape.prompt && end != prompt_end) end_prompt();  // the one before was given up
    if (!shape.prompt && in_prompt) end_prompt();
    prompt_end = end;
    in_prompt = shape.prompt;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      if (!shape.prompt && every == 0) continue;
      queries.push_back(id);
      for (const TokenIndex key : kept) rows[id][key] = mass(id, key);
    }
    if (!shape.prompt) return every > 0 && (first + 1 - answer_begin) % every == 0;
    answer_begin = first + shape.rows;
    return blocks || shape.prompt_left == 0;
  }
  std::vector<TokenIndex> observed(std::int64_t window) const {
    return {queries.end() - std::min(std::ssize(queries), window), queries.end()};
  }
  // Keeps the `best` highest scores of the first scores.size() tokens, and the rest.
  void keep_best(const std::vector<double>& scores, std::int64_t best) {
    std::vector<std::size_t> order(scores.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; });
    order.resize(static_cast<std::size_t>(std::min(best, std::ssize(order))));
    std::sort(order.begin(), order.end());
    std::vector<TokenIndex> left;
    for (const std::size_t i : order) left.push_back(kept[i]);
    left.insert(left.end(), kept.begin() + std::ssize(scores), kept.end());
    kept = left;
  }
  void end_prompt() {
    queries.clear();
    rows.clear();
  }
};

std::vector<double> pooled_by_definition(const std::vector<double>& scores, std::int64_t kernel, bool max_pool) {
  std::vector<double> padded(static_cast<std::size_t>(kernel / 2), 0.0);
  padded.insert(padded.end(), scores.begin(), scores.end());
  padded.resize(padded.size() + static_cast<std::size_t>(kernel / 2), 0.0);
  std::vector<double> out;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double sum = 0, most = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(kernel); ++k) {
      sum += padded[i + k];
      most = std::max(most, padded[i + k]);
    }
    out.push_back(max_pool ? most : sum / static_cast<double>(kernel));
  }
  return out;
}

// The ranked tokens of a layer, in fractions of 2 * hundredths of beta * (layers - 1).
std::int64_t pyramid_by_definition(std::int64_t b, std::int64_t earlier, double beta, int layer, int layers) {
  const auto hundredths = static_cast<std::int64_t>(std::lround(beta * 100));
  std::int64_t min = 100 * b, max = 2 * b * hundredths - min;  // times `hundredths`
  if (max >= earlier * hundredths) {
    max = earlier * hundredths;
    min = 2 * b * hundredths - max;
  }
  if (max < min || min < 0) return b;
  const std::int64_t unit = hundredths * (layers - 1);
  return (2 * (max * (layers - 1) - layer * (max - min)) + unit) / (2 * unit);
}

struct NaiveWindow {
  WindowCase c;
  int layer = 0;
  int layers = 1;
  PromptRows state;
  std::vector<TokenIndex> kept;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    if (state.pass(first, shape, mass)) {
      prune(first + shape.rows);
      state.end_prompt();
    }
    kept = state.kept;
  }

  void prune(std::int64_t seen) {
    const std::int64_t n = std::ssize(state.kept);
    const std::int64_t budget = c.percent > 0 ? (c.percent * seen + 99) / 100 : c.budget;
    const std::int64_t mean = std::max<std::int64_t>(budget - c.window, 0);
    if (n <= budget || n <= c.window) return;
    const auto queries = state.observed(c.window);
    std::vector<double> scores;
    for (std::int64_t i = 0; i < n - c.window; ++i) {
      double sum = 0;
      for (const TokenIndex query : queries) {
        const auto& row = state.rows[query];
        const auto found = row.find(state.kept[static_cast<std::size_t>(i)]);
        sum += found != row.end() ? found->second : 0;
      }
      scores.push_back(sum / static_cast<double>(queries.size()));
    }
    state.keep_best(pooled_by_definition(scores, c.kernel, c.max_pool), ranked(n, mean));
  }

  std::int64_t ranked(std::int64_t n, std::int64_t mean) const {
    if (c.beta == 0 || layers == 1) return mean;
    return pyramid_by_definition(mean, n - c.window, c.beta, layer, layers);
  }
};

const std::vector<std::vector<PassShape>>& prompts() {
  static const std::vector<std::vector<PassShape>> all = {
      test::conversation({90, 20}, 16),
      test::conversation({90, 20}, 1),
      test::conversation({90, 20}, 256),
      test::conversation({60, 5, 40, 9, 30}, 7),
      test::conversation({50, 30, 2, 8, 1}, 4),
      test::conversation({12, 9, 12, 3, 12, 0, 12}, 5),
      test::conversation({20, 3, 21}, 64),
      test::given_up(1),
      test::given_up(3),
      test::given_up(19),
  };
  return all;
}

TEST(SnapKv, KeepsWhatTheDefinitionKeeps) {
  const WindowCase cases[] = {
      {},
      {.kernel = 1},
      {.kernel = 7, .max_pool = true},
      {.budget = 6, .window = 6},
      {.budget = 40, .window = 32, .kernel = 5},
      {.budget = 9, .window = 1, .kernel = 9},
      {.percent = 30, .window = 4},
      {.percent = 5, .window = 12},
  };
  for (const WindowCase& c : cases)
    for (const auto& schedule : prompts())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 2)})
        test::compare_with(c.spec(), mass, schedule, [&](int) { return NaiveWindow{.c = c}; },
                           {.layers = 2, .per_layer = 2, .heads = 3});
}

TEST(PyramidKv, KeepsWhatTheDefinitionKeeps) {
  const WindowCase cases[] = {
      {.beta = 20},
      {.budget = 30, .window = 8, .kernel = 5, .max_pool = true, .beta = 3.5},
      {.budget = 30, .window = 8, .beta = 1},
      {.budget = 30, .window = 8, .beta = 0.3},  // upside down: as snapkv
      {.budget = 50, .window = 6, .beta = 7},    // the first layer would keep more than there is
      {.percent = 40, .window = 4, .beta = 10},
  };
  for (const WindowCase& c : cases)
    for (const int layers : {1, 2, 5})
      for (const auto& schedule : prompts())
        for (const auto& mass : {test::random_mass(1), test::random_mass(3, 2)})
          test::compare_with(c.spec(), mass, schedule,
                             [&](int table) { return NaiveWindow{.c = c, .layer = table / 2, .layers = layers}; },
                             {.layers = layers, .per_layer = 2, .heads = 3});
}

TEST(PyramidKv, LayersShareTheBudgetLinearly) {
  const TableLayout layout{.layers = 5, .per_layer = 2};
  const auto policy = test::policy_of_tables("pyramidkv:budget=110,window=10,beta=20", layout);
  test::TableDriver driver(*policy, layout, test::random_mass(5));
  driver.prompt(1000, 256);
  // b = 100: 195 … 5 in steps of 47.5, and the window; halves are rounded up.
  const std::size_t expected[] = {205, 158, 110, 63, 15};
  for (int t = 0; t < 10; ++t) EXPECT_EQ(driver.held(t).size(), expected[t / 2]);
}

// Halves that binary fractions miss: 12.5 in the last of 8 layers, 178.5 in layer 7 of 10.
TEST(PyramidKv, HalvesAreRoundedUpWhateverTheLayers) {
  struct Case {
    int budget, window, layers;
    double beta;
  };
  for (const Case& c : {Case{157, 32, 8, 10}, Case{410, 32, 10, 20}, Case{500, 32, 22, 20}, Case{333, 32, 28, 20},
                        Case{96, 4, 80, 3.25}}) {
    const TableLayout layout{.layers = c.layers, .per_layer = 1};
    const auto policy = test::policy_of_tables(
        fmt::format("pyramidkv:budget={},window={},beta={}", c.budget, c.window, c.beta), layout);
    test::TableDriver driver(*policy, layout, test::random_mass(5));
    driver.prompt(1500, 256);
    for (int t = 0; t < c.layers; ++t)
      EXPECT_EQ(std::ssize(driver.held(t)),
                c.window + pyramid_by_definition(c.budget - c.window, 1500 - c.window, c.beta, t, c.layers))
          << c.layers << " layers, layer " << t;
  }
}

struct CakeCase {
  std::int64_t budget = 20;
  std::int64_t window = 6;
  std::int64_t kernel = 3;
  double gamma = 200;
  double tau1 = 1.6;
  double tau2 = 0.4;
  bool blocks = false;
  std::int64_t every = 0;
  double most = 0;

  std::string spec() const {
    return fmt::format("cake:budget={},window={},kernel={},gamma={},tau1={},tau2={},prompt={},every={},most={}", budget,
                       window, kernel, gamma, tau1, tau2, blocks ? "blocks" : "whole", every, most);
  }
};

// All tables at once: the layers share one budget.
struct NaiveCake {
  CakeCase c;
  TableLayout layout;
  std::vector<PromptRows> tables;

  void pass(TokenIndex first, const PassShape& shape, const test::MassSource& mass) {
    PromptRows empty;
    empty.blocks = c.blocks;
    empty.every = c.every;
    tables.resize(static_cast<std::size_t>(layout.tables()), empty);
    bool ends = false;
    for (int t = 0; t < layout.tables(); ++t)
      ends = tables[static_cast<std::size_t>(t)].pass(
          first, shape, [&](TokenIndex query, TokenIndex key) { return mass(t, query, key); });
    if (!ends) return;
    prune();
    for (PromptRows& table : tables) table.end_prompt();
  }

  std::vector<double> column(PromptRows& table, std::int64_t i) const {
    std::vector<double> values;
    for (const TokenIndex query : table.observed(c.window))
      values.push_back(table.rows[query][table.kept[static_cast<std::size_t>(i)]]);
    return values;
  }
  static double mean(const std::vector<double>& x) {
    double sum = 0;
    for (const double value : x) sum += value;
    return sum / static_cast<double>(x.size());
  }
  static double variance(const std::vector<double>& x) {
    if (x.size() < 2) return 0;
    double sum = 0;
    for (const double value : x) sum += (value - mean(x)) * (value - mean(x));
    return sum / static_cast<double>(x.size() - 1);
  }

  void prune() {
    const auto layers = static_cast<std::size_t>(layout.layers), per_layer = static_cast<std::size_t>(layout.per_layer);
    std::vector<double> preference(layers);
    std::vector<std::int64_t> room(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      double entropy = 0, shift = 0;
      for (std::size_t t = layer * per_layer; t < (layer + 1) * per_layer; ++t) {
        const std::int64_t earlier = std::max<std::int64_t>(std::ssize(tables[t].kept) - c.window, 0);
        for (std::int64_t i = 0; i < earlier; ++i) {
          const auto values = column(tables[t], i);
          for (const double value : values) entropy -= value > 0 ? value * std::log(value) : 0;
          shift += variance(values);
        }
        room[layer] = earlier;
        if (c.most > 0)
          room[layer] =
              std::min(earlier, static_cast<std::int64_t>(c.most * static_cast<double>(c.budget - c.window)));
      }
      preference[layer] = std::pow(entropy, 1 / c.tau1) * std::pow(shift, 1 / c.tau2);
    }
    const auto shares = divide(preference, room);
    for (std::size_t t = 0; t < tables.size(); ++t) {
      const std::int64_t earlier = std::ssize(tables[t].kept) - c.window;
      if (earlier <= shares[t / per_layer]) continue;
      std::vector<double> scores;
      for (std::int64_t i = 0; i < earlier; ++i) {
        const auto values = column(tables[t], i);
        scores.push_back(mean(values) + c.gamma * variance(values));
      }
      tables[t].keep_best(pooled_by_definition(scores, c.kernel, false), shares[t / per_layer]);
    }
  }

  // What the rounding and the full layers leave is dealt in rounds, one token at a time, to the layers that had room when
  // the round began. Those that are full by then put theirs aside for the next round.
  std::vector<std::int64_t> divide(const std::vector<double>& preference, const std::vector<std::int64_t>& room) const {
    const std::int64_t total = static_cast<std::int64_t>(room.size()) * (c.budget - c.window);
    double sum = 0;
    for (const double p : preference) sum += p;
    std::vector<std::int64_t> shares;
    std::int64_t left = total;
    for (std::size_t l = 0; l < room.size(); ++l) {
      const double share = sum > 0 ? preference[l] / sum * static_cast<double>(total) : 0;
      shares.push_back(std::min(static_cast<std::int64_t>(share), room[l]));
      left -= shares[l];
    }
    while (left > 0) {
      std::vector<std::size_t> open;
      for (std::size_t l = 0; l < room.size(); ++l)
        if (shares[l] < room[l]) open.push_back(l);
      if (open.empty()) break;
      std::int64_t aside = 0;
      for (std::int64_t token = 0; token < left; ++token) {
        const std::size_t l = open[static_cast<std::size_t>(token) % open.size()];
        if (shares[l] < room[l])
          ++shares[l];
        else
          ++aside;
      }
      left = aside;
    }
    return shares;
  }
};

// Attention as layers differ: the deeper, the more it jumps between tokens and queries.
test::MassSource layered_mass(int per_layer) {
  return [=](int table, TokenIndex query, TokenIndex key) {
    const auto t = static_cast<std::uint64_t>(table), q = static_cast<std::uint64_t>(query),
               k = static_cast<std::uint64_t>(key);
    const double steady = test::hashed(1, t, 0, k), moving = test::hashed(2, t, q, k);
    const double depth = 0.1 * (1 + table / per_layer);
    return 0.02 * (steady * (1 - depth) + moving * moving * depth);
  };
}

TEST(Cake, KeepsWhatTheDefinitionKeeps) {
  const CakeCase cases[] = {
      {},
      {.kernel = 1, .gamma = 0},
      {.budget = 12, .window = 4, .tau1 = 1, .tau2 = 1},
      {.budget = 40, .window = 8, .tau2 = 0.2},
      {.budget = 6, .window = 6},
      {.most = 1.25},
      {.every = 5},
      {.window = 4, .every = 9, .most = 2},
      {.blocks = true, .most = 1},
      {.kernel = 1, .blocks = true, .every = 4, .most = 1.5},
  };
  bool layers_differ = false;
  for (const CakeCase& c : cases)
    for (const auto& schedule : prompts()) {
      const TableLayout layout{.layers = 4, .per_layer = 2, .heads = 2};
      SCOPED_TRACE(c.spec());
      const auto mass = layered_mass(layout.per_layer);
      const auto policy = test::policy_of_tables(c.spec(), layout);
      ASSERT_EQ(policy->bound().has_value(), c.blocks && c.every > 0);
      test::TableDriver driver(*policy, layout, mass);
      NaiveCake naive{.c = c, .layout = layout, .tables = {}};
      TokenIndex first = 0;
      for (const PassShape& shape : schedule) {
        driver.pass(shape.rows, shape.prompt, shape.prompt_left);
        naive.pass(first, shape, mass);
        first += shape.rows;
        for (int t = 0; t < layout.tables(); ++t) {
          ASSERT_EQ(driver.held(t), naive.tables[static_cast<std::size_t>(t)].kept)
              << "token " << first << " table " << t;
          if (policy->bound()) {
            ASSERT_LT(std::ssize(driver.held(t)), *policy->bound());
          }
        }
        layers_differ = layers_differ || driver.held(0).size() != driver.held(7).size();
      }
    }
  EXPECT_TRUE(layers_differ);
}

TEST(Cake, LayersTogetherKeepTheBudgetAndTheRestlessOnesMore) {
  const TableLayout layout{.layers = 4, .per_layer = 2, .heads = 2};
  const auto policy = test::policy_of_tables("cake:budget=100,window=10", layout);
  test::TableDriver driver(*policy, layout, layered_mass(2));
  driver.prompt(600, 256);
  std::size_t all = 0;
  for (int t = 0; t < layout.tables(); ++t) all += driver.held(t).size();
  EXPECT_EQ(all, 8u * 100u);
  EXPECT_LT(driver.held(0).size(), driver.held(7).size());
}

TEST(Cake, WithoutAnythingToTellThemApartLayersShareEqually) {
  const TableLayout layout{.layers = 3, .per_layer = 1};
  for (const double value : {0.0, 0.001, std::numeric_limits<double>::quiet_NaN()}) {
    const auto policy = test::policy_of_tables("cake:budget=41,window=10", layout);
    test::TableDriver driver(*policy, layout, [&](int, TokenIndex, TokenIndex) { return value; });
    driver.prompt(300, 64);
    for (int t = 0; t < 3; ++t) EXPECT_EQ(driver.held(t).size(), 41u) << value;
  }
}

TEST(PromptWindow, APromptWithinItsBudgetIsKeptWholeAndWhatIsGeneratedToo) {
  const TableLayout layout{.layers = 4, .per_layer = 2, .heads = 2};
  for (const std::string name : {"snapkv", "pyramidkv", "cake"})
    for (const int prompt : {1, 5, 10, 39, 40, 41}) {
      const auto policy = test::policy_of_tables(name + ":budget=40,window=10", layout);
      test::TableDriver driver(*policy, layout, layered_mass(2));
      driver.prompt(prompt, 16);
      std::size_t held = 0;
      for (int t = 0; t < layout.tables(); ++t) held += driver.held(t).size();
      if (prompt <= 40) {
        EXPECT_EQ(held, 8u * static_cast<std::size_t>(prompt)) << name;
      } else if (name != "pyramidkv") {
        EXPECT_EQ(held, 8u * 40u) << name;
      } else {
        EXPECT_LT(held, 8u * 41u) << name;
      }
      driver.generate(100);
      std::size_t later = 0;
      for (int t = 0; t < layout.tables(); ++t) later += driver.held(t).size();
      EXPECT_EQ(later, held + 8u * 100u) << name;
    }
}

// The rows are the same whatever the chunk: the plan is too.
TEST(PromptWindow, TheChunkChangesNothing) {
  const TableLayout layout{.layers = 3, .per_layer = 2, .heads = 2};
  for (const std::string spec :
       {"snapkv:budget=40,window=10", "pyramidkv:budget=40,window=10", "cake:budget=40,window=10"}) {
    std::vector<std::vector<TokenIndex>> first;
    for (const int chunk : {1, 3, 10, 32, 256}) {
      const auto policy = test::policy_of_tables(spec, layout);
      test::TableDriver driver(*policy, layout, layered_mass(2));
      driver.prompt(200, chunk);
      driver.generate(7);
      driver.prompt(50, chunk);
      std::vector<std::vector<TokenIndex>> held;
      for (int t = 0; t < layout.tables(); ++t) held.push_back(driver.held(t));
      if (first.empty()) first = held;
      EXPECT_EQ(held, first) << spec << " chunk " << chunk;
    }
  }
}

TEST(PromptWindow, OtherRowsNeedNotBeShown) {
  const TableLayout layout{.layers = 3, .per_layer = 2, .heads = 2};
  for (const std::string spec :
       {"snapkv:budget=40,window=10", "cake:budget=40,window=10", "snapkv:budget=40,window=10+streaming:cap=60",
        "snapkv:budget=40,window=10+lethe:start=60"}) {
    const auto wanted = test::policy_of_tables(spec, layout), all = test::policy_of_tables(spec, layout);
    test::TableDriver shown(*wanted, layout, layered_mass(2)), everything(*all, layout, layered_mass(2));
    everything.show_all_rows();
    for (test::TableDriver* driver : {&shown, &everything}) {
      driver->prompt(200, 16);
      driver->generate(30);
      driver->prompt(5, 16);
    }
    for (int t = 0; t < layout.tables(); ++t) EXPECT_EQ(shown.held(t), everything.held(t)) << spec;
    EXPECT_EQ(everything.rows_shown(), 235 * 6);
    EXPECT_EQ(shown.rows_shown(), spec.ends_with("lethe:start=60") ? 235 * 6 : 15 * 6) << spec;
  }
}

TEST(PromptWindow, BehavesAsEveryScoredPolicy) {
  for (const char* spec : {"snapkv:budget=20,window=6", "pyramidkv:budget=20,window=6", "cake:budget=20,window=6",
                           "cake:budget=30%,window=4", "cake:budget=20,window=6,prompt=blocks,every=5,most=2"})
    test::check_scored_policy(spec);
}

TEST(PromptWindow, IsDescribedByItsSpec) {
  for (const std::string name : {"snapkv", "pyramidkv", "cake"}) {
    const auto policy = test::policy_of_tables(name);
    EXPECT_EQ(policy->traits().spec, name + ":budget=1024,window=16,kernel=15");
    EXPECT_EQ(reductions_of(*policy), std::vector{MassReduction::kMean});
    EXPECT_EQ(policy->traits().scope, PolicyScope::kHead);
    EXPECT_EQ(policy->bound(), std::nullopt);
    EXPECT_EQ(policy->traits().positions, PositionMode::kAuto);
  }
}

}  // namespace
}  // namespace kvasir
