// SyncKV with its cold tier: what leaves memory changes no bit, comes back in time, is charged as planned, and fails
// alone.
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "engine/follower_heads.h"
#include "engine/memory_plan.h"
#include "engine/policy_cases.h"
#include "engine/request_desk.h"
#include "engine/session.h"
#include "retention/head_profile.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

using Fault = FaultyFile::Fault;

constexpr int kLayers = 3, kHeads = 4;

RandomModelSpec offloading_spec() {
  RandomModelSpec spec = small_spec();
  spec.layers = kLayers;
  spec.heads = 8;
  spec.kv_heads = kHeads;
  spec.d = 64;
  spec.context = 1024;
  return spec;
}

class SyncKvOffload : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(offloading_spec()));
    const auto model = load_model();
    HeadProfile profile{.fingerprint = model->fingerprint,
                        .layers = kLayers,
                        .kv_heads = kHeads,
                        .top_k = 8,
                        .queries = 1,
                        .articles = 1,
                        .tokens = 9,
                        .reps = 2,
                        .seed = 1,
                        .overlap = {},
                        .clusters = {}};
    profile.clusters = {{{0, 1, 1, 0}, {0, 2}}, {{0, 0, 1, 0}, {1, 2}}, {{0, 1, 1, 1}, {0, 3}}};
    for (int layer = 0; layer < kLayers; ++layer) profile.overlap.push_back(std::vector<double>(16, 1.0));
    profile_ = profile;
    path_ = file_->path() + ".profile";
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    const std::string text = format_head_profile(profile);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
  static void TearDownTestSuite() {
    std::remove(path_.c_str());
    file_.reset();
  }

  static std::shared_ptr<LoadedModel> load_model(int slots = 16, const std::string& codec = "f16", int threads = 2) {
    EngineOptions options{.threads = threads, .kv_type = codec, .page_slots = slots};
    options.demote_dir = std::filesystem::temp_directory_path().string();
    return load(file_->path(), options);
  }
  static std::string with_profile(const std::string& spec) { return spec + ",reps=2,profile=" + path_; }

  static void feed(SequenceRunner& runner, std::span<const TokenId> tokens, bool prompt, int chunk,
                   std::vector<float>* logits) {
    const Status status = runner.feed(
        tokens, chunk, SequenceRunner::Logits::kAll,
        [&](std::int64_t, int, std::span<const float> out) {
          logits->insert(logits->end(), out.begin(), out.end());
          return true;
        },
        prompt ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  static std::unique_ptr<TemporaryFile> file_;
  static HeadProfile profile_;
  static std::string path_;
};
std::unique_ptr<TemporaryFile> SyncKvOffload::file_;
HeadProfile SyncKvOffload::profile_;
std::string SyncKvOffload::path_;

std::vector<std::string> offloading_policies() {
  return {"synckv:budget=20,recent=6",          "synckv:budget=33,recent=0,stride=1,static=0",
          "synckv:mem=60%,recent=3,stride=3",   "synckv:budget=25,recent=40",
          "synckv:budget=31,recent=9,static=1", "synckv:mem=90%,recent=7,stride=2"};
}

// The same bits as with everything in memory: prompts and what is generated, in several turns.
TEST_F(SyncKvOffload, ChangesNoBit) {
  struct Segment {
    int tokens;
    bool prompt;
  };
  const std::vector<std::vector<Segment>> texts = {
      {{190, true}, {60, false}},
      {{5, false}, {130, true}, {45, false}, {70, true}, {30, false}, {1, true}, {20, false}},
  };
  std::int64_t stalls = 0, fetches = 0;
  for (const char* codec : {"f16", "f32", "bf16"})
    for (const int slots : {16, 32, 64}) {
      if (slots == 64 && codec != std::string("f16")) continue;
      const auto model = load_model(slots, codec);
      for (const std::string& base : offloading_policies())
        for (const bool profile : {false, true}) {
          const std::string policy = profile ? with_profile(base) : base;
          if (!profile && base.find("mem=60%") == std::string::npos && slots != 16) continue;
          for (const auto& text : texts) {
            SCOPED_TRACE(fmt::format("{} {} {} {}", policy, codec, slots, text.size()));
            const auto tokens = random_tokens(500, offloading_spec().vocab, 7);
            const auto off = new_runner(model, policy), on = new_runner(model, policy + ",offload=file");
            int done = 0;
            for (const Segment& segment : text) {
              std::vector<float> expected, got;
              const auto part = std::span(tokens).subspan(static_cast<std::size_t>(done),
                                                          static_cast<std::size_t>(segment.tokens));
              feed(*off, part, segment.prompt, 32, &expected);
              feed(*on, part, segment.prompt, 32, &got);
              ASSERT_TRUE(same_bits(got, expected)) << "behind " << done;
              done += segment.tokens;
            }
            const FollowerHeads* followers = on->whole().followers();
            ASSERT_NE(followers, nullptr);
            EXPECT_FALSE(followers->empty());
            EXPECT_GT(followers->report().cold_bytes, 0u);
            // Without a profile nothing has left when the first ones are chosen; with static=1 there are no others.
            if (profile || base.find("static=1") == std::string::npos) {
              EXPECT_GT(followers->report().fetched_bytes, 0u);
            }
            stalls += followers->report().stalls;
            fetches += followers->report().fetches;
          }
        }
    }
  EXPECT_GT(fetches, 1000);
  EXPECT_LE(stalls, fetches);
}

}  // namespace
}  // namespace kvasir::test
