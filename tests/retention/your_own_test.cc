// The policies of docs/policies/your-own.md, registered as that page says: they are what the page promises.
#include <array>
#include <cmath>
#include <filesystem>

#include "eval/record.h"
#include "replay/replay.h"
#include "retention/scored_checks.h"
#include "support/engine_fixture.h"

namespace kvasir {
namespace {

constexpr PolicyOption kIgnoringOptions[] = {{"size", "1", "1 to 9", "is not read"}};

}  // namespace

const PolicyInfo kIgnoringPolicy{
    .name = "ignoring", .options = kIgnoringOptions, .make = [](const PolicyOptions&) { return make_policy("full"); }};

namespace {

using test::PassShape;
using test::TableMass;

struct NaiveFading {
  std::int64_t budget = 0;
  std::int64_t recent = 0;
  double halflife = 0;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, double> score;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      for (const TokenIndex key : seen) score[key] = std::exp2(-1.0 / halflife) * score[key] + mass(id, key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      if (std::ssize(kept) <= budget) continue;
      const auto last = kept.end() - recent;
      kept.erase(std::min_element(kept.begin(), last, [&](TokenIndex a, TokenIndex b) { return score[a] < score[b]; }));
    }
  }
};

TEST(YourOwn, IsListedAndKeepsWhatThePageSays) {
  const PolicyInfo* info = find_policy("fading");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->options.size(), 6u);
  for (const auto& schedule : test::schedules())
    for (const auto& mass : {test::random_mass(1), test::skewed_mass(2)})
      test::compare_with("fading:budget=20,recent=6,halflife=30", mass, schedule,
                         [](int) { return NaiveFading{.budget = 20, .recent = 6, .halflife = 30}; });
}

TEST(YourOwn, IsAPolicyLikeTheOthers) {
  for (const char* spec : {"fading:budget=20,recent=6", "fading:budget=30%,recent=2,every=3,halflife=10.5",
                           "snapkv:budget=20,window=6+fading:budget=25,recent=5"})
    test::check_scored_policy(spec);
  EXPECT_EQ(test::policy_of_tables("fading:halflife=512.0")->traits().spec, "fading:budget=1024,recent=256");
  EXPECT_EQ(test::policy_of_tables("fading:budget=300")->bound(), 301);
  EXPECT_FALSE(make_policy("fading:halflife=0.5").ok());
  EXPECT_FALSE(make_policy("fading:budget=100").ok());
  EXPECT_NE(make_policy("nothing").status().message().find("fading"), std::string::npos);
}

TEST(YourOwn, AnOptionThatIsNotReadIsRefused) {
  EXPECT_TRUE(make_policy("ignoring").ok());
  for (const char* spec : {"ignoring:size=x", "ignoring:size=1", "snapkv+ignoring:size=1"})
    EXPECT_EQ(make_policy(spec).status().message(),
              "policy 'ignoring' lists the option 'size' but never reads it; omit the option, and mend the policy");
}

// By the page's formula, in long double.
struct NaiveDistinct {
  static constexpr int kDims = 4;
  int number = 0;
  std::int64_t budget = 0;
  std::int64_t recent = 0;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, long double> score;
  std::array<long double, kDims> sum{};

  void pass(TokenIndex first, const PassShape& shape, const TableMass&) {
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      long double dot = 0, of_key = 0, of_sum = 0;
      for (int i = 0; i < kDims; ++i) {
        const long double x = test::key_element(number, id, i);
        dot += x * sum[static_cast<std::size_t>(i)];
        of_key += x * x;
        of_sum += sum[static_cast<std::size_t>(i)] * sum[static_cast<std::size_t>(i)];
      }
      score[id] = of_sum > 0 ? -dot / std::sqrt(of_key * of_sum) : 0;
      for (int i = 0; i < kDims; ++i)
        sum[static_cast<std::size_t>(i)] += test::key_element(number, id, i) / std::sqrt(of_key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      if (std::ssize(kept) <= budget) continue;
      const auto last = kept.end() - recent;
      kept.erase(std::min_element(kept.begin(), last, [&](TokenIndex a, TokenIndex b) { return score[a] < score[b]; }));
    }
  }
};

TEST(YourOwn, TheKeyReaderKeepsWhatThePageSays) {
  for (const auto& schedule : test::schedules())
    test::compare_with("distinct:budget=20,recent=6", test::random_mass(1), schedule,
                       [](int table) { return NaiveDistinct{.number = table, .budget = 20, .recent = 6}; },
                       {.layers = 2, .per_layer = 2, .head_dim = NaiveDistinct::kDims});
}

TEST(YourOwn, TheKeyReaderIsAPolicyLikeTheOthers) {
  for (const char* spec : {"distinct:budget=20,recent=6", "distinct:budget=30%,recent=2",
                           "snapkv:budget=20,window=6+distinct:budget=25,recent=5"})
    test::check_scored_policy(spec);
  const auto policy = make_policy("distinct");
  ASSERT_TRUE((*policy)->as<ReadsKv>() != nullptr && (*policy)->as<ObservesMasses>() == nullptr);
  EXPECT_TRUE((*policy)->as<ReadsKv>()->wants_keys() && !(*policy)->as<ReadsKv>()->wants_values());
  EXPECT_EQ((*policy)->exact_prefix(100), 0);
}

// The engine keeps what replay keeps of a recording of the policy's own keys.
TEST(YourOwn, TheKeyReaderKeepsTheSameInReplay) {
  const test::TemporaryFile file(test::make_random_model({.layers = 3, .heads = 4, .kv_heads = 2, .context = 64}));
  const auto model = test::load(file.path(), {.threads = 2, .kv_type = "f32"});
  const std::vector<TokenId> text = test::random_tokens(60, 256, 11);
  for (const auto& [prefill, chunk] : {std::pair{0, 0}, {40, 16}, {60, 13}}) {
    const ObservedTextOptions options{"distinct:budget=20,recent=4", prefill, chunk};
    const std::string path = file.path() + ".npy";
    auto writer = AttentionTraceWriter::open(path, trace_shape(*model, 60, true));
    ASSERT_TRUE(writer.ok());
    const auto recorded = record_attention(model, text, options, *writer, {});
    ASSERT_TRUE(recorded.ok() && writer->finish().ok()) << recorded.status().message();
    const auto trace = AttentionTrace::open(path);
    std::filesystem::remove(path);
    const auto policy = make_policy(options.policy);
    const auto replayed = replay(*trace, **policy, {prefill, prefill > 0 ? chunk : 0}, {});
    ASSERT_TRUE(replayed.ok()) << replayed.status().message();
    for (std::size_t layer = 0; layer < 3; ++layer)
      for (std::size_t head = 0; head < 2; ++head) {
        EXPECT_EQ(recorded->final[layer][head].size(), 20u);
        EXPECT_EQ(replayed->layers[layer].tables[head].final, recorded->final[layer][head]);
      }
  }
}

}  // namespace
}  // namespace kvasir
