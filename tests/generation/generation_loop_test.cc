// A generation does step by step what the loop that it replaced did, and goes on the same after any interruption.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "generation/generation.h"
#include "generation/special_floats.h"
#include "text/utf8.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::byte_token;
using test::byte_tokens;
using test::kInf;

using Tokens = std::vector<TokenId>;
using Logits = std::vector<float>;

class GenerationLoopTest : public ::testing::Test {
 protected:
  GenerationLoopTest() : tokenizer_(test::tokenizer_of(test::byte_vocabulary())) {}

  std::unique_ptr<Tokenizer> tokenizer_;
};

// Stands for a model: random logits that depend on the newest tokens, for the bytes of a few characters and an end
// token.
class Invented {
 public:
  explicit Invented(unsigned seed) : seed_(seed) {}

  Logits logits(const Tokens& context) const {
    std::uint64_t hash = seed_;
    for (std::size_t i = context.size() > 3 ? context.size() - 3 : 0; i < context.size(); ++i)
      hash = hash * 1000003 + static_cast<std::uint64_t>(context[i]) + 17;
    std::mt19937_64 random(hash);
    std::normal_distribution<float> normal(0.0F, 1.5F);
    Logits logits(259, -kInf);
    for (const char c : std::string_view("abcab \xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80"))
      logits[static_cast<std::size_t>(byte_token(c))] = normal(random);
    logits[2] = normal(random) - 3.0F;  // </s>
    return logits;
  }

 private:
  std::uint64_t seed_;
};

struct Written {
  Tokens tokens;
  std::vector<std::string> pieces;
  std::optional<FinishReason> reason;
  std::optional<TokenId> end_token;
  bool mid_character = false;

  bool operator==(const Written&) const = default;
};

struct Request {
  GenerateOptions options;
  std::vector<std::string> template_stops;
  Tokens prompt;
  Invented model{0};
  std::size_t context = 1000;        // tokens there may be
  std::size_t most_pieces = 100000;  // the caller's callback returns false with this many
};

// The loop as the engine had it before there was a Generation: what it must do, step by step.
Written by_definition(const Tokenizer& tokenizer, const Request& request) {
  Written written;
  Tokens context = request.prompt;
  Sampler sampler(request.options.sampling);
  for (const TokenId token : context) sampler.observe(token);
  std::vector<std::string> stops = request.options.stop;
  stops.insert(stops.end(), request.template_stops.begin(), request.template_stops.end());
  StopMatcher matcher(stops);
  TokenStream stream(tokenizer, false);
  bool wanted = true;
  const auto show = [&](const std::string& text) {
    written.pieces.push_back(text);
    wanted = written.pieces.size() < request.most_pieces;
  };
  const auto emit = [&](std::string_view piece) {
    const std::string text = matcher.push(piece);
    if (!text.empty()) show(text);
  };
  for (;;) {
    if (matcher.stopped()) {
      written.reason = FinishReason::kStop;
      break;
    }
    if (!wanted) {
      written.reason = FinishReason::kCancelled;
      break;
    }
    if (static_cast<std::int64_t>(written.tokens.size()) >= request.options.max_tokens) {
      written.reason = FinishReason::kLength;
      break;
    }
    const TokenId token = sampler.sample(request.model.logits(context));
    if (!request.options.ignore_eos && tokenizer.is_end(token)) {
      written.end_token = token;
      written.reason = FinishReason::kEnd;
      break;
    }
    if (context.size() >= request.context) {
      written.reason = FinishReason::kContext;
      break;
    }
    context.push_back(token);
    sampler.observe(token);
    written.tokens.push_back(token);
    emit(stream.push(token));
  }
  const std::string incomplete = stream.flush();
  written.mid_character = !incomplete.empty();
  if (wanted && written.reason != FinishReason::kStop) {
    emit(incomplete);
    const std::string rest = wanted ? matcher.flush() : std::string();
    if (!rest.empty()) show(rest);
  }
  return written;
}

// The same with a Generation. `visit` is called at every point where the generation may be suspended, and may replace
// it.
Written by_generation(const Tokenizer& tokenizer, const Request& request,
                      const std::function<void(Generation&)>& visit = {}) {
  Written written;
  Tokens context = request.prompt;
  Generation generation(tokenizer, request.options, request.template_stops, request.prompt);
  const auto show = [&](const std::string& text) {
    if (text.empty()) return true;
    written.pieces.push_back(text);
    return written.pieces.size() < request.most_pieces;
  };
  const auto pause = [&] {
    if (visit) visit(generation);
  };
  for (;;) {
    pause();
    const auto token = generation.push(request.model.logits(context));
    EXPECT_TRUE(token.ok());
    pause();
    if (!*token) break;
    if (context.size() >= request.context) {
      generation.finish(FinishReason::kContext);
      pause();
      break;
    }
    context.push_back(**token);
    written.tokens.push_back(*generation.pending());
    if (!show(generation.accept(*generation.pending()))) generation.finish(FinishReason::kCancelled);
  }
  written.reason = generation.finish_reason();
  written.end_token = generation.end_token();
  written.mid_character = generation.mid_character();
  for (std::string text = generation.flush(); !text.empty() && show(text);) {
    pause();
    text = generation.flush();
  }
  std::string all;
  for (const std::string& piece : written.pieces) all += piece;
  EXPECT_EQ(generation.text(), all);
  EXPECT_EQ(generation.tokens(), static_cast<std::int64_t>(written.tokens.size()));
  EXPECT_FALSE(find_invalid_utf8(all));
  return written;
}

Request random_request(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Request request;
  request.model = Invented(seed);
  request.prompt = byte_tokens("abc");
  request.options.max_tokens = pick(0, 60);
  request.options.ignore_eos = pick(0, 3) == 0;
  static const std::vector<std::string> kStops = {"ab",           "abc",     "cab ", "aaa",     " a\u00E9",
                                                  "\u00E9\uFFFD", "\uFFFDa", "ca",   "b\uFFFD", "bbcc"};
  for (int n = pick(0, 2); n > 0; --n)
    request.options.stop.push_back(kStops[static_cast<std::size_t>(pick(0, static_cast<int>(kStops.size()) - 1))]);
  if (pick(0, 3) == 0) request.template_stops = {"cc b", "a\u00E9"};
  request.options.sampling = {.temperature = pick(0, 4) == 0 ? 0.0F : 1.0F,
                              .top_k = pick(0, 1) * 8,
                              .top_p = 0.97F,
                              .min_p = 0.0F,
                              .repetition_penalty = 1.1F,
                              .frequency_penalty = 0.2F,
                              .presence_penalty = pick(0, 1) == 0 ? 0.0F : 0.3F,
                              .penalty_window = pick(0, 12),
                              .seed = seed};
  if (pick(0, 4) == 0) request.context = static_cast<std::size_t>(pick(3, 40));
  if (pick(0, 4) == 0) request.most_pieces = static_cast<std::size_t>(pick(1, 20));
  return request;
}

TEST_F(GenerationLoopTest, DoesWhatTheLoopDid) {
  std::map<FinishReason, int> reasons;
  int mid_characters = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Request request = random_request(seed);
    const Written want = by_definition(*tokenizer_, request);
    ASSERT_EQ(by_generation(*tokenizer_, request), want) << seed;
    ++reasons[*want.reason];
    mid_characters += want.mid_character ? 1 : 0;
  }
  for (const FinishReason reason : {FinishReason::kEnd, FinishReason::kLength, FinishReason::kStop,
                                    FinishReason::kContext, FinishReason::kCancelled})
    EXPECT_GT(reasons[reason], 40) << finish_reason_name(reason);
  EXPECT_GT(mid_characters, 40);
}

// Exported and imported at one point or at all of them, it writes the same.
TEST_F(GenerationLoopTest, SuspendedAnywhereItGoesOnTheSame) {
  int held = 0;
  int incomplete = 0;
  int pending = 0;
  int finished = 0;
  const auto swap = [&](Generation& generation) {
    const GenerationState state = generation.state();
    held += state.matcher.held.empty() ? 0 : 1;
    incomplete += state.stream.pending.empty() ? 0 : 1;
    pending += state.pending ? 1 : 0;
    finished += state.finish_reason ? 1 : 0;
    auto other = Generation::from_state(*tokenizer_, state);
    ASSERT_TRUE(other.ok()) << other.status().message();
    generation = std::move(*other);
  };
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Request request = random_request(seed);
    int points = 0;
    const Written want = by_generation(*tokenizer_, request, [&](Generation&) { ++points; });
    ASSERT_EQ(by_generation(*tokenizer_, request, swap), want) << seed;
    for (int at = 0; at < points; ++at) {
      int point = 0;
      const Written got = by_generation(*tokenizer_, request, [&](Generation& generation) {
        if (point++ == at) swap(generation);
      });
      ASSERT_EQ(got, want) << seed << " at " << at;
    }
  }
  for (const int seen : {held, incomplete, pending, finished}) EXPECT_GT(seen, 100);
}

TEST_F(GenerationLoopTest, CopiesGoOnAloneAndReseededOnesDiffer) {
  Request request = random_request(5);
  request.options = {.max_tokens = 40, .ignore_eos = true, .sampling = {.temperature = 2, .seed = 3}};
  const auto finish = [&](Generation generation, Tokens context) {
    while (const std::optional<TokenId> token = *generation.push(request.model.logits(context))) {
      context.push_back(*token);
      generation.accept(*token);
    }
    return context;
  };
  Generation trunk(*tokenizer_, request.options, {}, request.prompt);
  Tokens context = request.prompt;
  for (int i = 0; i < 10; ++i) {
    context.push_back(**trunk.push(request.model.logits(context)));
    trunk.accept(context.back());
  }
  Generation other = trunk;
  other.become(1, 4);
  const Tokens first = finish(trunk, context);
  EXPECT_EQ(first.size(), request.prompt.size() + 40);
  EXPECT_EQ(finish(trunk, context), first);
  EXPECT_NE(finish(other, context), first);
  EXPECT_EQ(other.state().sampler.options.seed, 4U);
}

// A copy holds the text that it is forced to write, and no other's.
TEST_F(GenerationLoopTest, ACopyHoldsItsOwnForcedText) {
  const std::vector<Tokens> texts = {byte_tokens("one"), byte_tokens("three"), byte_tokens("x")};
  const Generation first(*tokenizer_, {.forced_texts = texts}, {}, {});
  for (std::size_t sample = 0; sample < texts.size(); ++sample) {
    Generation copy = first;
    if (sample > 0) copy.become(sample, sample);
    Tokens written;
    while (const std::optional<TokenId> token = *copy.push(Logits(259, 0.0F))) {
      written.push_back(*token);
      copy.accept(*token);
    }
    EXPECT_EQ(written, texts[sample]);
    EXPECT_EQ(copy.state().forced.size(), sample > 0 ? 1U : texts.size());
    ASSERT_TRUE(Generation::from_state(*tokenizer_, copy.state()).ok());
  }
  EXPECT_EQ(first.state().forced, texts);
}

// Suspended in between or not, a token that could not be run is drawn again.
TEST_F(GenerationLoopTest, ADroppedTokenIsDrawnAgain) {
  for (const bool suspended : {false, true}) {
    Generation one(*tokenizer_, {.sampling = {.top_k = 0, .seed = 5}}, {}, {});
    const Logits flat(259, 0.0F);
    const auto before = one.state().sampler.random;
    ASSERT_TRUE(one.push(flat)->has_value());
    if (suspended) one = *Generation::from_state(*tokenizer_, one.state());
    one.finish(FinishReason::kKvMemory);
    EXPECT_EQ(one.state().sampler.random, before);
  }
}

TEST_F(GenerationLoopTest, DamagedStatesAreRefused) {
  Generation one(*tokenizer_, {.max_tokens = 20, .stop = {"STOP"}, .sampling = {.presence_penalty = 1, .seed = 1}}, {},
                 {});
  for (const TokenId token : byte_tokens("a ST")) {
    Logits logits(259, -kInf);
    logits[static_cast<std::size_t>(token)] = 0;
    ASSERT_EQ(**one.push(logits), token);
    one.accept(token);
  }
  ASSERT_TRUE(Generation::from_state(*tokenizer_, one.state()).ok());
  const std::vector<std::function<void(GenerationState&)>> damages = {
      [](GenerationState& s) { s.max_tokens = -2; },
      [](GenerationState& s) { s.max_tokens = 3; },
      [](GenerationState& s) { s.tokens = -1; },
      [](GenerationState& s) { s.max_tokens = 4, s.pending = 5; },
      [](GenerationState& s) { s.stops.emplace_back(); },
      [](GenerationState& s) { s.stops = {"other"}; },
      [](GenerationState& s) { s.matcher.held = "STOP"; },
      [](GenerationState& s) { s.matcher.held = "aST"; },
      [](GenerationState& s) { s.matcher.stopped = true; },
      [](GenerationState& s) {
        s.matcher = {"", true};
      },
      [](GenerationState& s) { s.finish_reason = FinishReason::kStop; },
      [](GenerationState& s) { s.finish_reason = FinishReason::kEnd; },
      [](GenerationState& s) { s.finish_reason = FinishReason::kEnd, s.end_token = 5; },
      [](GenerationState& s) { s.finish_reason = static_cast<FinishReason>(17); },
      [](GenerationState& s) { s.finish_reason = FinishReason::kLength, s.pending = 5; },
      [](GenerationState& s) { s.end_token = 2; },
      [](GenerationState& s) { s.logprobs = 101; },
      [](GenerationState& s) { s.logprobs = 0; },
      [](GenerationState& s) { s.choices.emplace_back(); },
      [](GenerationState& s) { s.pending = 259; },
      [](GenerationState& s) { s.pending = -1; },
      [](GenerationState& s) { s.text = "\xFF"; },
      [](GenerationState& s) { s.stream.pending = "a"; },
      [](GenerationState& s) { s.stream.pending = "\xE4\xB8\x96"; },
      [](GenerationState& s) { s.stream.pending = "\xE4\xE4"; },
      [](GenerationState& s) { s.sampler.options.top_p = 0; },
      [](GenerationState& s) { s.sampler.random = {}; },
      [](GenerationState& s) { s.sampler.recent.resize(65); },
      [](GenerationState& s) { s.sampler.options.presence_penalty = 0; },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    GenerationState state = one.state();
    damages[i](state);
    EXPECT_EQ(Generation::from_state(*tokenizer_, state).status().code(), StatusCode::kDataLoss) << i;
  }
}

}  // namespace
}  // namespace kvasir
