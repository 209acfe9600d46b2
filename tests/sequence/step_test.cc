// Many sequences in one pass, each under its own policy: equal bits to each of them alone.
#include "sequence/step.h"

#include "sequence/crowd.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

// Every policy, and mixtures of them, at 1 to 16 sequences in a pass and more.
TEST(StepThreads, ACrowdHasTheBitsOfEachAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const int threads : {1, 3}) {
    const auto model = load(file.path(), {.threads = threads, .page_slots = 16});
    for (const std::size_t crowd : {std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{18}}) {
      Crowd world(model, all_policies_in_use(), 17 * crowd + static_cast<std::size_t>(threads));
      world.run(crowd, crowd == 1 ? 100 : crowd == 2 ? 400 : 200);
      if (HasFatalFailure()) return;
      if (crowd == 1) continue;
      EXPECT_GT(world.events.crowded, 50);
      EXPECT_GT(world.events.mixed, 20);
      EXPECT_GT(world.events.split, 10);
      EXPECT_GT(world.events.forks, 0);
      EXPECT_GT(world.events.cancelled, 0);
      if (crowd == 18) {
        EXPECT_GE(world.events.most, 16u);
      }
    }
  }
}

// A pass over pages of many formats.
TEST(Step, ACrowdInSeveralCodecsHasTheBitsOfEachAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model =
      load(file.path(),
           {.threads = 2, .kv_types = {"q8", "q4", "k=q8,v=q2,recent=24", "q4,rotate=off", "f32"}, .page_slots = 16});
  int with_forks = 0;
  for (std::uint64_t seed = 1; with_forks < 2 && seed <= 12; ++seed) {
    Crowd world(model, all_policies_in_use(), seed);
    world.run(8, 200);
    if (HasFatalFailure()) return;
    EXPECT_GT(world.events.of_codecs, 150);
    EXPECT_GT(world.events.mixed, 50);
    with_forks += world.events.forks > 0;
  }
  EXPECT_EQ(with_forks, 2);
}

// Each policy among its like, so that none is missed by the lot.
TEST(Step, EveryPolicyAmongItsLike) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  for (const std::string& policy : all_policies_in_use()) {
    SCOPED_TRACE(policy);
    Crowd world(model, {policy}, 5);
    world.run(3, 25);
    if (HasFatalFailure()) return;
    EXPECT_GT(world.events.crowded, 5);
  }
}

TEST(Step, EveryFamily) {
  for (const FamilyCase& family : family_cases(crowd_spec())) {
    SCOPED_TRACE(family.name);
    const TemporaryFile file(make_random_model(family.spec));
    const auto model = load(file.path(), {.threads = 2, .page_slots = 16});
    Crowd world(model, all_policies_in_use(), 3);
    world.run(4, 40);
    if (HasFatalFailure()) return;
    EXPECT_GT(world.events.mixed, 5);
  }
}

// A chunk that runs in several passes hands all its tokens on at once.
TEST(Step, AChunkInSeveralPassesHasRoomForAllThatMoves) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const char* type : {"f16", "q8"}) {
    const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
    for (const char* spec : {"cascade:size=64,n=2,sinks=0,accept=1", "cascade:size=160,n=4,sinks=2,accept=1",
                             "cascade:size=240,n=3,sinks=1,accept=2"}) {
      SCOPED_TRACE(std::string(type) + " " + spec);
      std::vector<float> whole;
      for (const int rows : {1000, 1, 7}) {
        SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28), *make_policy(spec));
        runner.set_most_rows(rows);
        const std::vector<float> logits = run_text(runner, Text(200, 9, 1), 100);
        if (whole.empty()) whole = logits;
        EXPECT_TRUE(same_bits(logits, whole)) << rows;
      }
    }
  }
}

// A plan says what a step takes, changes nothing, and is executed whole or not at all.
TEST(Step, APlanThatDoesNotFitLeavesNoTrace) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto tokens = random_tokens(60, crowd_spec().vocab, 3);
  int refused = 0;
  for (std::int64_t columns = 4; columns < 16; ++columns) {
    const auto cache = *new_cache(model, KvCache::cost(model->kv_shape, {}, columns));
    Step step(model, cache);
    Sequence one(model, cache, std::move(*make_policy("full")));
    Sequence other(model, cache, std::move(*make_policy("streaming:sinks=4,window=36")));
    const StepRequest requests[] = {{&one, {tokens, Source::kPrompt, 60}}, {&other, {tokens, Source::kPrompt, 50}}};
    StepResult results[2];
    const Step::Plan plan = step.plan(requests);
    EXPECT_EQ(cache->budget().used(), 0u);
    const Status status = step.run(plan, requests, results);
    EXPECT_EQ(status.ok(), plan.fits);
    if (plan.fits) {
      EXPECT_EQ(cache->budget().used(), plan.bytes);
    } else {
      ++refused;
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(cache->budget().used(), 0u);
      EXPECT_EQ(one.tables().next_index(), 0);
      EXPECT_EQ(other.policy().seen(), 0);
    }
  }
  EXPECT_GT(refused, 2);
  EXPECT_LT(refused, 12);
}

// A page of one sequence that holds NaN ends that sequence; the others keep their bits.
TEST(Step, ANaNEndsItsOwnSequenceAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f32", .page_slots = 16});
  const auto cache = *new_cache(model, std::uint64_t{1} << 28);
  Step step(model, cache);
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint64_t s = 0; s < 3; ++s) {
    sequences.push_back(std::make_unique<Sequence>(model, cache, std::move(*make_policy("h2o:budget=40,recent=10"))));
    prompts.push_back(random_tokens(50, crowd_spec().vocab, s));
  }
  const auto pass = [&](std::span<const std::vector<TokenId>> texts, Source source) {
    std::vector<StepRequest> requests;
    for (std::size_t s = 0; s < sequences.size(); ++s) requests.push_back({sequences[s].get(), {texts[s], source}});
    std::vector<StepResult> results(requests.size());
    EXPECT_TRUE(step.run(step.plan(requests), requests, results).ok());
    return results;
  };
  pass(prompts, Source::kPrompt);
  const PageId page = sequences[1]->tables().table(0).pages().of(0)[0];
  std::vector<std::byte> bytes(model->kv_shape.page.bytes(), std::byte{0xff});
  cache->pool().store()->write(page, bytes);
  const std::vector<std::vector<TokenId>> next = {{5}, {6}, {7}};
  const auto results = pass(next, Source::kGenerated);
  std::vector<std::vector<float>> logits;  // the spans end with the next pass
  for (const StepResult& result : results) logits.emplace_back(result.logits.begin(), result.logits.end());
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_EQ(results[1].status.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(results[2].status.ok());
  for (const std::size_t s : {0, 2}) {
    Script script;
    script.parts = {{Source::kPrompt, prompts[s]}, {Source::kGenerated, next[s]}};
    const Outcome alone = run_alone(model, "h2o:budget=40,recent=10", script, 0);
    const auto vocabulary = static_cast<std::ptrdiff_t>(crowd_spec().vocab);
    EXPECT_TRUE(same_bits(logits[s], {alone.logits.end() - vocabulary, alone.logits.end()}));
    EXPECT_EQ(kept_by(sequences[s]->tables()), alone.kept);
  }
}

}  // namespace
}  // namespace kvasir::test
