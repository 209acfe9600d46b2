// What a batch takes beside page tables.
#include <gtest/gtest.h>

#include "kv/describe_table.h"
#include "planning/memory_plan.h"
#include "sequence/crowd.h"

namespace kvasir::test {
namespace {

// SnapKV over a prompt of 32,768 tokens of an 8B shape (32 layers of 8 KV heads): 256 page tables, 256 rows a pass.
TEST(BatchMemory, OfSnapKvOverALongPromptIsSmallAndPlanned) {
  const KvCacheShape shape{.layers = 32, .kv_heads = 8, .page = {.head_dim = 128, .slots = 32, .key = KvType::kF16}};
  const auto policy = std::move(*make_policy("snapkv"));
  const SequenceLayout layout = sequence_layout(*policy);
  const auto cache = std::move(*KvCache::create(shape, std::uint64_t{1} << 36));
  KvSequence sequence = cache->new_sequence(layout);
  ASSERT_EQ(sequence.tables(), 256);
  const int rows = prompt_chunk(*policy, 0);
  ASSERT_EQ(rows, 256);
  Batch batch;
  batch.tables.resize(static_cast<std::size_t>(sequence.tables()));
  const std::vector<IndexRange> hidden(static_cast<std::size_t>(rows));
  for (int chunk = 0; chunk < 32768 / rows; ++chunk) {
    ASSERT_TRUE(sequence.append(rows).ok());
    if (chunk % 32 != 31) continue;
    for (int t = 0; t < sequence.tables(); ++t)
      describe_table(sequence.table(t), hidden, 0, &batch.tables[static_cast<std::size_t>(t)]);
    batch.tokens.resize(static_cast<std::size_t>(rows));
    EXPECT_LT(batch.bytes(), std::uint64_t{8} << 20);
    const KvMemory plan = plan_kv_memory(shape, *policy, {32768, 32768, 0, 1});
    EXPECT_LE(batch.bytes(), plan.batch_bytes);
    EXPECT_LT(plan.batch_bytes, std::uint64_t{10} << 20);
  }
}

// Reads a prompt in chunks, then decodes, with one batch throughout.
void expect_within_plan(const KvCacheShape& shape, const std::string& spec, int chunk, std::int64_t prompt) {
  SCOPED_TRACE(fmt::format("{} window {} chunk {}", spec, shape.window, chunk));
  constexpr std::int64_t kDecoded = 300;
  const auto policy = std::move(*make_policy(spec));
  const std::uint64_t planned = plan_kv_memory(shape, *policy, {prompt + kDecoded, prompt, chunk, 1}).batch_bytes;
  const auto cache = std::move(*KvCache::create(shape, std::uint64_t{1} << 34));
  KvSequence sequence = cache->new_sequence(sequence_layout(*policy));
  PageTable& table = sequence.only_table();
  policy->begin({});
  Batch batch;
  batch.tables.resize(1);
  batch.sequences.resize(1);
  std::vector<IndexRange> hidden;
  KeepPlan plan;
  std::uint64_t most = 0;
  for (std::int64_t done = 0; done < prompt + kDecoded;) {
    const int rows = chunk_rows(*policy, next_chunk_rows(done, prompt, prompt + kDecoded, chunk));
    const PolicyChunk of{done, rows, done < prompt, std::max<std::int64_t>(prompt - done - rows, 0)};
    hidden.assign(static_cast<std::size_t>(rows), {});
    find_hidden(*policy, of, hidden);
    ASSERT_TRUE(sequence.append(rows).ok());
    batch.tokens.reserve(static_cast<std::size_t>(rows));
    batch.tokens.resize(static_cast<std::size_t>(rows));
    describe_table(table, hidden, shape.window, &batch.tables.front());
    if (rows == 1 && shape.window == 0) {
      ASSERT_TRUE(batch.tables.front().masks.empty());
    }
    most = std::max(most, batch.bytes());
    plan.clear();
    policy->end_chunk(of, 0, plan);
    ASSERT_TRUE(table.apply(plan).ok());
    table.give_back();
    done += rows;
  }
  EXPECT_LE(most, planned);
  EXPECT_LE(planned, 4 * most) << "a bound that says nothing";
}

TEST(BatchMemory, OfHiddenRangesAndWindowsIsPlanned) {
  KvCacheShape shape{.layers = 2, .kv_heads = 2, .page = {.head_dim = 64, .slots = 32, .key = KvType::kF16}};
  for (const Position window : {0, 700}) {
    shape.window = window;
    for (const int chunk : {7, 128, 256}) {
      expect_within_plan(shape, "full", chunk, 3000);
      expect_within_plan(shape, "window:size=600", chunk, 3000);
      expect_within_plan(shape, "window:size=30", chunk, 1000);
      expect_within_plan(shape, "streaming:sinks=4,window=1000", chunk, 3000);
      expect_within_plan(shape, "streaming:sinks=4,window=500,every=50", chunk, 3000);
      expect_within_plan(shape, "streaming:sinks=4,window=2000,every=900", chunk, 6000);
      expect_within_plan(shape, "streaming:sinks=4,window=100,every=4000", chunk, 9000);
      expect_within_plan(shape, "streaming:sinks=0,window=500,every=300,slack=40,max_drop=77", chunk, 3000);
      expect_within_plan(shape, "streaming:sinks=70,window=500,every=300", chunk, 3000);
    }
  }
}

// However many tokens a prune hides from some rows of a chunk and not from others.
TEST(BatchMemory, DoesNotGrowWithWhatIsHidden) {
  KvCacheShape shape{.layers = 2, .kv_heads = 2, .page = {.head_dim = 64, .slots = 32, .key = KvType::kF16}};
  for (const Position window : {0, 700}) {
    shape.window = window;
    const auto planned = [&](int every) {
      const auto policy = std::move(*make_policy(fmt::format("streaming:sinks=4,window=100,every={}", every)));
      return plan_kv_memory(shape, *policy, {60000, 60000, 256, 1}).batch_bytes;
    };
    EXPECT_EQ(planned(900), planned(1));
    EXPECT_EQ(planned(50000), planned(1));
  }
}

// Sequences of one policy in one step, prompts and answers in turn: lists come to many frames while tokens are
// generated, and are compacted when a prompt follows.
void expect_steps_within_plan(const std::shared_ptr<LoadedModel>& model, const std::string& spec, int* most_frames) {
  SCOPED_TRACE(spec);
  constexpr int kSequences = 3, kChunk = 64, kParts = 4, kPrompt = 100, kAnswer = 70;
  constexpr int kTokens = kParts / 2 * (kPrompt + kAnswer);
  const auto cache = *new_cache(model, std::uint64_t{1} << 28);
  Step step(model, cache);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int s = 0; s < kSequences; ++s)
    sequences.push_back(std::make_unique<Sequence>(model, cache, std::move(*make_policy(spec))));
  const auto text = random_tokens(kTokens, small_spec().vocab, 11);
  int frames = 0;
  std::uint64_t most = 0;
  std::size_t from = 0;
  for (int part = 0; part < kParts; ++part) {
    const bool prompt = part % 2 == 0;
    const auto tokens = std::span(text).subspan(from, prompt ? kPrompt : kAnswer);
    from += tokens.size();
    std::vector<std::size_t> done(kSequences);
    for (bool left = true; left;) {
      std::vector<StepRequest> requests;
      std::vector<std::size_t> of;
      for (std::size_t s = 0; s < kSequences; ++s) {
        if (done[s] == tokens.size()) continue;
        StepRequest request{sequences[s].get(),
                            {tokens.subspan(done[s]), prompt ? Source::kPrompt : Source::kGenerated, kChunk}};
        request.input.logits = Logits::kNone;
        requests.push_back(request);
        of.push_back(s);
      }
      left = !requests.empty();
      if (!left) break;
      std::vector<StepResult> results(requests.size());
      const Status run = step.run(step.plan(requests), requests, results);
      ASSERT_TRUE(run.ok()) << run.message();
      most = std::max(most, step.batch_bytes());
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_TRUE(results[i].status.ok());
        done[of[i]] += static_cast<std::size_t>(results[i].tokens);
        const KvSequence& tables = requests[i].sequence->tables();
        for (int t = 0; t < tables.tables(); ++t)
          frames = std::max(frames, static_cast<int>(tables.table(t).frames().size()));
      }
    }
  }
  const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy(spec), {kTokens, kTokens, kChunk, kSequences});
  EXPECT_LE(most, plan.batch_bytes);
  EXPECT_LE(plan.batch_bytes, 4 * most) << "a bound that says nothing";
  EXPECT_LE(frames, plan.frames_max);
  *most_frames = std::max(*most_frames, frames);
}

TEST(BatchMemory, OfEveryPolicyInStepsIsPlanned) {
  for (const int window : {0, 50}) {
    RandomModelSpec spec = crowd_spec();
    spec.sliding_window = window;
    const TemporaryFile file(make_random_model(spec));
    const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
    std::vector<std::string> policies = all_policies_in_use();
    policies.push_back("h2o:budget=90,recent=10,pos=compact");
    policies.push_back("tova:budget=120,pos=compact");
    policies.push_back("streaming:sinks=20,window=30,every=100");
    int most_frames = 0;
    for (const std::string& policy : policies) {
      expect_steps_within_plan(model, policy, &most_frames);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(most_frames, 8);
  }
}

// What workspaces are planned by: all frames for the few rows of each sequence that may have them.
TEST(BatchMemory, FramesInTheMeanAreThoseOfChunks) {
  const KvCacheShape shape{.layers = 2, .kv_heads = 2, .page = {.head_dim = 64, .slots = 32, .key = KvType::kF16}};
  const auto plan = [&](const char* spec) { return plan_kv_memory(shape, **make_policy(spec), {4096, 4096, 256, 1}); };
  EXPECT_EQ(mean_frames(plan("full"), 256, 1), 1);
  EXPECT_EQ(mean_frames(plan("streaming:sinks=4,window=60"), 256, 1), 2);
  EXPECT_EQ(mean_frames(plan("h2o:budget=100,recent=10,pos=original"), 256, 1), 1);
  for (const char* spec : {"h2o:budget=100,recent=10", "snapkv", "tova:budget=100"}) {
    EXPECT_EQ(plan(spec).frames_max, PageTableLayout::kMaxFrames);
    EXPECT_EQ(mean_frames(plan(spec), 256, 1), 5);  // (8 x 32 + 248 x 4) / 256
    EXPECT_EQ(mean_frames(plan(spec), 1, 1), PageTableLayout::kMaxFrames);
    EXPECT_EQ(mean_frames(plan(spec), 256, 64), PageTableLayout::kMaxFrames);
  }
}

}  // namespace
}  // namespace kvasir::test
