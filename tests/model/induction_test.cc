// The induction model recalls what is in its cache, all of it and nothing else, as its weights were computed to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "support/engine_fixture.h"
#include "support/induction_model.h"

namespace kvasir::test {
namespace {

constexpr int kKey = 5;    // tokens that ask; as many as the model matches
constexpr int kValue = 5;  // tokens of the answer

// BOS, filler with `key value` in it, and the key once more at the end: `length` tokens.
struct Recall {
  std::vector<TokenId> prompt;
  std::vector<TokenId> value;
  int value_at = 0;  // where the value begins

  // Tokens from the value's first to the last of the question: what a window holds beside the latter.
  int distance() const { return static_cast<int>(prompt.size()) - 1 - value_at; }
};

Recall make_recall(int length, double depth, std::uint64_t seed, int symbols = 10) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int first, int count) {
    return static_cast<TokenId>(first + static_cast<int>(random() % static_cast<std::uint64_t>(count)));
  };
  Recall recall;
  std::vector<TokenId> key(kKey);
  for (TokenId& token : key) token = draw(2, 318);
  for (int i = 0; i < kValue; ++i) recall.value.push_back(draw(60, symbols));
  const int filler = length - 1 - 2 * kKey - kValue;
  const int before = static_cast<int>(depth * filler);
  recall.prompt = {1};
  const auto add = [&](const std::vector<TokenId>& tokens) {
    recall.prompt.insert(recall.prompt.end(), tokens.begin(), tokens.end());
  };
  const auto add_filler = [&](int count) {
    for (int i = 0; i < count; ++i) recall.prompt.push_back(draw(2, 318));
  };
  add_filler(before);
  add(key);
  recall.value_at = static_cast<int>(recall.prompt.size());
  add(recall.value);
  add_filler(filler - before);
  add(key);
  EXPECT_EQ(recall.prompt.size(), static_cast<std::size_t>(length));
  return recall;
}

struct Continued {
  std::vector<TokenId> tokens;
  double worst_probability = 1;  // of the tokens chosen
  double first_probability = 0;  // of token `expected`
};

Continued continue_greedily(SequenceRunner& runner, const Recall& recall) {
  Continued out;
  std::vector<TokenId> next = recall.prompt;
  while (out.tokens.size() < recall.value.size()) {
    std::vector<float> logits;
    const Status status =
        runner.feed(next, 256, SequenceRunner::Logits::kLast, [&](std::int64_t, int, std::span<const float> row) {
          logits.assign(row.begin(), row.end());
          return true;
        });
    EXPECT_TRUE(status.ok()) << status.message();
    const auto best = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - logits[best]));
    out.worst_probability = std::min(out.worst_probability, 1 / sum);
    if (out.tokens.empty()) {
      const auto expected = static_cast<std::size_t>(recall.value.front());
      out.first_probability = std::exp(static_cast<double>(logits[expected] - logits[best])) / sum;
    }
    next = {static_cast<TokenId>(best)};
    out.tokens.push_back(next.front());
  }
  return out;
}

class Induction : public ::testing::Test {
 protected:
  void SetUp() override { open({}, {.kv_type = "f16"}); }

  void open(const InductionSpec& spec, const EngineOptions& options) {
    file_ = std::make_unique<TemporaryFile>(make_induction_model(spec));
    model_ = load(file_->path(), options);
    ASSERT_NE(model_, nullptr);
  }

  Continued ask(const std::string& policy, const Recall& recall) {
    return continue_greedily(*new_runner(model_, policy), recall);
  }

  void expect_recalled(const std::string& policy, const Recall& recall) {
    const Continued got = ask(policy, recall);
    EXPECT_EQ(got.tokens, recall.value) << policy;
    EXPECT_GT(got.worst_probability, 0.99) << policy;
  }

  std::unique_ptr<TemporaryFile> file_;
  std::shared_ptr<LoadedModel> model_;
};

TEST(InductionCode, NoTwoTokensAreAlike) {
  for (const int bits : {5, 6, 7}) {
    const int length = 1 << bits;
    const auto code = [&](int token) { return induction_code(bits, token); };
    // The product of two codes is the code of another token, so the sums over single codes are all inner products.
    std::mt19937_64 random(3);
    for (int i = 0; i < 100; ++i) {
      const int a = static_cast<int>(random() % static_cast<unsigned>(length * length));
      const int b = static_cast<int>(random() % static_cast<unsigned>(length * length));
      std::vector<int> product = code(a);
      const std::vector<int> other = code(b);
      for (int x = 0; x < length; ++x) product[static_cast<std::size_t>(x)] *= other[static_cast<std::size_t>(x)];
      EXPECT_EQ(product, code(a ^ b));
    }
    int largest = 0;
    for (int token = 1; token < length * length; ++token) {
      int sum = 0;
      for (const int sign : code(token)) sum += sign;
      largest = std::max(largest, std::abs(sum));
    }
    EXPECT_EQ(largest, bits == 5 ? 8 : 16);
  }
}

TEST_F(Induction, RecallsAnyFactAtAnyDepthAndLength) {
  std::uint64_t seed = 1;
  for (const int length : {16, 40, 333, 1000})
    for (const double depth : {0.0, 0.1, 0.5, 0.9, 1.0})
      for (int i = 0; i < (length < 500 ? 8 : 2); ++i) {
        SCOPED_TRACE(testing::Message() << length << " " << depth << " " << seed);
        expect_recalled("full", make_recall(length, depth, seed++));
      }
  expect_recalled("full", make_recall(2048, 0, 1));
  expect_recalled("full", make_recall(4090, 0.3, 2));
}

TEST_F(Induction, RepeatedSymbolsAreNotAmbiguous) {
  std::uint64_t seed = 100;
  for (const int symbols : {1, 2})
    for (int i = 0; i < 20; ++i) expect_recalled("full", make_recall(150, 0.4, seed++, symbols));
}

TEST_F(Induction, EveryTypeOfWeightAndPage) {
  for (const char* dtype : {"f32", "f16", "bf16", "q8_0"})
    for (const char* kv_type : {"f32", "f16", "bf16"})
      for (const int match : {2, 3, 5}) {
        SCOPED_TRACE(testing::Message() << dtype << " " << kv_type << " " << match);
        open({.match = match, .vocab = match == 3 ? 1500 : 320, .dtype = dtype}, {.kv_type = kv_type});
        // All symbols apart: pairs occur once.
        Recall recall = make_recall(400, 0.2, 5);
        for (int i = 0; i < kValue; ++i) {
          recall.value[static_cast<std::size_t>(i)] = 260 + i;
          recall.prompt[static_cast<std::size_t>(recall.value_at + i)] = 260 + i;
        }
        expect_recalled("full", recall);
      }
}

// To the token: a window that reaches back to the value's first token holds each later one when it is asked for.
TEST_F(Induction, AWindowRecallsWhatItHolds) {
  std::uint64_t seed = 200;
  for (const int length : {60, 300})
    for (const double depth : {0.0, 0.5, 0.9}) {
      SCOPED_TRACE(testing::Message() << length << " " << depth);
      const Recall recall = make_recall(length, depth, seed++);
      const int reach = recall.distance();
      expect_recalled("window:size=" + std::to_string(reach), recall);
      for (const int size : {reach - 1, reach / 2}) {
        const Continued lost = ask("window:size=" + std::to_string(size), recall);
        EXPECT_LT(lost.first_probability, 0.05) << size;
        EXPECT_NE(lost.tokens.front(), recall.value.front()) << size;
      }
    }
}

TEST_F(Induction, StreamingRecallsWhatItHolds) {
  for (const char* more : {"", ",every=16", ",realign=rotate"}) {
    const Recall recall = make_recall(700, 0.6, 9);
    const auto policy = [&](int window) { return "streaming:sinks=4,window=" + std::to_string(window) + more; };
    expect_recalled(policy(recall.distance()), recall);
    // With BOS in the cache and nothing that matches, it says nothing: all tokens are alike, but EOS.
    const Continued lost = ask(policy(recall.distance() - 16), recall);
    EXPECT_EQ(lost.tokens.front(), 2) << more;
    EXPECT_NEAR(lost.first_probability, 1 / (319 + std::exp(1.0)), 1e-4) << more;
    EXPECT_NEAR(lost.worst_probability, std::exp(1.0) / (319 + std::exp(1.0)), 2e-3) << more;
  }
}

// A fact among the sinks stays.
TEST_F(Induction, SinksKeepTheirFacts) {
  const Recall recall = make_recall(600, 0, 10);
  expect_recalled("streaming:sinks=16,window=40", recall);
  EXPECT_NE(ask("streaming:sinks=4,window=52", recall).tokens, recall.value);
}

}  // namespace
}  // namespace kvasir::test
