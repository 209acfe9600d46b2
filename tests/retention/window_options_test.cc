// `rkv`, and options of `snapkv`: blocks of a prompt, prunes while writing, the maximum of a window, chunks of tokens;
// against their definitions, computed from whole rows.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "retention/expect_refused.h"
#include "retention/layer_choice.h"
#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct SnapOptions {
  std::int64_t budget = 24;
  std::int64_t window = 6;
  std::int64_t kernel = 3;
  bool blocks = false;
  std::int64_t every = 0;
  bool maximum = false;
  std::int64_t chunk = 0;
  bool projected = false;
  std::int64_t protect = 0;

  std::string spec() const {
    return fmt::format("snapkv:budget={},window={},kernel={},prompt={},every={},agg={},chunk={},value={},protect={}",
                       budget, window, kernel, blocks ? "blocks" : "whole", every, maximum ? "max" : "mean", chunk,
                       projected ? "wo" : "off", protect);
  }
};

// Holds a table of its own, with all rows since the last window ended.
struct SnapByRows {
  SnapOptions c;
  int table = 0;
  std::vector<TokenIndex> kept;
  std::vector<TokenIndex> queries;
  std::map<TokenIndex, std::map<TokenIndex, double>> rows;
  TokenIndex prompt_end = 0, answer_begin = 0;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    const TokenIndex end = first + shape.rows + shape.prompt_left;
    if (shape.prompt && end != prompt_end) queries.clear();  // the prompt before was given up
    if (shape.prompt) prompt_end = end;
    for (TokenIndex token = first; token < first + shape.rows; ++token) {
      kept.push_back(token);
      queries.push_back(token);
      for (const TokenIndex key : kept) rows[token][key] = mass(token, key);
    }
    if (shape.prompt) {
      if (c.blocks || shape.prompt_left == 0) end_window();
      answer_begin = first + shape.rows;
    } else if (c.every > 0 && (first + 1 - answer_begin) % c.every == 0) {
      end_window();
    }
  }

  virtual ~SnapByRows() = default;

  virtual void end_window() {
    queries.erase(queries.begin(), queries.end() - std::min(std::ssize(queries), c.window));
    const std::int64_t earlier = std::ssize(kept) - c.window, ranked = c.budget - c.window;
    if (earlier > ranked) {
      std::vector<double> scores(static_cast<std::size_t>(earlier));
      for (std::size_t i = 0; i < scores.size(); ++i)
        for (const TokenIndex query : queries) {
          const double given = rows[query].contains(kept[i]) ? rows[query][kept[i]] : 0;
          scores[i] = c.maximum ? std::max(scores[i], given) : scores[i] + given / static_cast<double>(queries.size());
        }
      keep(pooled(scores), ranked);
    }
    queries.clear();
    rows.clear();
  }

  std::vector<double> pooled(const std::vector<double>& scores) const {
    std::vector<double> out(scores.size());
    for (std::int64_t i = 0; i < std::ssize(scores); ++i)
      for (std::int64_t k = i - c.kernel / 2; k <= i + c.kernel / 2; ++k)
        if (k >= 0 && k < std::ssize(scores))
          out[static_cast<std::size_t>(i)] += scores[static_cast<std::size_t>(k)] / static_cast<double>(c.kernel);
    return out;
  }

  void keep(const std::vector<double>& scores, std::int64_t count) {
    std::vector<std::size_t> order;
    if (c.chunk == 0) {
      order = sorted(scores, static_cast<std::size_t>(c.protect), scores.size());
      for (std::int64_t i = c.protect; i-- > 0;) order.insert(order.begin(), static_cast<std::size_t>(i));
    } else {  // chunk by chunk, the best first, each from its best token on
      const auto size = static_cast<std::size_t>(c.chunk);
      std::vector<double> means;
      for (std::size_t first = 0; first < scores.size(); first += size) {
        const std::size_t last = std::min(first + size, scores.size());
        double sum = 0;
        for (std::size_t i = first; i < last; ++i) sum += scores[i];
        means.push_back(sum / static_cast<double>(last - first));
      }
      for (const std::size_t chunk : sorted(means, 0, means.size()))
        for (const std::size_t i : sorted(scores, chunk * size, std::min((chunk + 1) * size, scores.size())))
          order.push_back(i);
    }
    if (c.projected) {  // the first half of the budget goes by score, the second by score and what the value becomes
      std::vector<double> weights;
      for (std::size_t i = 0; i < scores.size(); ++i)
        weights.push_back((scores[i] + 1e-4) * test::projected_norm(table, kept[i]));
      const auto certain = static_cast<std::size_t>(std::max<std::int64_t>(c.budget / 2 - c.window, 0));
      for (std::size_t i = 0; i < certain; ++i) weights[order[i]] = INFINITY;
      for (std::int64_t i = 0; i < c.protect; ++i) weights[static_cast<std::size_t>(i)] = INFINITY;
      order = sorted(weights, 0, weights.size());
    }
    order.resize(static_cast<std::size_t>(count));
    std::ranges::sort(order);
    std::vector<TokenIndex> left;
    for (const std::size_t i : order) left.push_back(kept[i]);
    left.insert(left.end(), kept.begin() + std::ssize(scores), kept.end());
    kept = left;
  }

  // Returns [first, last) in descending order of score, the larger index first among equals.
  static std::vector<std::size_t> sorted(const std::vector<double>& scores, std::size_t first, std::size_t last) {
    std::vector<std::size_t> order;
    for (std::size_t i = first; i < last; ++i) order.push_back(i);
    std::ranges::sort(
        order, [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; });
    return order;
  }
};

void compare_by_rows(const SnapOptions& c, const TableLayout& layout) {
  for (const auto& schedule : {test::conversation({90, 20}, 16), test::conversation({90, 75, 40, 33}, 7),
                               test::conversation({50, 30, 2, 8, 1}, 4), test::conversation({90, 20, 5, 41}, 256),
                               test::given_up(3), test::given_up(19)})
    for (const auto& mass : {test::random_mass(1), test::skewed_mass(2)})
      test::compare_with(
          c.spec(), mass, schedule,
          [&](int table) {
            SnapByRows one;
            one.c = c;
            one.table = table;
            return one;
          },
          layout);
}

TEST(WindowOptions, KeepWhatTheirDefinitionsKeep) {
  for (const SnapOptions& c :
       {SnapOptions{.blocks = true}, SnapOptions{.every = 8}, SnapOptions{.blocks = true, .every = 5},
        SnapOptions{.window = 9, .blocks = true, .every = 4}, SnapOptions{.maximum = true},
        SnapOptions{.window = 3, .kernel = 1, .blocks = true, .every = 16, .maximum = true},
        SnapOptions{.projected = true}, SnapOptions{.window = 3, .blocks = true, .every = 9, .projected = true},
        SnapOptions{.protect = 5}, SnapOptions{.projected = true, .protect = 7}})
    compare_by_rows(c, {.layers = 2, .per_layer = 2, .heads = 3});
}

TEST(WindowOptions, ChunksStayWhole) {
  for (const SnapOptions& c :
       {SnapOptions{.chunk = 4}, SnapOptions{.maximum = true, .chunk = 5}, SnapOptions{.chunk = 1},
        SnapOptions{.every = 9, .chunk = 7}, SnapOptions{.blocks = true, .every = 5, .chunk = 3}})
    compare_by_rows(c, {.layers = 2, .per_layer = 1, .heads = 3});
}

TEST(WindowOptions, ArePoliciesLikeTheOthers) {
  for (const char* spec :
       {"snapkv:budget=24,window=6,kernel=3,prompt=blocks,every=5", "snapkv:budget=24,window=6,share=ada,every=9",
        "snapkv:budget=24,window=6,chunk=5,gate=on", "snapkv:budget=24,window=6,agg=max,every=7+h2o:budget=20,recent=4",
        "h2o:budget=30,recent=4+snapkv:budget=24,window=6,every=5",
        "pyramidkv:budget=24,window=6,prompt=blocks,every=5", "cake:budget=24,window=6,share=ada",
        "cake:budget=24,window=6,chunk=4", "rkv:budget=24,window=6,every=5",
        "rkv:budget=24,window=6,prompt=blocks,every=3", "snapkv:budget=24,window=6,value=wo,every=5",
        "pyramidkv:budget=24,window=6,value=wo,prompt=blocks,every=5", "cake:budget=24,window=6,value=wo,share=ada",
        "cake:budget=24,window=6,value=wo,prompt=blocks,every=4,most=2",
        "snapkv:budget=24,window=6,chunk=5+h2o:budget=20,recent=4"})
    test::check_scored_policy(spec);
}

TEST(WindowOptions, LatentAttentionHasNoProjectedValues) {
  for (const char* spec : {"snapkv:value=wo", "cake:value=wo+h2o", "snapkv+h2o:value=wo", "expected:norm=wo"}) {
    const auto policy = test::policy_of_tables(spec, {.layers = 2, .per_layer = 2, .head_dim = 4});
    EXPECT_TRUE(check_model(*policy, {}).ok()) << spec;
    const Status refused = check_model(*policy, {.latent = true});
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported) << spec;
    EXPECT_NE(refused.message().find("omit value=wo or norm=wo"), std::string::npos) << refused.message();
  }
}

TEST(WindowOptions, BoundsAndPrefixes) {
  const auto policy = [](const std::string& spec) {
    return test::policy_of_tables(spec, {.layers = 2, .per_layer = 2});
  };
  EXPECT_EQ(policy("snapkv:budget=100")->bound(), std::nullopt);
  EXPECT_EQ(policy("snapkv:budget=100,every=8")->bound(), std::nullopt);
  EXPECT_EQ(policy("snapkv:budget=100,prompt=blocks")->bound(), std::nullopt);
  EXPECT_EQ(policy("snapkv:budget=100,prompt=blocks,every=8")->bound(), 108);
  EXPECT_EQ(policy("rkv:budget=100,prompt=blocks,every=8")->bound(), 108);
  EXPECT_EQ(policy("pyramidkv:budget=100,window=20,beta=10,prompt=blocks,every=8")->bound(), 20 + 160 - 8 + 8);
  EXPECT_FALSE(policy("snapkv:budget=100,prompt=blocks,every=8")->traits().holds_prompts);
  EXPECT_EQ(policy("snapkv:budget=100,every=8")->exact_prefix(1000), 984);
  EXPECT_EQ(policy("snapkv:budget=100,prompt=blocks")->exact_prefix(1000), 0);
  EXPECT_EQ(reductions_of(*policy("snapkv")), std::vector{MassReduction::kMean});
  EXPECT_EQ(reductions_of(*policy("snapkv:agg=max")), std::vector{MassReduction::kMax});
  EXPECT_EQ(reductions_of(*policy("rkv")), std::vector{MassReduction::kMax});
}

// A prompt of three messages and answers in blocks: no layer exceeds what was promised, and the mean is the budget.
TEST(WindowOptions, APyramidOfBlocksKeepsItsMean) {
  const TableLayout layout{.layers = 5, .per_layer = 2};
  const auto policy = test::policy_of_tables("pyramidkv:budget=110,window=10,beta=20,prompt=blocks,every=8", layout);
  test::TableDriver driver(*policy, layout, test::random_mass(5));
  for (int message = 0; message < 3; ++message) {
    driver.prompt(600, 64);
    std::size_t total = 0;
    for (int table = 0; table < layout.tables(); ++table) total += driver.held(table).size();
    EXPECT_NEAR(static_cast<double>(total) / layout.tables(), 110, 1);
    EXPECT_GT(driver.held(0).size(), 3 * driver.held(8).size());
    driver.generate(40);
  }
}

TEST(WindowOptions, RefusesWhatCannotBe) {
  test::expect_refused("snapkv:share=ada,chunk=10", {"chunk=10", "share=ada"});
  test::expect_refused("snapkv:gate=on", {"gate=on", "chunk="});
  test::expect_refused("snapkv:floor=0.5", {"floor=0.5", "share=ada"});
  test::expect_refused("snapkv:share=ada,prompt=blocks", {"prompt=blocks", "share=ada"});
  test::expect_refused("snapkv:prompt=blocks+lethe", {"prompt=blocks", "omit"});
  test::expect_refused("h2o:budget=64+snapkv:prompt=blocks", {"cannot come second"});
  test::expect_refused("h2o:budget=64+rkv:every=0", {"cannot come second"});
}

TEST(WindowOptions, HeadsOfALayerKeepTheSameChunks) {
  const TableLayout layout{.layers = 2, .per_layer = 3};
  const auto policy = test::policy_of_tables("snapkv:budget=40,window=8,kernel=3,chunk=6", layout);
  test::TableDriver driver(*policy, layout, test::random_mass(5));
  driver.prompt(200, 64);
  for (int table = 0; table < layout.tables(); ++table) {
    EXPECT_EQ(driver.held(table).size(), 40u);
    EXPECT_EQ(driver.held(table), driver.held(table / 3 * 3)) << table;
  }
  EXPECT_NE(driver.held(0), driver.held(3));  // each layer has its own
}

// The scores of all heads count: whole chunks of the largest sums stay.
TEST(WindowOptions, ChunksAreChosenByTheSumOverHeads) {
  const TableLayout layout{.layers = 1, .per_layer = 2};
  constexpr int kTokens = 40, kWindow = 4, kChunk = 6;
  const auto policy = test::policy_of_tables("snapkv:budget=16,window=4,kernel=1,chunk=6", layout);
  const test::MassSource mass = test::random_mass(11);
  test::TableDriver driver(*policy, layout, mass);
  driver.prompt(kTokens, kTokens);
  std::vector<double> sums(kTokens / kChunk);
  for (int table = 0; table < 2; ++table)
    for (TokenIndex row = kTokens - kWindow; row < kTokens; ++row)
      for (TokenIndex token = 0; token < kTokens - kWindow; ++token)
        sums[static_cast<std::size_t>(token / kChunk)] += mass(table, row, token);
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
  std::ranges::sort(order, std::greater(), [&](std::size_t chunk) { return sums[chunk]; });
  std::vector<TokenIndex> expected;
  for (TokenIndex token = 0; token < kTokens; ++token) {
    const auto chunk = static_cast<std::size_t>(token / kChunk);
    if (token >= kTokens - kWindow || chunk == order[0] || chunk == order[1]) expected.push_back(token);
  }
  for (int table = 0; table < 2; ++table) EXPECT_EQ(driver.held(table), expected);
}

TEST(WindowOptions, HeadsShareWhatALayerKeeps) {
  const TableLayout layout{.layers = 2, .per_layer = 3};
  for (const auto& [floor, least] : {std::pair{"0.2", 6U + 8U}, std::pair{"1", 40U}, std::pair{"0", 8U}}) {
    for (const char* every : {"0", "5"}) {
      const auto policy = test::policy_of_tables(
          fmt::format("snapkv:budget=40,window=8,kernel=3,share=ada,floor={},every={}", floor, every), layout);
      test::TableDriver driver(*policy, layout, test::skewed_mass(7));
      for (const int message : {200, 1, 60}) {
        driver.prompt(message, 64);
        for (int layer = 0; layer < layout.layers; ++layer) {
          std::size_t total = 0;
          for (int head = 0; head < 3; ++head) {
            total += driver.held(layer * 3 + head).size();
            EXPECT_GE(driver.held(layer * 3 + head).size(), least);
          }
          EXPECT_EQ(total, 3U * 40U) << message;
        }
        driver.generate(11);
      }
    }
  }
}

// `rkv`, with keys of the driver.
struct RkvByRows final : SnapByRows {
  int table = 0;
  long double lambda = 0.1L, alike = 0.5L;
  static constexpr int kDims = 5;

  long double cosine(TokenIndex a, TokenIndex b) const {
    long double product = 0, first = 0, second = 0;
    for (int i = 0; i < kDims; ++i) {
      const long double x = test::key_element(table, a, i), y = test::key_element(table, b, i);
      product += x * y, first += x * x, second += y * y;
    }
    return product / std::sqrt(first * second);
  }

  void end_window() override {
    queries.erase(queries.begin(), queries.end() - std::min(std::ssize(queries), c.window));
    const auto held = static_cast<std::size_t>(std::ssize(kept));
    const std::int64_t earlier = std::ssize(kept) - c.window, ranked = c.budget - c.window;
    if (earlier > ranked) {
      std::vector<long double> means(held, 0);
      for (std::size_t i = 0; i < held; ++i) {
        std::ptrdiff_t newest = -1;
        for (std::size_t j = 0; j < held; ++j)
          if (j != i && cosine(kept[i], kept[j]) > alike) newest = static_cast<std::ptrdiff_t>(j);
        for (std::size_t j = 0; j < held; ++j)
          if (j != i && std::cmp_not_equal(j, newest)) means[j] += cosine(kept[i], kept[j]) / std::ssize(kept);
      }
      long double sum = 0;
      for (const long double mean : means) sum += std::exp(mean);
      const auto count = static_cast<std::size_t>(earlier);
      std::vector<double> attention(count), scores(count);
      for (const TokenIndex query : queries) {
        double all = 0;
        for (std::size_t i = 0; i < count; ++i) all += rows[query].contains(kept[i]) ? rows[query][kept[i]] : 0;
        for (std::size_t i = 0; i < count; ++i)
          attention[i] +=
              (rows[query].contains(kept[i]) ? rows[query][kept[i]] : 0) / (all * static_cast<double>(queries.size()));
      }
      for (std::int64_t i = 0; i < earlier; ++i) {
        double most = 0;
        for (std::int64_t k = std::max<std::int64_t>(i - c.kernel / 2, 0); k <= std::min(i + c.kernel / 2, earlier - 1);
             ++k)
          most = std::max(most, attention[static_cast<std::size_t>(k)]);
        const auto place = static_cast<std::size_t>(i);
        scores[place] = static_cast<double>(lambda * most - (1 - lambda) * std::exp(means[place]) / sum);
      }
      keep(scores, ranked);
    }
    queries.clear();
    rows.clear();
  }
};

TEST(Rkv, KeepsWhatItsDefinitionKeeps) {
  struct RkvOptions {
    SnapOptions c;
    const char* lambda;
    const char* alike;
  };
  for (const RkvOptions& options : {RkvOptions{{.every = 9}, "0.1", "0.5"}, RkvOptions{{.kernel = 1}, "0", "0.9"},
                                    RkvOptions{{.blocks = true, .every = 5}, "0.6", "0.1"}}) {
    const SnapOptions& c = options.c;
    const std::string spec =
        fmt::format("rkv:budget={},window={},kernel={},prompt={},every={},lambda={},alike={}", c.budget, c.window,
                    c.kernel, c.blocks ? "blocks" : "whole", c.every, options.lambda, options.alike);
    for (const auto& schedule : {test::conversation({60, 20}, 16), test::conversation({50, 30, 2, 8, 1}, 4)})
      test::compare_with(spec, test::random_mass(1), schedule,
                         [&](int table) {
                           RkvByRows one;
                           one.c = c;
                           one.table = table;
                           one.lambda = std::stold(options.lambda);
                           one.alike = std::stold(options.alike);
                           return one;
                         },
                         {.layers = 2, .per_layer = 2, .heads = 3, .head_dim = RkvByRows::kDims});
  }
}

TEST(LayerChoice, SharesFollowTheScores) {
  const std::vector<double> high{9, 8, 7, 6}, low{1, 2, 3, 0}, even{5, 5, 5};
  const std::vector<std::span<const double>> heads{high, low, even};
  EXPECT_EQ(share_among_heads(heads, 6, 0, 0), (std::vector<std::int64_t>{4, 0, 2}));
  EXPECT_EQ(share_among_heads(heads, 6, 1, 0), (std::vector<std::int64_t>{4, 1, 1}));
  EXPECT_EQ(share_among_heads(heads, 6, 2, 0), (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(share_among_heads(heads, 6, 0, 2), (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(share_among_heads(heads, 11, 0, 0), (std::vector<std::int64_t>{4, 4, 3}));
}

TEST(LayerChoice, AGateKeepsTheBestOfAChunk) {
  // Three chunks of 6: the first has one high score, the second is even and lower, the third is lowest.
  const std::vector<double> scores{90, 1, 2, 3, 4, 0, 8, 8, 8, 8, 8, 8, 1, 1, 1, 1, 1, 2};
  const auto kept = [&](std::int64_t count, bool gate) {
    const std::vector<bool> stays = choose_chunks(scores, {.count = count, .chunk = 6, .gate = gate});
    std::vector<int> places;
    for (std::size_t i = 0; i < stays.size(); ++i)
      if (stays[i]) places.push_back(static_cast<int>(i));
    return places;
  };
  EXPECT_EQ(kept(6, false), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(kept(6, true), (std::vector<int>{0, 2, 3, 4, 10, 11}));
  EXPECT_EQ(kept(10, true), (std::vector<int>{0, 2, 3, 4, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(kept(11, false), (std::vector<int>{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11}));
  EXPECT_EQ(kept(18, true).size(), 18u);
}

}  // namespace
}  // namespace kvasir
