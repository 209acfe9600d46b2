// Needle: the prompts, and the answers of a model of known recall.
#include "eval/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "model/vocabulary_from_gguf.h"
#include "support/engine_fixture.h"
#include "support/induction_model.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

Vocabulary small_model_vocabulary() {
  const auto file = gguf::File::open(small_model(), {.header_only = true});
  EXPECT_TRUE(file.ok());
  auto vocabulary = vocabulary_from_gguf(*file);
  EXPECT_TRUE(vocabulary.ok());
  return *vocabulary;
}

std::string tale() {
  std::ifstream file(source_dir() + "/examples/the-lamplighter.txt");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class Needle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = new TemporaryFile(make_induction_model({.vocabulary = small_model_vocabulary(), .dtype = "f16"}));
    model_ = load(file_->path(), {});
  }
  static void TearDownTestSuite() {
    model_.reset();
    delete file_;
  }

  static Result<NeedlePrompts> make(NeedleOptions options, const std::string& text = tale()) {
    return NeedlePrompts::create(*model_->tokenizer, text, std::move(options));
  }
  static std::string decode(std::span<const TokenId> tokens) {
    std::string text;
    for (const TokenId token : tokens) text += model_->tokenizer->bytes_of(token);
    return text;
  }
  static std::span<const TokenId> part(const std::vector<TokenId>& tokens, std::int64_t begin, std::int64_t end) {
    return std::span(tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  static TemporaryFile* file_;
  static std::shared_ptr<LoadedModel> model_;
};
TemporaryFile* Needle::file_ = nullptr;
std::shared_ptr<LoadedModel> Needle::model_;

TEST_F(Needle, PromptsAreWhatTheyShouldBe) {
  const auto prompts = make({.lengths = {100, 333, 1500}, .depths = {0, 0.1, 0.5, 0.9, 1}, .trials = 5});
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  const std::string text = tale();
  for (std::size_t length = 0; length < 3; ++length)
    for (int trial = 0; trial < 5; ++trial) {
      std::int64_t last_at = 0;
      for (std::size_t depth = 0; depth < 5; ++depth) {
        SCOPED_TRACE(testing::Message() << length << " " << depth << " " << trial);
        const NeedlePrompt needle = prompts->prompt(length, depth, trial);
        const auto size = static_cast<std::int64_t>(needle.prompt.size());
        EXPECT_EQ(size, prompts->options().lengths[length]);
        EXPECT_EQ(needle.prompt.front(), 1);
        const std::string value = decode(needle.answer);
        EXPECT_EQ(value.size(), 5u);
        EXPECT_EQ(value.find_first_not_of("0123456789"), std::string::npos) << value;

        const std::string before = decode(part(needle.prompt, 1, needle.fact_at));
        const std::string behind = decode(part(needle.prompt, needle.fact_at, size));
        ASSERT_EQ(behind.substr(0, 26), "\nThe secret number of the ");
        const std::string key = behind.substr(26, behind.find(" is ") - 26);
        const std::string fact = "\nThe secret number of the " + key + " is " + value + ".\n";
        const std::string ask = "\nThe secret number of the " + key + " is ";
        EXPECT_EQ(behind.substr(0, fact.size()), fact);
        ASSERT_TRUE(behind.ends_with(ask)) << behind;
        // What is left is one stretch of the text; the tokenizer puts a space in front of the whole text.
        const std::string filler = before + behind.substr(fact.size(), behind.size() - fact.size() - ask.size());
        EXPECT_NE((" " + text).find(filler), std::string::npos) << filler;

        // At the depth that was asked for, give or take a sentence; in order; behind the end of one.
        const auto fact_tokens = static_cast<double>(model_->tokenizer->encode(fact, {.add_special = false})->size());
        const auto ask_tokens = static_cast<double>(model_->tokenizer->encode(ask, {.add_special = false})->size());
        const double filler_tokens = static_cast<double>(size) - 1 - fact_tokens - ask_tokens;
        EXPECT_NEAR(static_cast<double>(needle.fact_at - 1), prompts->options().depths[depth] * filler_tokens,
                    filler_tokens / 8 + 3);
        EXPECT_GE(needle.fact_at, last_at);
        last_at = needle.fact_at;
        if (depth == 0) {
          EXPECT_EQ(needle.fact_at, 1);
        }
        if (depth == 4) {
          EXPECT_EQ(behind, fact + ask);
        }
        if (depth == 2 && length == 2) {
          const auto end = before.find_last_not_of("\"')");
          ASSERT_NE(end, std::string::npos);
          EXPECT_NE(std::string(".!?").find(before[end]), std::string::npos) << before.substr(before.size() - 20);
        }
      }
    }
}

TEST_F(Needle, PromptsDependOnSeedLengthAndTrialAlone) {
  const auto wide = make({.lengths = {200, 300}, .depths = {0, 0.5}, .trials = 4});
  const auto narrow = make({.lengths = {300}, .depths = {0.5}, .trials = 2});
  const auto other = make({.lengths = {300}, .depths = {0.5}, .trials = 2, .seed = 2});
  ASSERT_TRUE(wide.ok() && narrow.ok() && other.ok());
  for (int trial = 0; trial < 2; ++trial) {
    EXPECT_EQ(wide->prompt(1, 1, trial).prompt, narrow->prompt(0, 0, trial).prompt);
    EXPECT_EQ(wide->prompt(1, 0, trial).answer, narrow->prompt(0, 0, trial).answer);
    EXPECT_NE(narrow->prompt(0, 0, trial).prompt, other->prompt(0, 0, trial).prompt);
  }
  EXPECT_NE(wide->prompt(1, 1, 0).prompt, wide->prompt(1, 1, 1).prompt);
  EXPECT_NE(wide->prompt(1, 1, 0).answer, wide->prompt(1, 1, 1).answer);
}

TEST_F(Needle, TemplatesMayBeOthers) {
  const auto prompts = make({.lengths = {100},
                             .depths = {0.5},
                             .trials = 1,
                             .fact = "Remember: {key} = [{value}]; {key}!",
                             .ask = "What was {key}? It was"});
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  const NeedlePrompt needle = prompts->prompt(0, 0, 0);
  const std::string text = decode(needle.prompt);
  const auto at = text.find("\nRemember: ");
  ASSERT_NE(at, std::string::npos);
  const std::string key = text.substr(at + 11, text.find(" = [") - at - 11);
  EXPECT_NE(text.find("\nRemember: " + key + " = [" + decode(needle.answer) + "]; " + key + "!\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\nWhat was " + key + "? It was ")) << text;
}

TEST_F(Needle, RefusesWhatCannotBeAsked) {
  struct Case {
    NeedleOptions options;
    std::string says;
  };
  for (const Case& wrong : std::vector<Case>{
           {{.lengths = {}}, "at least one value"},
           {{.lengths = {0}}, "0 is outside"},
           {{.lengths = {-5}}, "-5 is outside"},
           {{.lengths = {std::int64_t{1} << 40}}, "is outside"},
           {{.lengths = {20}}, "20 tokens has no room"},
           {{.lengths = {5000}}, "give a longer text"},
           {{.lengths = {100}, .depths = {}}, "at least one value"},
           {{.lengths = {100}, .depths = {1.5}}, "1.5 is outside"},
           {{.lengths = {100}, .depths = {-0.1}}, "-0.1 is outside"},
           {{.lengths = {100}, .depths = {std::nan("")}}, "nan is outside"},
           {{.lengths = {100}, .trials = 0}, "trials=0 is outside"},
           {{.lengths = {100}, .fact = "no value of {key}"}, "must hold {value} once"},
           {{.lengths = {100}, .fact = "{key} {value} {value}"}, "must hold {value} once"},
           {{.lengths = {100}, .fact = "{value}"}, "does not name"},
           {{.lengths = {100}, .fact = "{key} {value} {other}"}, "braces"},
           {{.lengths = {100}, .ask = "{value} is what?"}, "at its end only"},
           {{.lengths = {100}, .ask = ""}, "nothing in front"},
           {{.lengths = {100}, .ask = " {value}"}, "nothing in front"},
           {{.lengths = {100}, .ask = "{value} or {value}"}, "at its end only"},
           {{.lengths = {100}, .ask = "{key}} {value}"}, "braces"},
           {{.lengths = {100}, .fact = "\xff {key} {value}"}, "UTF-8"},
       }) {
    const auto prompts = make(wrong.options);
    EXPECT_EQ(prompts.status().code(), StatusCode::kInvalidArgument) << wrong.says;
    EXPECT_NE(prompts.status().message().find(wrong.says), std::string::npos) << prompts.status().message();
  }
  EXPECT_FALSE(make({.lengths = {100}}, "").ok());
  EXPECT_FALSE(make({.lengths = {100}}, "\xff").ok());
  const auto speechless = make_spm_tokenizer(invented_vocabulary(40));  // most bytes are missing
  ASSERT_TRUE(speechless.ok());
  EXPECT_NE(NeedlePrompts::create(**speechless, tale(), {.lengths = {200}}).status().message().find("cannot write"),
            std::string::npos);

  const auto prompts = make({.lengths = {100}, .depths = {0.5}, .trials = 3});
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ(evaluate_needle(model_, model_->kv_shape, *prompts, "nope", 256, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(evaluate_needle(model_, model_->kv_shape, *prompts, "recompute:size=8", 256, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(evaluate_needle(model_, model_->kv_shape, *prompts, "full", -1, {}).status().code(),
            StatusCode::kInvalidArgument);
  int calls = 0;
  const auto stop_at_third = [&](std::int64_t, std::int64_t) { return ++calls < 3; };
  EXPECT_EQ(evaluate_needle(model_, model_->kv_shape, *prompts, "full", 32, stop_at_third).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(calls, 3);
}

TEST_F(Needle, FullRecallsEverything) {
  const auto prompts = make({.lengths = {150, 1024}, .trials = 3});
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  std::int64_t last = 0;
  std::int64_t total = 0;
  const auto result =
      evaluate_needle(model_, model_->kv_shape, *prompts, "full", 256, [&](std::int64_t done, std::int64_t all) {
        EXPECT_GT(done, last);
        last = done;
        total = all;
        return true;
      });
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LE(last, total);
  EXPECT_GT(last, total - 3);
  ASSERT_EQ(result->cells.size(), 10u);
  for (const NeedleCell& cell : result->cells) {
    EXPECT_EQ(cell.trials, 3);
    EXPECT_EQ(cell.exact, 1) << cell.length << " " << cell.depth;
    EXPECT_GT(cell.logprob, -0.01);
  }
  EXPECT_EQ(result->exact, 1);
  EXPECT_EQ(result->cells[0].length, 150);
  EXPECT_EQ(result->cells[9].length, 1024);
  EXPECT_EQ(result->cells[8].depth, 0.75);
  EXPECT_EQ(result->kept_max, 1024 + 4);
  EXPECT_EQ(result->codec, "f16");
}

// A window answers where it reaches back to the value, and nowhere else.
TEST_F(Needle, AWindowRecallsWhatItHolds) {
  const NeedleOptions options{.lengths = {300}, .depths = {0, 0.3, 0.5, 0.6, 0.7, 0.8, 1}, .trials = 4};
  const auto prompts = make(options);
  ASSERT_TRUE(prompts.ok());
  constexpr int kWindow = 100;
  const auto result = evaluate_needle(model_, model_->kv_shape, *prompts, "window:size=100", 256, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  int recalled = 0;
  for (std::size_t depth = 0; depth < options.depths.size(); ++depth) {
    int held = 0;
    for (int trial = 0; trial < options.trials; ++trial) {
      const NeedlePrompt needle = prompts->prompt(0, depth, trial);
      const std::vector<TokenId>& prompt = needle.prompt;
      const auto value =
          std::search(prompt.begin(), prompt.end(), needle.answer.begin(), needle.answer.end()) - prompt.begin();
      if (static_cast<int>(prompt.size()) - 1 - value <= kWindow) ++held;
    }
    const NeedleCell& cell = result->cells[depth];
    EXPECT_EQ(cell.exact, held / 4.0) << cell.depth;
    EXPECT_EQ(cell.logprob > -0.01, held == 4) << cell.depth << " " << cell.logprob;
    if (held == 0) {
      EXPECT_LT(cell.logprob, -4) << cell.depth;
    }
    recalled += held;
  }
  EXPECT_GT(recalled, 4);
  EXPECT_LT(recalled, 24);
  EXPECT_EQ(result->cells.front().exact, 0);
  EXPECT_EQ(result->cells.back().exact, 1);
  EXPECT_EQ(result->policy, "window:size=100");
}

// The scores are those of the logits, computed another way.
TEST(NeedleScores, AgreeWithTheLogits) {
  const TemporaryFile file(make_random_model({.context = 2048}));
  const auto model = load(file.path(), {.threads = 1, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const auto prompts =
      NeedlePrompts::create(*model->tokenizer, tale(),
                            {.lengths = {400}, .depths = {0.5}, .trials = 2, .fact = "{key}{value}", .ask = "{key}"});
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  for (const std::string policy : {"full", "streaming:sinks=4,window=60"}) {
    double sum = 0;
    for (int trial = 0; trial < 2; ++trial) {
      const NeedlePrompt needle = prompts->prompt(0, 0, trial);
      std::vector<TokenId> tokens = needle.prompt;
      tokens.insert(tokens.end(), needle.answer.begin(), needle.answer.end());
      const std::vector<float> logits = all_logits(*new_runner(model, policy), tokens, 50);
      for (std::size_t i = 0; i < needle.answer.size(); ++i) {
        const auto row = std::span(logits).subspan((needle.prompt.size() + i - 1) * 320, 320);
        double exponentials = 0;
        for (const float logit : row) exponentials += std::exp(static_cast<double>(logit));
        const auto target = static_cast<double>(row[static_cast<std::size_t>(needle.answer[i])]);
        sum += (target - std::log(exponentials)) / static_cast<double>(needle.answer.size()) / 2;
      }
    }
    const auto result = evaluate_needle(model, model->kv_shape, *prompts, policy, 256, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_NEAR(result->logprob, sum, 1e-6) << policy;
    EXPECT_EQ(result->exact, 0) << policy;
    EXPECT_LT(result->logprob, -2);
  }
}

}  // namespace
}  // namespace kvasir::test
