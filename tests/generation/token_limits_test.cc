// What a request excludes: least tokens, stop tokens, allowed tokens and bad words.
#include "generation/token_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "generation/generation.h"
#include "generation/special_floats.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::byte_token;
using test::byte_tokens;

class TokenLimitsTest : public ::testing::Test {
 protected:
  TokenLimitsTest() : tokenizer_(test::tokenizer_of(test::byte_vocabulary())) {}

  // Logits of a model that prefers the tokens in this order, and all others less.
  std::vector<float> preferring(const std::vector<TokenId>& tokens) const {
    std::vector<float> logits(tokenizer_->vocabulary().pieces.size(), 0);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      logits[static_cast<std::size_t>(tokens[i])] = static_cast<float>(100 - i);
    return logits;
  }
  TokenId eos() const { return *tokenizer_->vocabulary().eos; }

  Generation greedy(GenerateOptions options) const {
    options.sampling.temperature = 0;
    EXPECT_TRUE(validate(options, 259).ok()) << validate(options, 259).message();
    return {*tokenizer_, options, {}, {}};
  }

  // Pushes the logits until the generation ends, at most 100 times; exports and imports it before each.
  std::string write(Generation& generation, const std::vector<float>& logits) const {
    for (int i = 0; i < 100; ++i) {
      auto copy = Generation::from_state(*tokenizer_, generation.state());
      EXPECT_TRUE(copy.ok()) << copy.status().message();
      generation = std::move(*copy);
      const auto token = generation.push(logits);
      EXPECT_TRUE(token.ok()) << token.status().message();
      if (!token.ok() || !*token) break;
      generation.accept(**token);
    }
    if (generation.finished())
      while (!generation.flush().empty()) {
      }
    return generation.text();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TokenLimitsTest, StopTokensEndTheTextAndAreNotInIt) {
  const TokenId x = byte_token('x');
  for (const int logprobs : {-1, 0}) {
    // The text that a stop string might still begin with is not lost.
    Generation one = greedy({.stop = {"ab!"}, .stop_tokens = {byte_token('y'), x}, .logprobs = logprobs});
    for (const char c : {'a', 'b'}) one.accept(**one.push(preferring({byte_token(c)})));
    EXPECT_EQ(one.text(), "");
    EXPECT_EQ(write(one, preferring({x})), "ab");
    EXPECT_EQ(one.finish_reason(), FinishReason::kStop);
    EXPECT_FALSE(one.end_token());
    const GenerateResult result = one.result();
    EXPECT_EQ(result.stop_token, x);
    EXPECT_EQ(result.tokens, 2);
    EXPECT_EQ(result.end_choice.has_value(), logprobs == 0);
    EXPECT_EQ(write(one, preferring({x})), "ab") << "stays finished, exported or not";
  }
}

TEST_F(TokenLimitsTest, AStopTokenThatIsTheEndTokenStops) {
  Generation one = greedy({.stop_tokens = {eos()}});
  write(one, preferring({eos()}));
  EXPECT_EQ(one.finish_reason(), FinishReason::kStop);
  Generation other = greedy({.ignore_eos = true, .stop_tokens = {eos()}});
  write(other, preferring({eos()}));
  EXPECT_EQ(other.finish_reason(), FinishReason::kStop);
}

TEST_F(TokenLimitsTest, NothingEndsATextTooEarly) {
  const auto logits = preferring({eos(), byte_token('s'), byte_token('a')});
  for (const std::int64_t least : {0, 1, 5}) {
    Generation one = greedy({.min_tokens = least, .stop_tokens = {byte_token('s')}});
    EXPECT_EQ(write(one, logits), std::string(static_cast<std::size_t>(least), 'a'));
    EXPECT_EQ(one.finish_reason(), FinishReason::kEnd);
    // A stop string must begin behind the least number of tokens.
    Generation two = greedy({.stop = {"aa"}, .min_tokens = least});
    EXPECT_EQ(write(two, preferring({byte_token('a')})), std::string(static_cast<std::size_t>(least), 'a'));
    EXPECT_EQ(two.finish_reason(), FinishReason::kStop);
    EXPECT_EQ(two.tokens(), least + 2);
  }
  Generation ignores = greedy({.max_tokens = 3, .ignore_eos = true, .min_tokens = 2});
  write(ignores, logits);
  EXPECT_EQ(ignores.tokens(), 3);
}

TEST_F(TokenLimitsTest, OnlyAllowedTokensAreDrawn) {
  GenerateOptions options{.max_tokens = 50, .allowed_tokens = byte_tokens("cab")};
  options.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 4};
  Generation one(*tokenizer_, options, {}, {});
  const std::string text = write(one, preferring({eos(), byte_token('z')}));
  EXPECT_EQ(text.size(), 50U);
  EXPECT_EQ(text.find_first_not_of("abc"), std::string::npos) << text;
}

TEST_F(TokenLimitsTest, BadWordsAreNotCompleted) {
  // In this vocabulary a word has a token for each byte, so the form behind a space has another length and does not
  // count, as in vLLM.
  const auto logits = preferring({byte_token('a'), byte_token('b'), byte_token('c')});
  Generation one = greedy({.max_tokens = 7, .bad_words = {"aa", "  aba"}});
  // SPM puts a space in front of a word that begins a text: that is how the word is banned.
  EXPECT_EQ(write(one, logits), "aaaaaaa");
  Vocabulary bpe = test::bpe_vocabulary();
  tokenizer_ = test::tokenizer_of(std::move(bpe));
  const auto of = [](char c) { return static_cast<TokenId>(static_cast<unsigned char>(c)); };
  std::vector<float> plain(257, 0);
  plain[static_cast<std::size_t>(of('a'))] = 3, plain[static_cast<std::size_t>(of('b'))] = 2;
  plain[static_cast<std::size_t>(of('c'))] = 1;
  const auto written = [&](std::vector<std::string> words) {
    GenerateOptions options{.max_tokens = 7, .bad_words = std::move(words)};
    options.sampling.temperature = 0;
    Generation each(*tokenizer_, options, {}, byte_tokens("a"));
    return write(each, plain);
  };
  EXPECT_EQ(written({"aa"}), "abababa") << "the prompt's token does not count";
  EXPECT_EQ(written({"aa", "  aba"}), "abbabba");
  EXPECT_EQ(written({"a"}), "bbbbbbb");
  EXPECT_EQ(written({"a", "b"}), "ccccccc");
}

TEST_F(TokenLimitsTest, AWordBehindASpaceIsAnotherToken) {
  Vocabulary bpe = test::bpe_vocabulary();
  const auto merge = [&](std::string left, std::string right) {
    bpe.merges.push_back(left + " " + right);
    return test::add_piece(&bpe, left + right);
  };
  const TokenId word = merge("h", "i");
  const TokenId spaced = merge("\u0120", "hi");
  tokenizer_ = test::tokenizer_of(std::move(bpe));
  TokenLimits limits(*tokenizer_, {.bad_words = {"hi"}});
  const std::vector<std::vector<TokenId>> want = {{word}, {spaced}};
  EXPECT_EQ(limits.state().bad_words, want);
  const TokenMask mask = limits.allowed(0, {});
  for (TokenId token = 0; token <= spaced; ++token)
    EXPECT_EQ(mask[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1,
              token == word || token == spaced ? 0U : 1U);
}

TEST_F(TokenLimitsTest, NothingLeftIsNamed) {
  Generation one = greedy({.stop_tokens = byte_tokens("a"), .allowed_tokens = byte_tokens("a")});
  EXPECT_FALSE(*one.push(preferring({})));
  EXPECT_EQ(one.finish_reason(), FinishReason::kStop);
  Generation none = greedy({.min_tokens = 3, .stop_tokens = byte_tokens("a"), .allowed_tokens = byte_tokens("a")});
  const auto refused = none.push(preferring({}));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("min_tokens"), std::string::npos);
  const std::vector<float> damaged(259, test::kNan);
  EXPECT_EQ(none.push(damaged).status().code(), StatusCode::kDataLoss);
}

// The mask, against sets.
TEST_F(TokenLimitsTest, MasksAreWhatSetsSay) {
  std::mt19937 random(3);
  const auto pick = [&](int most) { return static_cast<TokenId>(random() % static_cast<unsigned>(most)); };
  for (int round = 0; round < 300; ++round) {
    GenerateOptions options{.ignore_eos = round % 3 == 0, .min_tokens = pick(4)};
    for (int n = pick(3); n > 0; --n) options.stop_tokens.push_back(pick(259));
    for (int n = pick(2) * 40; n > 0; --n) options.allowed_tokens.push_back(pick(259));
    std::vector<std::uint64_t> others(static_cast<std::size_t>(pick(2)) * 5);
    for (std::uint64_t& word : others) word = random() * 0x100000001ULL;
    TokenLimits limits(*tokenizer_, options);
    for (std::int64_t tokens = 0; tokens < 5; ++tokens) {
      const TokenMask mask = limits.allowed(tokens, others);
      for (TokenId token = 0; token < 259; ++token) {
        const auto in = [&](TokenMask bits) {
          return bits.empty() || (bits[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
        };
        const auto listed = [&](const std::vector<TokenId>& list) { return std::ranges::count(list, token) > 0; };
        const bool ends = (token == 2 && !options.ignore_eos) || listed(options.stop_tokens);
        const bool want = in(others) && (options.allowed_tokens.empty() || listed(options.allowed_tokens)) &&
                          (tokens >= options.min_tokens || !ends);
        ASSERT_EQ(in(mask), want) << token;
      }
    }
  }
}

TEST_F(TokenLimitsTest, IncludedStopStringsAreShown) {
  const auto written = [&](bool include, const std::string& text) {
    Generation one = greedy({.stop = {"ab"}, .include_stop = include});
    for (const char c : text) {
      if (one.finished()) break;
      one.accept(**one.push(preferring({byte_token(c)})));
    }
    EXPECT_TRUE(Generation::from_state(*tokenizer_, one.state()).ok());
    return one.text();
  };
  EXPECT_EQ(written(false, "xabc"), "x");
  EXPECT_EQ(written(true, "xabc"), "xab");
}

TEST_F(TokenLimitsTest, OptionsAreChecked) {
  const auto about = [](const GenerateOptions& options) {
    const Status status = validate(options, 259);
    return status.settings().empty() ? std::string_view("none") : status.settings().front();
  };
  EXPECT_EQ(about({.min_tokens = 5}), "none");
  EXPECT_EQ(about({.max_tokens = 4, .min_tokens = 5}), "min_tokens");
  EXPECT_EQ(about({.min_tokens = -1}), "min_tokens");
  EXPECT_EQ(about({.stop_tokens = {259}}), "stop_token_ids");
  EXPECT_EQ(about({.allowed_tokens = {-1}}), "allowed_token_ids");
  EXPECT_EQ(about({.allowed_tokens = std::vector<std::int32_t>(65537)}), "allowed_token_ids");
  EXPECT_EQ(about({.stop_tokens = std::vector<std::int32_t>(1025)}), "stop_token_ids");
  EXPECT_EQ(about({.bad_words = {" "}}), "bad_words");
  EXPECT_EQ(about({.bad_words = {std::string(257, 'a')}}), "bad_words");
  EXPECT_EQ(about({.bad_words = {"\xFF"}}), "bad_words");
  EXPECT_EQ(about({.bad_words = std::vector<std::string>(129, "a")}), "bad_words");
  EXPECT_EQ(about({.stop = std::vector<std::string>(17, "a")}), "stop");
  EXPECT_EQ(about({.stop = {std::string(1025, 'a')}}), "stop");
  EXPECT_EQ(about({.max_tokens = kMostGenerated + 1}), "max_tokens");
}

TEST_F(TokenLimitsTest, DamagedStatesAreRefused) {
  const TokenLimits limits(*tokenizer_, {.stop_tokens = {5}, .allowed_tokens = {5, 6}, .bad_words = {"abc"}});
  const auto refused = [&](auto damage) {
    TokenLimitsState state = limits.state();
    damage(state);
    return TokenLimits::from_state(*tokenizer_, std::move(state)).status().code() == StatusCode::kDataLoss;
  };
  EXPECT_FALSE(refused([](TokenLimitsState&) {}));
  EXPECT_TRUE(refused([](TokenLimitsState& state) { state.min_tokens = -1; }));
  EXPECT_TRUE(refused([](TokenLimitsState& state) { state.stop_tokens = {9, 3}; }));
  EXPECT_TRUE(refused([](TokenLimitsState& state) { state.allowed.pop_back(); }));
  EXPECT_TRUE(refused([](TokenLimitsState& state) { state.bad_words.emplace_back(); }));
  EXPECT_TRUE(refused([](TokenLimitsState& state) { state.newest.assign(9, 5); }));
}

}  // namespace
}  // namespace kvasir
