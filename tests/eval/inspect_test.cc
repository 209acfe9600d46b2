// Inspection against the definitions, computed anew from whole recorded matrices.
#include "eval/inspect.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "eval/record.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

const RandomModelSpec kInspectedModel{.layers = 3, .heads = 4, .kv_heads = 2, .context = 128};
constexpr int kGroup = 2;

// weights[layer][head][query][token]; 0 where the token is not seen.
using Attention = std::vector<std::vector<std::vector<std::vector<double>>>>;

// The sum and number of what was averaged; NaN of nothing.
struct Average {
  double sum = 0;
  int count = 0;
  void add(double value) { sum += value, ++count; }
  double mean() const { return count == 0 ? std::nan("") : sum / count; }
};

void expect_mean(double got, const Average& want, const std::string& what) {
  if (want.count == 0)
    EXPECT_TRUE(std::isnan(got)) << what << ": " << got;
  else
    EXPECT_NEAR(got, want.mean(), 1e-6) << what;
}

double hoyer_of(const std::vector<double>& x) {
  const double n = static_cast<double>(x.size());
  double l1 = 0, l2 = 0;
  for (const double v : x) l1 += v, l2 += v * v;
  return (std::sqrt(n) - l1 / std::sqrt(l2)) / (std::sqrt(n) - 1);
}

class Inspect : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(kInspectedModel));
    model_ = load(file_->path(), {.threads = 2, .kv_type = "f32"});
    ASSERT_NE(model_, nullptr);
  }
  static void TearDownTestSuite() {
    model_.reset();
    file_.reset();
  }

  static Attention record(const std::vector<TokenId>& text, const ObservedTextOptions& options) {
    const std::string path = file_->path() + ".npy";
    const auto tokens = static_cast<std::int64_t>(text.size());
    auto out = AttentionTraceWriter::open(path, {kInspectedModel.layers, kInspectedModel.heads, tokens});
    EXPECT_TRUE(out.ok());
    EXPECT_TRUE(record_attention(model_, text, options, *out, {}).ok());
    EXPECT_TRUE(out->finish().ok());
    const auto trace = AttentionTrace::open(path);
    EXPECT_TRUE(trace.ok());
    Attention all(kInspectedModel.layers,
                  std::vector(kInspectedModel.heads, std::vector<std::vector<double>>(text.size())));
    for (int layer = 0; layer < kInspectedModel.layers; ++layer)
      for (int head = 0; head < kInspectedModel.heads; ++head)
        for (int query = 0; query < tokens; ++query) {
          std::vector<float> row(static_cast<std::size_t>(query) + 1);
          trace->read(layer, head, query, row);
          all[layer][head][query].assign(row.begin(), row.end());
        }
    std::filesystem::remove(path);
    return all;
  }

  // The `top` tokens with the largest of the heads' weights, nothing if no more than that are seen.
  static std::set<int> top_set(const Attention& all, int layer, int first_head, int heads, int query, int top) {
    std::vector<std::pair<double, int>> seen;
    for (int id = 0; id <= query; ++id) {
      double most = 0;
      for (int head = first_head; head < first_head + heads; ++head) most = std::max(most, all[layer][head][query][id]);
      if (most > 0) seen.emplace_back(most, id);
    }
    std::set<int> ids;
    if (static_cast<int>(seen.size()) <= top) return ids;
    std::sort(seen.rbegin(), seen.rend());
    for (int i = 0; i < top; ++i) ids.insert(seen[i].second);
    return ids;
  }

  static double overlap(const std::set<int>& a, const std::set<int>& b) {
    double common = 0;
    for (const int id : a) common += b.contains(id);
    return common / static_cast<double>(std::min(a.size(), b.size()));
  }

  static std::unique_ptr<TemporaryFile> file_;
  static std::shared_ptr<LoadedModel> model_;
};
std::unique_ptr<TemporaryFile> Inspect::file_;
std::shared_ptr<LoadedModel> Inspect::model_;

TEST_F(Inspect, AgreesWithTheDefinitions) {
  struct Case {
    InspectOptions options;
    int tokens;
    int reference;
  };
  const std::vector<Case> cases = {
      {{{"full"}, 8, 10, 16}, 75, 37},
      {{{"full", 30, 7}, 5, 7, 75}, 75, 29},
      {{{"window:size=40"}, 12, 64, 1}, 100, 49},
      {{{"streaming:sinks=2,window=30"}, 4, 3, 1024}, 90, 44},
      {{{"h2o:budget=30,recent=8,sinks=2", 50, 16}, 8, 12, 20}, 110, 49},
      {{{"tova:budget=20,heads=independent", 40, 20}, 6, 10, 33}, 100, 39},
      {{{"lethe:tau=1.5,start=20,recent=0.2,max=40"}, 6, 10, 33}, 100, 49},
  };
  for (const Case& c : cases) {
    const ObservedTextOptions& reading = c.options.reading;
    SCOPED_TRACE(reading.policy);
    const std::vector<TokenId> text = random_tokens(c.tokens, kInspectedModel.vocab, 5);
    const Attention all = record(text, reading);
    const auto result = inspect_attention(model_, text, c.options, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_EQ(result->layers.size(), static_cast<std::size_t>(kInspectedModel.layers));
    EXPECT_EQ(result->tokens, c.tokens);
    EXPECT_EQ(result->reference, c.reference);
    EXPECT_EQ(result->lags, (std::vector<int>{1, 2, 4, 8, 16, 32, 64}));
    const int bins = std::min(c.options.bins, c.tokens);
    const int step = (c.tokens + c.options.matrix - 1) / c.options.matrix;
    const int cells = (c.tokens + step - 1) / step;
    EXPECT_EQ(result->cell_tokens, step);
    EXPECT_EQ(result->cells, cells);

    for (int layer = 0; layer < kInspectedModel.layers; ++layer) {
      const InspectedLayer& got = result->layers[layer];
      const std::string in = fmt::format("layer {} ", layer);
      std::vector<Average> hoyer(bins), kept(bins), drift(bins), position(bins), locality(7), chance(7);
      std::vector<Average> kv(4), queries(16);
      std::vector<double> matrix(static_cast<std::size_t>(cells * cells), -1);
      Average hoyer_mean;
      std::vector<std::vector<std::set<int>>> sets(2);
      for (int query = 0; query < c.tokens; ++query) {
        const int bin = query * bins / c.tokens;
        position[bin].add(query);
        std::vector<double> mass;
        double held = 0;
        for (int id = 0; id <= query; ++id) {
          double sum = 0;
          for (int head = 0; head < kInspectedModel.heads; ++head) {
            const double weight = all[layer][head][query][id];
            sum += weight;
            if (head % kGroup == 0 && weight > 0) held += 0.5;
          }
          if (sum == 0) continue;
          mass.push_back(sum);
          double& cell = matrix[static_cast<std::size_t>(query / step * cells + id / step)];
          cell = std::max(cell, 0.0) + sum / kInspectedModel.heads / std::min(step, c.tokens - query / step * step);
        }
        kept[bin].add(held);
        if (mass.size() > 1) hoyer[bin].add(hoyer_of(mass)), hoyer_mean.add(hoyer_of(mass));
        for (int head = 0; head < 2; ++head)
          sets[head].push_back(top_set(all, layer, head * kGroup, kGroup, query, c.options.top));
        for (int a = 0; a < 2; ++a)
          for (int b = 0; b < 2; ++b)
            if (!sets[a][query].empty() && !sets[b][query].empty())
              kv[a * 2 + b].add(overlap(sets[a][query], sets[b][query]));
        for (int a = 0; a < 4; ++a)
          for (int b = 0; b < 4; ++b) {
            const std::set<int> x = top_set(all, layer, a, 1, query, c.options.top);
            const std::set<int> y = top_set(all, layer, b, 1, query, c.options.top);
            if (!x.empty() && !y.empty()) queries[a * 4 + b].add(overlap(x, y));
          }
        for (int head = 0; head < 2; ++head) {
          const std::set<int>& now = sets[head][query];
          if (now.empty()) continue;
          const auto seen = [&](int of) {
            return std::ranges::count_if(all[layer][head * kGroup][of], [](double w) { return w > 0; });
          };
          for (int lag = 0; lag < 7; ++lag) {
            const int before = query - (1 << lag);
            if (before < 0 || sets[head][before].empty()) continue;
            locality[lag].add(overlap(now, sets[head][before]));
            chance[lag].add(c.options.top / static_cast<double>(std::max(seen(query), seen(before))));
          }
          if (query > c.reference && !sets[head][c.reference].empty())
            drift[bin].add(overlap(now, sets[head][c.reference]));
        }
      }
      for (int bin = 0; bin < bins; ++bin) {
        const std::string at = fmt::format("{} bin {} ", in, bin);
        expect_mean(got.hoyer[bin], hoyer[bin], at + "hoyer");
        expect_mean(got.kept[bin], kept[bin], at + "kept");
        expect_mean(got.drift[bin], drift[bin], at + "drift");
        expect_mean(result->positions[bin], position[bin], at + "position");
      }
      expect_mean(got.hoyer_mean, hoyer_mean, in + "hoyer");
      for (int lag = 0; lag < 7; ++lag) {
        expect_mean(got.locality[lag], locality[lag], fmt::format("{} locality {}", in, 1 << lag));
        expect_mean(got.by_chance[lag], chance[lag], fmt::format("{} chance {}", in, 1 << lag));
      }
      for (int i = 0; i < 4; ++i) expect_mean(got.similarity[i], kv[i], in + "KV heads");
      for (int i = 0; i < 16; ++i) expect_mean(got.query_similarity[i], queries[i], in + "query heads");
      ASSERT_EQ(got.matrix.size(), matrix.size());
      for (int row = 0; row < cells; ++row) {
        double sum = 0;
        for (int column = 0; column < cells; ++column) {
          const auto i = static_cast<std::size_t>(row * cells + column);
          if (matrix[i] < 0) {
            EXPECT_TRUE(std::isnan(got.matrix[i])) << in << row << " " << column;
            continue;
          }
          EXPECT_NEAR(got.matrix[i], matrix[i], 1e-6) << in << row << " " << column;
          sum += static_cast<double>(got.matrix[i]);
        }
        EXPECT_NEAR(sum, 1, 1e-5) << in << row;
      }
      // Something was compared, and something was not the same throughout.
      EXPECT_GT(locality[0].count, 0);
      EXPECT_LT(got.locality[0], 1);
    }
  }
}

TEST_F(Inspect, SaysWhatIsHeldAtTheEnd) {
  const auto text = random_tokens(100, kInspectedModel.vocab, 5);
  const auto result = inspect_attention(model_, text, {{"streaming:sinks=2,window=6"}}, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reading.policy, "streaming:sinks=2,window=6");
  EXPECT_EQ(result->reading.kept_max, 9);
  for (const auto& layer : result->reading.final)
    EXPECT_EQ(layer, (std::vector<std::vector<TokenIndex>>{{0, 1, 94, 95, 96, 97, 98, 99}}));
  const auto by_head = inspect_attention(model_, text, {{"tova:budget=20,heads=independent"}}, {});
  ASSERT_TRUE(by_head.ok());
  for (const auto& layer : by_head->reading.final) EXPECT_EQ(layer.size(), 2u);
}

TEST_F(Inspect, Refuses) {
  const auto text = random_tokens(100, kInspectedModel.vocab, 1);
  for (const auto& [options, part] :
       std::vector<std::pair<InspectOptions, std::string>>{{{{"nope"}}, "unknown retention policy"},
                                                           {{{"full"}, 0}, "top=0 must be from 1"},
                                                           {{{"full"}, 32, 0}, "bins=0 must be from 1"},
                                                           {{{"full"}, 32, 8, 4000}, "matrix=4000 must be from 1"},
                                                           {{{"full", 101}}, "from 0 to the 100"},
                                                           {{{"full", 50, -1}}, "chunk"}}) {
    const auto result = inspect_attention(model_, text, options, {});
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  }
  EXPECT_FALSE(check_inspect_options(*model_, 1, {}).ok());
  EXPECT_FALSE(check_inspect_options(*model_, kMostInspectedTokens + 1, {{"window:size=9"}}).ok());
  EXPECT_TRUE(check_inspect_options(*model_, kMostInspectedTokens, {{"window:size=9"}}).ok());
  EXPECT_EQ(inspect_attention(model_, text, {}, [](auto, auto) { return false; }).status().code(),
            StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvasir::test
