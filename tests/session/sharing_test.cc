// What forks share, to the page; parallel samples and beams.
#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "generation/log_probabilities.h"
#include "scheduler/batch_runner.h"
#include "sequence/policy_cases.h"
#include "session/beam_search.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

RandomModelSpec sharing_spec() {
  RandomModelSpec spec = small_spec();
  spec.context = 4096;
  return spec;
}

// w beams over S tokens whose last `div` differ hold ceil(S/b) + (w-1) * (ceil(S/b) - floor((S-div)/b)) blocks of b.
TEST(Sharing, DivergedForksHoldWhatTheFormulaSays) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  for (const int slots : {16, 32, 64}) {
    const auto model = load(file.path(), {.threads = 2, .page_slots = slots});
    for (const int width : {1, 4, 7})
      for (const int tokens : {100, 512, 541})
        for (const int differ : {1, 50, 64}) {
          const auto cache = *new_cache(model, std::uint64_t{1} << 30);
          SequenceRunner trunk(model, cache, std::move(*make_policy("full")));
          const auto prompt = random_tokens(tokens - differ, sharing_spec().vocab, 1);
          ASSERT_TRUE(trunk.feed(prompt, 0, Logits::kNone, {}).ok());
          std::vector<std::unique_ptr<SequenceRunner>> beams;
          for (int b = 1; b < width; ++b) beams.push_back(std::move(*trunk.fork()));
          for (int b = 0; b < width; ++b) {
            SequenceRunner& beam = b == 0 ? trunk : *beams[static_cast<std::size_t>(b) - 1];
            const auto own = random_tokens(differ, sharing_spec().vocab, 10 + static_cast<std::uint64_t>(b));
            ASSERT_TRUE(beam.feed(own, 0, Logits::kNone, {}, Source::kGenerated).ok());
          }
          const auto ceil = [&](int n) { return (n + slots - 1) / slots; };
          const int blocks = ceil(tokens) + (width - 1) * (ceil(tokens) - (tokens - differ) / slots);
          EXPECT_EQ(cache->pool().in_use(), static_cast<std::uint64_t>(blocks * model->kv_shape.lanes()))
              << slots << ' ' << width << ' ' << tokens << ' ' << differ;
        }
  }
}

// Four beams over 2,048 tokens that diverge in the last 50: at most 1.1 times one sequence's pages.
TEST(Sharing, FourBeamsTakeLittleMoreThanOne) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  const auto model = load(file.path(), {.threads = 2, .page_slots = 16});
  for (const std::string policy : {"full", "streaming:sinks=4,window=2040", "h2o:budget=2047,recent=1000"}) {
    SCOPED_TRACE(policy);
    const auto cache = *new_cache(model, std::uint64_t{1} << 30);
    SequenceRunner trunk(model, cache, std::move(*make_policy(policy)));
    const auto prompt = random_tokens(1998, sharing_spec().vocab, 1);
    ASSERT_TRUE(trunk.feed(prompt, 0, Logits::kNone, {}).ok());
    std::vector<std::unique_ptr<SequenceRunner>> beams;
    for (int b = 0; b < 3; ++b) beams.push_back(std::move(*trunk.fork()));
    const auto continue_with = [&](SequenceRunner& beam, std::uint64_t seed) {
      const auto own = random_tokens(50, sharing_spec().vocab, seed);
      ASSERT_TRUE(beam.feed(own, 0, Logits::kNone, {}, Source::kGenerated).ok());
    };
    continue_with(trunk, 2);
    // Alone, with everything that the forks share counted as its own.
    std::uint64_t one = 0;
    for (int t = 0; t < trunk.sequence().tables(); ++t)
      one += static_cast<std::uint64_t>(trunk.sequence().table(t).columns().count() *
                                        trunk.sequence().table(t).pages().lanes());
    for (int b = 0; b < 3; ++b) continue_with(*beams[static_cast<std::size_t>(b)], 3 + static_cast<std::uint64_t>(b));
    if (policy != "full") {
      EXPECT_TRUE(beams[0]->counters().first_dropped.has_value()) << "nothing was dropped";
    }
    EXPECT_EQ(trunk.sequence().only_table().pages().slots_moved(), 0u) << "a compaction was due";
    const double ratio = static_cast<double>(cache->pool().in_use()) / static_cast<double>(one);
    RecordProperty("ratio", fmt::format("{:.3f}", ratio));
    EXPECT_LE(ratio, 1.1);
  }
}

struct Loaded {
  std::shared_ptr<LoadedModel> model;
  std::shared_ptr<KvCache> cache;
  std::unique_ptr<SequenceRunner> runner;
  std::vector<float> logits;
};

Loaded read_prompt(const std::string& path, const std::string& policy) {
  Loaded loaded;
  loaded.model = load(path, {.threads = 1, .page_slots = 16});
  loaded.cache = *new_cache(loaded.model, std::uint64_t{1} << 28);
  loaded.runner = std::make_unique<SequenceRunner>(loaded.model, loaded.cache, std::move(*make_policy(policy)));
  const auto prompt = random_tokens(90, loaded.model->config.vocabulary, 4);
  EXPECT_TRUE(loaded.runner
                  ->feed(prompt, 0, Logits::kLast,
                         [&](std::int64_t, int, std::span<const float> logits) {
                           loaded.logits.assign(logits.begin(), logits.end());
                           return true;
                         })
                  .ok());
  return loaded;
}

// A continuation of a fork of `base`.
struct Sample {
  Sample(const Loaded& base, const GenerateOptions& options)
      : text{std::move(*base.runner->whole().fork()), {}, base.logits, 0},
        task(&text, {}, Generation(*base.model->tokenizer, options, {}, {})) {}

  TextState text;
  Task task;
};

void run_samples(const Loaded& base, std::span<const std::unique_ptr<Sample>> samples) {
  BatchRunner runner(base.model, base.cache);
  for (;;) {
    std::vector<kvasir::Turn> turns;
    for (const auto& sample : samples)
      if (sample->task.prepare()) turns.push_back({&sample->task});
    if (turns.empty()) break;
    ASSERT_TRUE(runner.pass(turns).ok());
  }
  for (const auto& sample : samples) {
    ASSERT_TRUE(sample->task.status().ok());
    while (!sample->task.flush().empty()) {
    }
  }
}

// Each sample is what it would have been alone.
TEST(ParallelSamples, AreThoseOfEachSeedAlone) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  for (const std::string policy :
       {"full", "streaming:sinks=4,window=60", "h2o:budget=40,recent=10", "tova:budget=33"}) {
    SCOPED_TRACE(policy);
    Loaded base = read_prompt(file.path(), policy);
    const auto options = [](std::uint64_t seed) {
      GenerateOptions chosen;
      chosen.max_tokens = 25;
      chosen.ignore_eos = true;
      chosen.sampling.seed = seed;
      return chosen;
    };
    std::vector<std::unique_ptr<Sample>> samples;
    for (std::uint64_t s = 0; s < 5; ++s) samples.push_back(std::make_unique<Sample>(base, options(7 + s)));
    ASSERT_NO_FATAL_FAILURE(run_samples(base, samples));
    for (std::uint64_t s = 0; s < 5; ++s) {
      std::vector<std::unique_ptr<Sample>> alone;
      alone.push_back(std::make_unique<Sample>(base, options(7 + s)));
      ASSERT_NO_FATAL_FAILURE(run_samples(base, alone));
      EXPECT_EQ(samples[s]->task.generation().tokens(), 25);
      EXPECT_EQ(samples[s]->task.generation().text(), alone[0]->task.generation().text());
      EXPECT_TRUE(same_bits(samples[s]->text.logits, alone[0]->text.logits));
    }
    EXPECT_NE(samples[0]->task.generation().text(), samples[1]->task.generation().text());
  }
}

// A text of any length: the task of a session keeps the newest tokens only, that of a request all, to run them again.
TEST(ParallelSamples, OnlyTasksThatMayBeRecomputedKeepTheirTokens) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  const Loaded base = read_prompt(file.path(), "streaming:sinks=4,window=60");
  std::vector<std::unique_ptr<Sample>> samples;
  samples.push_back(std::make_unique<Sample>(base, GenerateOptions{.max_tokens = 30, .ignore_eos = true}));
  ASSERT_NO_FATAL_FAILURE(run_samples(base, samples));
  EXPECT_EQ(samples[0]->task.generation().tokens(), 30);
  EXPECT_EQ(samples[0]->text.newest.size(), 30u);
  EXPECT_EQ(samples[0]->task.known_tokens(), 0);

  BatchRunner runner(base.model, base.cache);
  TextState text;
  const auto prompt = random_tokens(20, sharing_spec().vocab, 3);
  Task task(&text, prompt, Generation(*base.model->tokenizer, {.max_tokens = 30, .ignore_eos = true}, {}, prompt));
  text.sequence = std::make_unique<Sequence>(base.model, base.cache, std::move(*make_policy("full")));
  while (task.prepare()) ASSERT_TRUE(runner.pass(task).ok());
  EXPECT_EQ(task.known_tokens(), 50);
  EXPECT_EQ(text.newest.size(), 50u);
}

// All continuations of a few tokens, scored one after the other without a search.
TEST(BeamSearch, OfFullWidthFindsTheBestOfAll) {
  RandomModelSpec spec = sharing_spec();
  spec.vocab = 8;  // so that 8^3 continuations can be listed
  spec.output_gain = 3;
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto cache = *new_cache(model, std::uint64_t{1} << 26);
  SequenceRunner runner(model, cache, std::move(*make_policy("full")));
  std::vector<float> logits;
  const auto keep = [&](std::int64_t, int, std::span<const float> of) {
    logits.assign(of.begin(), of.end());
    return true;
  };
  ASSERT_TRUE(runner.feed(random_tokens(20, spec.vocab, 4), 0, Logits::kLast, keep).ok());
  const std::vector<float> start = logits;
  std::vector<std::pair<double, std::vector<TokenId>>> all;
  for (TokenId a = 0; a < spec.vocab; ++a)
    for (TokenId b = 0; b < spec.vocab; ++b)
      for (TokenId c = 0; c < spec.vocab; ++c) {
        auto branch = std::move(*runner.fork());
        double sum = log_probability(start, a);
        ASSERT_TRUE(branch->feed(std::vector<TokenId>{a}, 0, Logits::kLast, keep, Source::kGenerated).ok());
        sum += log_probability(logits, b);
        ASSERT_TRUE(branch->feed(std::vector<TokenId>{b}, 0, Logits::kLast, keep, Source::kGenerated).ok());
        sum += log_probability(logits, c);
        all.push_back({sum, {a, b, c}});
      }
  std::ranges::sort(all, std::ranges::greater());
  BeamSearchOptions options;
  options.width = 64;  // every pair of tokens stays
  options.max_tokens = 3;
  options.ignore_eos = true;
  const auto beams =
      beam_search(runner.step(), std::move(*runner.whole().fork()), start, *model->tokenizer, options, {});
  ASSERT_TRUE(beams.ok()) << beams.status().message();
  ASSERT_EQ(beams->size(), 64u);
  for (std::size_t i = 0; i < beams->size(); ++i) {
    EXPECT_EQ((*beams)[i].tokens, all[i].second) << i;
    EXPECT_NEAR((*beams)[i].log_probability, all[i].first, 1e-9);
    EXPECT_NEAR((*beams)[i].score, all[i].first / 3, 1e-9);
  }
}

TEST(BeamSearch, AWidthOfOneIsGreedy) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  for (const std::string policy : {"full", "h2o:budget=40,recent=10"}) {
    Loaded base = read_prompt(file.path(), policy);
    GenerateOptions greedy;
    greedy.max_tokens = 30;
    greedy.ignore_eos = true;
    greedy.sampling.temperature = 0;
    std::vector<std::unique_ptr<Sample>> samples;
    samples.push_back(std::make_unique<Sample>(base, greedy));
    ASSERT_NO_FATAL_FAILURE(run_samples(base, samples));
    BeamSearchOptions options;
    options.width = 1;
    options.max_tokens = 30;
    options.ignore_eos = true;
    const auto beams = beam_search(base.runner->step(), std::move(*base.runner->whole().fork()), base.logits,
                                   *base.model->tokenizer, options, {});
    ASSERT_TRUE(beams.ok());
    ASSERT_EQ(beams->size(), 1u);
    TokenStream stream(*base.model->tokenizer, false);
    std::string text;
    for (const TokenId token : (*beams)[0].tokens) text += stream.push(token);
    EXPECT_EQ(text + stream.flush(), samples[0]->task.generation().text());
  }
}

// Beams that nothing continues are gone before others are copied: what the passes hold is the most there ever is.
TEST(BeamSearch, CopiesTakeThePlaceOfTheDead) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  const Loaded base = read_prompt(file.path(), "full");
  std::uint64_t most = 0;
  int passes = 0;
  base.runner->set_watch([&](const KvSequence&) {
    most = std::max(most, base.cache->budget().used());
    ++passes;
  });
  BeamSearchOptions options;
  options.width = 6;
  options.max_tokens = 60;
  options.ignore_eos = true;
  const auto beams = beam_search(base.runner->step(), std::move(*base.runner->whole().fork()), base.logits,
                                 *base.model->tokenizer, options, {});
  ASSERT_TRUE(beams.ok()) << beams.status().message();
  EXPECT_GT(passes, 60);
  EXPECT_EQ(base.cache->budget().peak(), most);
}

// A search that runs out of memory gives what it has.
TEST(BeamSearch, EndsWhereMemoryEnds) {
  const TemporaryFile file(make_random_model(sharing_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto cache = *new_cache(model, KvCache::cost(model->kv_shape, {}, 20));
  SequenceRunner runner(model, cache, std::move(*make_policy("full")));
  std::vector<float> logits;
  ASSERT_TRUE(runner
                  .feed(random_tokens(60, sharing_spec().vocab, 4), 0, Logits::kLast,
                        [&](std::int64_t, int, std::span<const float> of) {
                          logits.assign(of.begin(), of.end());
                          return true;
                        })
                  .ok());
  BeamSearchOptions options;
  options.width = 6;
  options.max_tokens = 200;
  options.ignore_eos = true;
  const auto beams =
      beam_search(runner.step(), std::move(*runner.whole().fork()), logits, *model->tokenizer, options, {});
  ASSERT_TRUE(beams.ok()) << beams.status().message();
  ASSERT_FALSE(beams->empty());
  EXPECT_EQ(beams->front().finish_reason, FinishReason::kKvMemory);
  EXPECT_FALSE(beams->front().tokens.empty());
}

}  // namespace
}  // namespace kvasir::test
