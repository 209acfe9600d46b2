// Head profiles against the definitions, computed anew from whole recorded matrices.
#include "eval/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "eval/record.h"
#include "replay/replay.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

const RandomModelSpec kProfiledModel{.layers = 3, .d = 128, .heads = 8, .kv_heads = 4, .context = 128};
constexpr int kProfileGroup = 2;

class Profile : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(kProfiledModel));
    model_ = load(file_->path(), {.threads = 2, .kv_type = "f32"});
    ASSERT_NE(model_, nullptr);
  }
  static void TearDownTestSuite() {
    model_.reset();
    file_.reset();
  }

  static std::vector<TokenId> text(int tokens, int seed) {
    std::vector<TokenId> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(3 + (i * i * 7 + i * seed) % 50);
    return ids;
  }

  // Adds, for all queries of one article that see more than `top` tokens, the overlap of each pair of heads. By
  // counting: a token is in a top set iff fewer than `top` tokens come before it.
  static int add_overlaps(std::span<const TokenId> article, int top, std::vector<std::vector<double>>& sums) {
    const std::string path = file_->path() + ".npy";
    const auto tokens = static_cast<std::int64_t>(article.size());
    auto out = AttentionTraceWriter::open(path, {kProfiledModel.layers, kProfiledModel.heads, tokens});
    EXPECT_TRUE(out.ok());
    EXPECT_TRUE(record_attention(model_, article, {"full", tokens, 0}, *out, {}).ok());
    EXPECT_TRUE(out->finish().ok());
    const auto trace = AttentionTrace::open(path);
    EXPECT_TRUE(trace.ok());
    const int heads = kProfiledModel.kv_heads;
    int queries = 0;
    for (int query = top; query < tokens; ++query, ++queries)
      for (int layer = 0; layer < kProfiledModel.layers; ++layer) {
        std::vector<std::set<int>> sets;
        for (int kv = 0; kv < heads; ++kv) {
          std::vector<float> pooled(static_cast<std::size_t>(query) + 1, 0), row(pooled);
          for (int h = 0; h < kProfileGroup; ++h) {
            trace->read(layer, kv * kProfileGroup + h, query, row);
            for (std::size_t i = 0; i < row.size(); ++i) pooled[i] = std::max(pooled[i], row[i]);
          }
          std::set<int> set;
          for (int id = 0; id <= query; ++id) {
            int before = 0;
            for (int other = 0; other <= query; ++other)
              before += pooled[other] > pooled[id] || (pooled[other] == pooled[id] && other > id);
            if (before < top) set.insert(id);
          }
          sets.push_back(set);
        }
        for (int a = 0; a < heads; ++a)
          for (int b = 0; b < heads; ++b) {
            int common = 0;
            for (const int id : sets[a]) common += static_cast<int>(sets[b].count(id));
            sums[layer][a * heads + b] += static_cast<double>(common) / top;
          }
      }
    std::filesystem::remove(path);
    return queries;
  }

  static std::unique_ptr<TemporaryFile> file_;
  static std::shared_ptr<LoadedModel> model_;
};
std::unique_ptr<TemporaryFile> Profile::file_;
std::shared_ptr<LoadedModel> Profile::model_;

TEST_F(Profile, AgreesWithTheDefinitions) {
  const std::vector<std::vector<TokenId>> texts = {text(130, 5), text(70, 11)};
  const ProfileOptions options{.tokens = 60, .articles = 0, .top_k = 9, .queries = 65536, .reps = 2, .seed = 3};
  const auto articles = cut_articles(texts, options.tokens, options.articles);
  ASSERT_TRUE(articles.ok());
  ASSERT_EQ(articles->size(), 3u);
  EXPECT_EQ((*articles)[1].data(), texts[1].data());       // one of each text in turn
  EXPECT_EQ((*articles)[2].data(), texts[0].data() + 60);  // its second
  const auto profiled = profile_model(model_, *articles, options, {});
  ASSERT_TRUE(profiled.ok()) << profiled.status().message();
  const HeadProfile* const profile = &profiled->heads;
  std::vector<std::vector<double>> sums(3, std::vector<double>(16, 0.0));
  int queries = 0;
  for (const auto article : *articles) queries += add_overlaps(article, options.top_k, sums);
  EXPECT_EQ(profile->queries, queries);
  EXPECT_EQ(profile->tokens, 180);
  EXPECT_EQ(profile->articles, 3);
  EXPECT_EQ(profile->fingerprint, model_->fingerprint);
  for (int layer = 0; layer < 3; ++layer)
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(profile->overlap[layer][i], sums[layer][i] / queries, 1e-9);
  EXPECT_EQ(profile->clusters, cluster_layers(profile->overlap, 4, 2, 3));
}

TEST_F(Profile, SamplesQueriesByTheSeed) {
  const std::vector<std::vector<TokenId>> texts = {text(120, 5)};
  ProfileOptions options{.tokens = 100, .articles = 0, .top_k = 9, .queries = 7, .reps = 2, .seed = 3};
  const auto articles = cut_articles(texts, options.tokens, options.articles);
  ASSERT_TRUE(articles.ok());
  const auto one = profile_model(model_, *articles, options, {});
  const auto again = profile_model(model_, *articles, options, {});
  options.seed = 4;
  const auto other = profile_model(model_, *articles, options, {});
  ASSERT_TRUE(one.ok() && again.ok() && other.ok());
  EXPECT_EQ(one->heads.queries, 7);
  EXPECT_EQ(one->heads, again->heads);
  EXPECT_EQ(one->queries, again->queries);
  EXPECT_NE(one->heads.overlap, other->heads.overlap);
  EXPECT_EQ(one->queries, other->queries);  // all queries count
}

// The same from the queries of recordings.
TEST_F(Profile, QueriesAreThoseOfTheText) {
  const std::vector<std::vector<TokenId>> texts = {text(130, 5), text(70, 11)};
  const ProfileOptions options{.tokens = 60, .articles = 0, .top_k = 9, .queries = 4, .reps = 2};
  const auto articles = cut_articles(texts, options.tokens, options.articles);
  ASSERT_TRUE(articles.ok());
  const auto profile = profile_model(model_, *articles, options, {});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  const QueryProfile& queries = profile->queries;
  const int dim = kProfiledModel.d / kProfiledModel.heads;
  ASSERT_EQ(queries.head_dim, dim);
  EXPECT_EQ(queries.tokens, 180);
  EXPECT_EQ(queries.fingerprint, model_->fingerprint);
  std::vector<double> means(queries.means.size()), lengths(queries.lengths.size());
  for (const auto article : *articles) {
    const std::string path = file_->path() + ".npy";
    auto out = AttentionTraceWriter::open(path, {.layers = kProfiledModel.layers,
                                                 .heads = kProfiledModel.heads,
                                                 .tokens = options.tokens,
                                                 .kv_heads = kProfiledModel.kv_heads,
                                                 .head_dim = dim});
    ASSERT_TRUE(out.ok()) << out.status().message();
    ASSERT_TRUE(record_attention(model_, article, {"full", options.tokens, 0}, *out, {}).ok());
    ASSERT_TRUE(out->finish().ok());
    const auto trace = AttentionTrace::open(path);
    ASSERT_TRUE(trace.ok()) << trace.status().message();
    std::vector<float> query(static_cast<std::size_t>(dim));
    for (int layer = 0; layer < kProfiledModel.layers; ++layer)
      for (int head = 0; head < kProfiledModel.heads; ++head)
        for (int token = 0; token < options.tokens; ++token) {
          trace->read(TraceArray::kQueries, layer, head, token, query);
          const int at = layer * kProfiledModel.heads + head;
          for (int i = 0; i < dim; ++i) means[at * dim + i] += query[i] / 180.0;
          for (int f = 0; f < dim / 2; ++f)
            lengths[at * dim / 2 + f] += std::hypot(double{query[2 * f]}, double{query[2 * f + 1]}) / 180;
        }
    std::filesystem::remove(path);
  }
  for (std::size_t i = 0; i < means.size(); ++i) EXPECT_NEAR(queries.means[i], means[i], 1e-9) << i;
  for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_NEAR(queries.lengths[i], lengths[i], 1e-9) << i;
  EXPECT_GT(*std::ranges::max_element(queries.lengths), 0.1);
}

// Replay of synckv on a recording made under it: all that was attended to lies in what replay says is read.
TEST_F(Profile, ReplayReadsWhatTheEngineRead) {
  const std::string policy = "synckv:budget=20,recent=4,stride=3";
  const std::vector<TokenId> tokens = text(120, 5);
  double under_full = 0;
  for (const std::string& recorded : {policy, std::string("full")}) {
    const std::string path = file_->path() + ".npy";
    auto out = AttentionTraceWriter::open(path, {kProfiledModel.layers, kProfiledModel.heads, 120});
    ASSERT_TRUE(out.ok());
    ASSERT_TRUE(record_attention(model_, tokens, {recorded, 90, 0}, *out, {}).ok());
    ASSERT_TRUE(out->finish().ok());
    const auto trace = AttentionTrace::open(path);
    std::filesystem::remove(path);
    ASSERT_TRUE(trace.ok());
    const auto made = make_policy(policy);
    const auto result = replay(*trace, **made, {90, 0, kProfiledModel.kv_heads}, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (const ReplayedLayer& layer : result->layers) {
      if (recorded == policy) {
        EXPECT_NEAR(layer.figures.recall, 1, 1e-6);
      } else {
        under_full += layer.figures.recall / kProfiledModel.layers;
      }
      for (const ReplayedTable& table : layer.tables) EXPECT_EQ(table.final.size(), 120u);
    }
  }
  EXPECT_LT(under_full, 0.999);
}

TEST_F(Profile, RefusesWhatCannotBeProfiled) {
  const std::vector<std::vector<TokenId>> texts = {text(20, 5)};
  EXPECT_EQ(cut_articles(texts, 21, 0).status().message(),
            "no text has the 21 tokens of an article; give a longer one, or shorter articles");
  EXPECT_FALSE(check_profile_options(*model_, {.tokens = 129}).ok());
  EXPECT_FALSE(check_profile_options(*model_, {.tokens = 64, .top_k = 64}).ok());
  EXPECT_TRUE(check_profile_options(*model_, {.tokens = 65, .top_k = 64}).ok());
  EXPECT_FALSE(check_profile_options(*model_, {.top_k = 0}).ok());
  EXPECT_FALSE(check_profile_options(*model_, {.queries = 0}).ok());
  EXPECT_FALSE(check_profile_options(*model_, {.reps = 5}).ok());
}

}  // namespace
}  // namespace kvasir::test
