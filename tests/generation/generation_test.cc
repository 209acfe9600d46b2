// Generation without a model.
#include "generation/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "generation/special_floats.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::byte_token;
using test::byte_tokens;
using test::kInf;
using test::kNan;

using Tokens = std::vector<TokenId>;
using Logits = std::vector<float>;

class GenerationTest : public ::testing::Test {
 protected:
  GenerationTest() : tokenizer_(test::tokenizer_of(test::byte_vocabulary())) {}

  Logits wanting(TokenId token) const {
    Logits logits(tokenizer_->vocabulary().pieces.size(), 0.0F);
    logits[static_cast<std::size_t>(token)] = 1.0F;
    return logits;
  }

  Generation generation(GenerateOptions options, const std::vector<std::string>& template_stops = {},
                        const Tokens& newest = {}) const {
    options.sampling.temperature = 0;
    return {*tokenizer_, options, template_stops, newest};
  }

  // Pushes and accepts tokens until the generation has finished; returns the text that accept() gave.
  std::string write(Generation& generation, const Tokens& tokens) const {
    std::string text;
    for (const TokenId token : tokens) {
      const auto next = generation.push(wanting(token));
      EXPECT_TRUE(next.ok());
      if (!*next) break;
      EXPECT_EQ(**next, token);
      text += generation.accept(**next);
    }
    return text;
  }

  static std::string flush(Generation& generation) {
    std::string all;
    for (std::string text = generation.flush(); !text.empty(); text = generation.flush()) all += text;
    return all;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(GenerationTest, TheEndTokenEndsAndIsNotRun) {
  const TokenId eos = *tokenizer_->vocabulary().eos;
  Generation one = generation({});
  EXPECT_EQ(write(one, byte_tokens("Hi!")), "Hi!");
  const auto next = one.push(wanting(eos));
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(*next);
  EXPECT_EQ(one.finish_reason(), FinishReason::kEnd);
  EXPECT_EQ(one.end_token(), eos);
  EXPECT_EQ(one.tokens(), 3);
  EXPECT_EQ(one.text(), "Hi!");
  EXPECT_FALSE(*one.push(wanting(byte_token('x')))) << "stays finished";
  one.finish(FinishReason::kCancelled);
  EXPECT_EQ(one.finish_reason(), FinishReason::kEnd) << "the first reason stays";
  EXPECT_EQ(flush(one), "");
}

TEST_F(GenerationTest, IgnoredEndTokensAreRun) {
  Generation one = generation({.max_tokens = 2, .ignore_eos = true});
  EXPECT_EQ(write(one, {*tokenizer_->vocabulary().eos, byte_token('x')}), "x");
  EXPECT_EQ(one.tokens(), 2);
  EXPECT_FALSE(*one.push(wanting(byte_token('y'))));
  EXPECT_EQ(one.finish_reason(), FinishReason::kLength);
  EXPECT_FALSE(one.end_token());
}

// User-defined tokens spelt like control tokens have no text, but a stop string may name one.
TEST_F(GenerationTest, MarkersHaveNoText) {
  Vocabulary vocabulary = test::byte_vocabulary();
  Tokens markers;
  for (const char* piece : {"<|user|>", "<\uFF5CUser\uFF5C>", "<think>", "<||>"}) {
    markers.push_back(static_cast<TokenId>(vocabulary.pieces.size()));
    vocabulary.pieces.emplace_back(piece);
    vocabulary.scores.push_back(0);
    vocabulary.kinds.push_back(TokenKind::kUserDefined);
  }
  tokenizer_ = test::tokenizer_of(std::move(vocabulary));
  const auto written = [&](const GenerateOptions& options) {
    Generation one = generation(options);
    std::string text;
    for (const TokenId token : {byte_token('a'), markers[0], byte_token('b'), markers[1], markers[2], markers[3]}) {
      if (one.finished()) break;
      EXPECT_EQ(**one.push(wanting(token)), token);
      text += one.accept(token);
    }
    if (!one.finished()) one.finish(FinishReason::kLength);
    return std::pair(text + flush(one), *one.finish_reason());
  };
  EXPECT_EQ(written({}), std::pair(std::string("ab<think><||>"), FinishReason::kLength));
  EXPECT_EQ(written({.stop = {"<|user|>"}}), std::pair(std::string("a"), FinishReason::kStop));
  EXPECT_EQ(written({.stop = {"a<|user|>"}}).second, FinishReason::kLength);
  EXPECT_EQ(written({.stop = {"ac", "<|user|>"}}), std::pair(std::string("a"), FinishReason::kStop));
}

// Log-probabilities are those of the logits as they came; a token that is drawn but not run has none.
TEST_F(GenerationTest, ReportsLogProbabilities) {
  GenerateOptions options{.logprobs = 2};
  options.sampling = {.temperature = 0, .presence_penalty = 5};
  Generation one(*tokenizer_, options, {}, byte_tokens("a"));
  Logits logits(tokenizer_->vocabulary().pieces.size(), -kInf);
  const auto at = [&](char c) -> float& { return logits[static_cast<std::size_t>(byte_token(c))]; };
  at('a') = std::log(0.5F), at('b') = std::log(0.25F), at('c') = std::log(0.25F);
  ASSERT_EQ(**one.push(logits), byte_token('b')) << "the penalty is on a";
  one.accept(byte_token('b'));
  ASSERT_EQ(one.choices().size(), 1U);
  const GeneratedToken generated = one.choices().front();
  EXPECT_EQ(generated.token.id, byte_token('b'));
  EXPECT_EQ(generated.token.bytes, "b");
  EXPECT_NEAR(generated.token.log_probability, std::log(0.25), 1e-6);
  ASSERT_EQ(generated.likeliest.size(), 2U);
  EXPECT_EQ(generated.likeliest[0].id, byte_token('a'));
  EXPECT_NEAR(generated.likeliest[0].log_probability, std::log(0.5), 1e-6);
  EXPECT_EQ(generated.likeliest[1].id, byte_token('b'));

  ASSERT_TRUE(one.push(logits)->has_value());
  EXPECT_EQ(one.choices().size(), 2U);
  Generation other = *Generation::from_state(*tokenizer_, one.state());
  for (Generation* each : {&one, &other}) {
    each->finish(FinishReason::kContext);
    EXPECT_EQ(each->choices().size(), 1U);
  }
  EXPECT_TRUE(Generation::from_state(*tokenizer_, one.state()).ok());
  for (const int wrong : {-2, 101}) EXPECT_FALSE(validate(GenerateOptions{.logprobs = wrong}).ok());
}

TEST_F(GenerationTest, LengthIsCheckedBeforeAnyTokenIsChosen) {
  Generation none = generation({.max_tokens = 0});
  EXPECT_FALSE(*none.push(wanting(*tokenizer_->vocabulary().eos)));
  EXPECT_EQ(none.finish_reason(), FinishReason::kLength);
  Generation two = generation({.max_tokens = 2});
  write(two, byte_tokens("ab"));
  EXPECT_FALSE(two.finished());
  EXPECT_FALSE(*two.push(wanting(*tokenizer_->vocabulary().eos)));
  EXPECT_EQ(two.finish_reason(), FinishReason::kLength);
}

TEST_F(GenerationTest, StopStringsAcrossTokens) {
  Generation own = generation({.stop = {"STOP", "never"}});
  EXPECT_EQ(write(own, byte_tokens("go on STOPPED")), "go on ");
  EXPECT_EQ(own.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(own.tokens(), 10) << "no token behind the stop string";
  EXPECT_EQ(flush(own), "");
  EXPECT_EQ(own.text(), "go on ");
  Generation of_template = generation({.stop = {"never"}}, {"\nUser:"});
  EXPECT_EQ(write(of_template, byte_tokens("a\nUse\nUser: b")), "a\nUse");
  EXPECT_EQ(of_template.finish_reason(), FinishReason::kStop);
}

TEST_F(GenerationTest, AStopStringBeatsACancelAndACancelBeatsTheLength) {
  Generation stopped = generation({.stop = {"x"}});
  write(stopped, byte_tokens("x"));
  stopped.finish(FinishReason::kCancelled);
  EXPECT_EQ(stopped.finish_reason(), FinishReason::kStop);
  Generation cancelled = generation({.max_tokens = 1});
  write(cancelled, byte_tokens("x"));
  cancelled.finish(FinishReason::kCancelled);
  EXPECT_FALSE(*cancelled.push(wanting(byte_token('y'))));
  EXPECT_EQ(cancelled.finish_reason(), FinishReason::kCancelled);
}

TEST_F(GenerationTest, FinishFromOutsideDropsThePendingToken) {
  for (const FinishReason reason : {FinishReason::kContext, FinishReason::kKvMemory, FinishReason::kCancelled}) {
    Generation one = generation({.stop = {"STOP"}});
    EXPECT_EQ(write(one, byte_tokens("a ST")), "a ");
    const auto next = one.push(wanting(byte_token('x')));
    ASSERT_TRUE(*next);
    EXPECT_EQ(one.pending(), **next);
    one.finish(reason);
    EXPECT_FALSE(one.pending());
    EXPECT_EQ(one.finish_reason(), reason);
    EXPECT_EQ(one.tokens(), 4);
    EXPECT_FALSE(*one.push(wanting(byte_token('x'))));
    EXPECT_EQ(flush(one), reason == FinishReason::kCancelled ? "" : "ST");
    EXPECT_EQ(one.text(), reason == FinishReason::kCancelled ? "a " : "a ST");
  }
}

TEST_F(GenerationTest, LogitsThatAreNoNumbersAreAnError) {
  Generation one = generation({});
  write(one, byte_tokens("a"));
  EXPECT_EQ(one.push(Logits(300, kNan)).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(one.pending());
  EXPECT_EQ(one.text(), "a");
}

// An incomplete character is replaced, and passes through the search for stop strings like any text.
TEST_F(GenerationTest, HeldBackTextIsFlushedInPieces) {
  Generation one = generation({.max_tokens = 2, .stop = {"STOP", "\uFFFDz"}});
  EXPECT_EQ(write(one, byte_tokens("S\xE4")), "");
  EXPECT_TRUE(one.mid_character());
  ASSERT_FALSE(*one.push(wanting(0)));
  EXPECT_TRUE(one.mid_character());
  EXPECT_EQ(one.flush(), "S");
  EXPECT_FALSE(one.mid_character());
  EXPECT_EQ(one.flush(), "\uFFFD");
  EXPECT_EQ(one.flush(), "");
  EXPECT_EQ(one.text(), "S\uFFFD");
  Generation stopped = generation({.max_tokens = 2, .stop = {"a\uFFFD"}});
  write(stopped, byte_tokens("a\xE4"));
  ASSERT_FALSE(*stopped.push(wanting(0)));
  EXPECT_EQ(stopped.flush(), "") << "the flush completes the stop string";
  EXPECT_EQ(stopped.finish_reason(), FinishReason::kLength);
}

TEST_F(GenerationTest, TheContextCountsForPenalties) {
  const GenerateOptions options{.sampling = {.presence_penalty = 5.0F}};
  Generation fresh = generation(options);
  EXPECT_EQ(**fresh.push(wanting(7)), 7);
  Generation seen = generation(options, {}, {7});
  EXPECT_NE(**seen.push(wanting(7)), 7);
}

TEST_F(GenerationTest, OptionsAreValidated) {
  EXPECT_TRUE(validate(GenerateOptions{}).ok());
  for (const GenerateOptions& wrong :
       {GenerateOptions{.max_tokens = -2}, GenerateOptions{.stop = {"a", ""}},
        GenerateOptions{.sampling = {.temperature = -1}}, GenerateOptions{.sampling = {.top_p = 0}}})
    EXPECT_EQ(validate(wrong).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
