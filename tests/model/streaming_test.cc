// Streaming policies: against the reference model, which rotates every key afresh for every row, and against each
// other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "kv/describe_table.h"
#include "kv/table.h"
#include "support/engine_fixture.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

class StreamingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bytes_ = make_random_model(spec_);
    file_ = std::make_unique<TemporaryFile>(bytes_);
    auto parsed = gguf::File::parse(bytes_);
    ASSERT_TRUE(parsed.ok());
    reference_ = std::make_unique<ReferenceModel>(*parsed);
  }

  std::vector<float> run(const std::string& policy, std::span<const TokenId> tokens, int chunk,
                         EngineOptions options = {.kv_type = "f32"}) {
    const auto model = load(file_->path(), options);
    const auto runner = new_runner(model, policy);
    std::vector<float> logits = all_logits(*runner, tokens, chunk);
    kept_ = retained_ids(runner->sequence().only_table());
    frames_ = static_cast<int>(runner->sequence().only_table().frames().size());
    return logits;
  }

  std::vector<double> reference(std::span<const TokenId> tokens, const std::vector<RowView>& views) {
    return flatten(reference_->logits(std::vector<int>(tokens.begin(), tokens.end()), views));
  }

  RandomModelSpec spec_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<TemporaryFile> file_;
  std::unique_ptr<ReferenceModel> reference_;
  std::vector<TokenIndex> kept_;
  int frames_ = 0;
};

TEST_F(StreamingTest, FramesAgreeWithKeysRotatedAfresh) {
  const auto tokens = random_tokens(400, spec_.vocab, 3);
  for (const int every : {1, 8, 64}) {
    const auto got = run("streaming:sinks=4,window=60,every=" + std::to_string(every), tokens, 1);
    EXPECT_EQ(frames_, 2);
    EXPECT_LT(rms_error_ratio(got, reference(tokens, streaming_views(400, 4, 60, every))), 1e-5) << "every=" << every;
  }
}

TEST_F(StreamingTest, RotatingAgreesWithKeysRotatedAfresh) {
  const auto tokens = random_tokens(400, spec_.vocab, 3);
  for (const int every : {1, 8, 64}) {
    const auto got = run("streaming:sinks=4,window=60,realign=rotate,every=" + std::to_string(every), tokens, 1);
    EXPECT_LT(rms_error_ratio(got, reference(tokens, streaming_views(400, 4, 60, every))), 1e-4) << "every=" << every;
  }
}

TEST_F(StreamingTest, WindowAgreesWithTheReference) {
  const auto tokens = random_tokens(300, spec_.vocab, 4);
  const auto got = run("window:size=50", tokens, 1);
  EXPECT_EQ(frames_, 1);
  EXPECT_LT(rms_error_ratio(got, reference(tokens, window_views(300, 50))), 1e-5);
  EXPECT_EQ(kept_.size(), 50u);
  EXPECT_EQ(kept_.front(), 250);
}

TEST(StreamingFamilies, EveryFamilyAgreesWithKeysRotatedAfresh) {
  for (const FamilyCase& family : family_cases()) {
    SCOPED_TRACE(family.name);
    const auto bytes = make_random_model(family.spec);
    const TemporaryFile file(bytes);
    const auto parsed = gguf::File::parse(bytes);
    ASSERT_TRUE(parsed.ok());
    const ReferenceModel reference(*parsed);
    const auto model = load(file.path(), {.kv_type = "f32"});
    const auto tokens = random_tokens(200, family.spec.vocab, 3);
    const std::vector<int> ids(tokens.begin(), tokens.end());
    struct Run {
      std::string policy;
      std::vector<RowView> views;
      double bound;
    };
    for (const Run& run : {Run{"streaming:sinks=4,window=40", streaming_views(200, 4, 40, 1), 1e-5},
                           Run{"streaming:sinks=4,window=40,every=8", streaming_views(200, 4, 40, 8), 1e-5},
                           Run{"streaming:sinks=4,window=40,realign=rotate", streaming_views(200, 4, 40, 1), 1e-4},
                           Run{"window:size=30", window_views(200, 30), 1e-5}}) {
      const auto runner = new_runner(model, run.policy);
      const auto got = all_logits(*runner, tokens, 1);
      EXPECT_LT(rms_error_ratio(got, flatten(reference.logits(ids, run.views))), run.bound) << run.policy;
    }
  }
}

// Neither chunks nor threads change a bit, whatever the model is made of.
TEST(StreamingFamilies, ChunksAndThreadsChangeNoBits) {
  std::vector<FamilyCase> models = family_cases();
  for (const char* dtype : {"q4_k", "q6_k", "q5_1"}) {
    RandomModelSpec spec;
    spec.d = 256;
    spec.head_dim = 64;
    spec.ffn = 256;
    spec.dtype = dtype;
    models.push_back({dtype, spec});
  }
  // Wide enough for several threads to quantise blocks of the same rows.
  RandomModelSpec wide;
  wide.ffn = 2048;
  wide.layers = 1;
  wide.dtype = "q8_0";
  models.push_back({"wide", wide});
  for (const FamilyCase& family : models) {
    SCOPED_TRACE(family.name);
    const TemporaryFile file(make_random_model(family.spec));
    const auto tokens = random_tokens(150, family.spec.vocab, 8);
    const auto logits = [&](int threads, int chunk, const char* policy) {
      return all_logits(*new_runner(load(file.path(), {.threads = threads}), policy), tokens, chunk);
    };
    for (const char* policy : {"full", "streaming:sinks=4,window=44"}) {
      const auto one = logits(1, 1, policy);
      for (const int threads : {1, 3})
        for (const int chunk : {7, 64}) {
          const auto other = logits(threads, chunk, policy);
          ASSERT_EQ(other.size(), one.size());
          EXPECT_EQ(std::memcmp(other.data(), one.data(), one.size() * sizeof(float)), 0)
              << policy << " " << threads << " threads, chunk " << chunk;
        }
    }
  }
}

// Observers are shown the weights that the reference computes, zero outside a native window, of every token: in the
// layers that a policy governs, numbered among themselves.
TEST(StreamingFamilies, ObservedWeightsAreTheReferences) {
  struct Heard : ::kvasir::AttentionObserver {
    void observe(const ObservedAttention& attention) override {
      for (int row = 0; row < attention.rows; ++row)
        for (int head = 0; head < heads; ++head) {
          const auto of = attention.of(row, head);
          weights[{attention.layer, first + attention.first_row + row, head}].assign(of.begin(), of.end());
        }
    }
    std::map<std::tuple<int, int, int>, std::vector<float>> weights;
    int first = 0;
    int heads = 0;
  };
  for (const FamilyCase& family : family_cases()) {
    SCOPED_TRACE(family.name);
    const auto bytes = make_random_model(family.spec);
    const TemporaryFile file(bytes);
    const auto parsed = gguf::File::parse(bytes);
    ASSERT_TRUE(parsed.ok());
    const auto tokens = random_tokens(80, family.spec.vocab, 3);
    Heard heard;
    heard.heads = family.spec.heads;
    const auto runner = new_runner(load(file.path(), {.kv_type = "f32"}), "full");
    runner->listener().set_tap(&heard);
    const Status status = runner->feed(tokens, 20, SequenceRunner::Logits::kAll,
                                       [&](std::int64_t first, int rows, std::span<const float>) {
                                         heard.first = static_cast<int>(first) + rows;
                                         return true;
                                       });
    ASSERT_TRUE(status.ok()) << status.message();
    const auto pattern = static_cast<std::size_t>(family.spec.window_pattern);
    std::size_t compared = 0;
    std::size_t zeros = 0;
    ReferenceModel(*parsed).logits(std::vector<int>(tokens.begin(), tokens.end()), full_views(80),
                                   [&](int layer, int row, int head, std::span<const double> want) {
                                     if (pattern > 0 && (static_cast<std::size_t>(layer) + 1) % pattern != 0) return;
                                     const int number = pattern > 0 ? layer / static_cast<int>(pattern) : layer;
                                     const auto& got = heard.weights[{number, row, head}];
                                     ASSERT_EQ(got.size(), want.size());
                                     for (std::size_t i = 0; i < want.size(); ++i) {
                                       ASSERT_NEAR(static_cast<double>(got[i]), want[i], 1e-5);
                                       zeros += want[i] == 0 ? 1 : 0;
                                       ++compared;
                                     }
                                   });
    const auto layers = static_cast<std::size_t>(family.spec.layers);
    EXPECT_EQ(compared, (pattern > 0 ? layers / pattern : layers) * 4 * 80 * 81 / 2);
    EXPECT_EQ(zeros > 0, family.spec.sliding_window > 0 && pattern == 0);
  }
}

// The comparison above would not notice a view that ignores the policy if forgetting changed nothing.
TEST_F(StreamingTest, ForgettingChangesLogits) {
  const auto tokens = random_tokens(300, spec_.vocab, 4);
  const auto got = run("window:size=50", tokens, 1);
  EXPECT_GT(rms_error_ratio(got, reference(tokens, full_views(300))), 1e-2);
}

TEST_F(StreamingTest, FramesAgreeWithExplicitRotationOver2000Steps) {
  const auto tokens = random_tokens(2000, spec_.vocab, 5);
  const auto frames = run("streaming:sinks=4,window=124", tokens, 1);
  const auto rotate = run("streaming:sinks=4,window=124,realign=rotate", tokens, 1);
  ASSERT_EQ(frames.size(), rotate.size());
  const std::vector<double> want(frames.begin(), frames.end());
  // The last rows carry the most rotations: about 1,870 for a key that was rotated all along.
  const std::size_t tail = frames.size() - 100 * static_cast<std::size_t>(spec_.vocab);
  EXPECT_LT(rms_error_ratio(std::span(rotate).subspan(tail), std::span(want).subspan(tail)), 1e-4);
  double largest = 0;
  for (std::size_t i = 0; i < frames.size(); ++i)
    largest = std::max(largest, static_cast<double>(std::fabs(frames[i] - rotate[i])));
  EXPECT_LT(largest, 1e-4);
  EXPECT_GT(largest, 0) << "both ran the same arithmetic";
}

TEST_F(StreamingTest, WindowThatCoversAllEqualsFullBitForBit) {
  const auto tokens = random_tokens(500, spec_.vocab, 6);
  for (const char* type : {"f32", "f16", "bf16", "q8", "q3,recent=40"}) {
    const EngineOptions options{.kv_type = type};
    const auto full = run("full", tokens, 64, options);
    for (const char* policy :
         {"streaming:sinks=4,window=496", "streaming:cap=1000,realign=rotate,every=64", "window:size=500"}) {
      const auto got = run(policy, tokens, 64, options);
      ASSERT_EQ(got.size(), full.size());
      EXPECT_EQ(std::memcmp(got.data(), full.data(), got.size() * sizeof(float)), 0) << policy << " " << type;
    }
    const auto smaller = run("streaming:sinks=4,window=400", tokens, 64, options);
    EXPECT_NE(std::memcmp(smaller.data(), full.data(), full.size() * sizeof(float)), 0) << "nothing was forgotten";
  }
}

TEST_F(StreamingTest, ChunkSizeChangesNeitherTokensNorBits) {
  const auto tokens = random_tokens(1200, spec_.vocab, 8);
  for (const char* policy :
       {"full", "streaming:sinks=4,window=252", "streaming:sinks=4,window=252,every=16", "window:size=200",
        "streaming:sinks=0,window=100,every=7", "streaming:sinks=40,window=300,every=50,max_drop=20,slack=3",
        "streaming:sinks=4,window=252,realign=rotate,every=32"}) {
    for (const std::string type :
         {"f32", "q8", "q4", "q4o", "q3", "q2", "q4,recent=50", "k=q4,v=f16,rotate=k", "q4,rotate=off"}) {
      const EngineOptions options{.kv_type = type};
      const auto one = run(policy, tokens, 1, options);
      const auto kept = kept_;
      for (const int chunk : {7, 32, 64, 512}) {
        const auto many = run(policy, tokens, chunk, options);
        ASSERT_EQ(many.size(), one.size());
        EXPECT_EQ(std::memcmp(many.data(), one.data(), one.size() * sizeof(float)), 0)
            << policy << ' ' << type << " chunk " << chunk;
        EXPECT_EQ(kept_, kept) << policy << " chunk " << chunk;
      }
    }
  }
}

TEST_F(StreamingTest, ThreadsChangeNoBits) {
  const auto tokens = random_tokens(700, spec_.vocab, 9);
  for (const char* policy : {"full", "streaming:sinks=4,window=252"})
    for (const int chunk : {1, 512}) {
      const auto one = run(policy, tokens, chunk, {.threads = 1, .kv_type = "f16"});
      for (const int threads : {2, 5}) {
        const auto many = run(policy, tokens, chunk, {.threads = threads, .kv_type = "f16"});
        EXPECT_EQ(std::memcmp(many.data(), one.data(), one.size() * sizeof(float)), 0) << threads << " threads";
      }
    }
}

}  // namespace

// A row's logits do not depend on the rows beside it: the same token of the same sequence alone, and in one pass with
// other sequences' rows.
class BatchTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BatchTest, RowsBesideChangeNoBits) {
  RandomModelSpec spec;
  spec.dtype = GetParam();
  const TemporaryFile file(make_random_model(spec));
  const auto model = load(file.path());
  auto created = new_cache(model, std::uint64_t{1} << 28);
  ASSERT_TRUE(created.ok());
  KvCache& cache = **created;
  PageStore* store = model->store_of(cache);
  const auto prompt = random_tokens(90, spec.vocab, 1);
  const TokenId last = 17;

  // The row under test: token 17 behind the prompt, with `beside` rows of another sequence in the same pass.
  const auto logits_with = [&](int beside) {
    KvSequence own = cache.new_sequence();
    KvSequence other = cache.new_sequence();
    const auto add = [](KvSequence& sequence, std::span<const TokenId> tokens, int logits, Batch* batch) {
      EXPECT_TRUE(sequence.append(static_cast<int>(tokens.size())).ok());
      BatchSequence part;
      part.first_row = batch->rows();
      part.rows = static_cast<int>(tokens.size());
      part.first_table = batch->tables.size();
      part.layers = sequence.layers();
      part.logits = logits;
      batch->sequences.push_back(part);
      batch->tokens.insert(batch->tokens.end(), tokens.begin(), tokens.end());
      describe_table(sequence.only_table(), std::vector<IndexRange>(tokens.size()), 0, &batch->tables.emplace_back());
    };
    Batch first;
    add(own, prompt, 0, &first);
    model->transformer->forward({&first, store});

    Batch batch;
    if (beside > 0) add(other, random_tokens(beside, spec.vocab, 2), 1, &batch);
    add(own, {&last, 1}, 1, &batch);
    const auto logits = model->transformer->forward({&batch, store}).logits;
    EXPECT_EQ(logits.size(), static_cast<std::size_t>(spec.vocab) * (beside > 0 ? 2 : 1));
    const auto own_logits = logits.last(static_cast<std::size_t>(spec.vocab));
    return std::vector<float>(own_logits.begin(), own_logits.end());
  };
  const auto alone = logits_with(0);
  for (const int beside : {1, 7, 64, 512}) {
    const auto together = logits_with(beside);
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0) << beside << " rows beside";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BatchTest, ::testing::Values("f32", "f16", "bf16", "q8_0"));

}  // namespace kvasir::test
