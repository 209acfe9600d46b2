// Logits against those of Hugging Face's classes, for tiny models that llama.cpp's converter wrote. The files in
// tests/reference/originals were written by tests/reference/write_originals.py.
#include "support/originals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "retention/registry.h"
#include "sequence/context_rules.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// Reads under `full`, with the angles for these tokens alone.
std::unique_ptr<SequenceRunner> new_runner_for_tokens(const std::shared_ptr<LoadedModel>& model) {
  const KvCodec codec = codec_for(model->config, model->kv_shape.codec(), **make_policy("full"), 0, kOriginalTokens);
  return new_runner(model, "full", std::uint64_t{1} << 28, codec);
}

class Originals : public testing::TestWithParam<const char*> {
 protected:
  // Of the model at hand, without its extension.
  static std::string file() { return source_dir() + "/tests/reference/originals/" + GetParam(); }
};

// Each is a file NAME.gguf.
constexpr const char* kNames[] = {"cohere2",       "deepseek_v2",
                                  "deepseek_v3",   "ernie4_5",
                                  "ernie4_5_moe",  "exaone4",
                                  "gemma2",        "gemma3",
                                  "gemma4",        "gemma4_experts",
                                  "glm4",          "glm4_moe_lite",
                                  "glm4moe",       "gpt2",
                                  "gpt_oss",       "granite",
                                  "granitehybrid", "granitehybrid_experts",
                                  "granitemoe",    "granitemoe_shared",
                                  "hunyuan_dense", "lfm2",
                                  "lfm2moe",       "llama",
                                  "mistral3",      "mixtral",
                                  "olmo2",         "olmo3",
                                  "olmoe",         "phi3",
                                  "phi3_long",     "phi3_short",
                                  "qwen3",         "qwen35",
                                  "qwen35moe",     "qwen3moe",
                                  "seed_oss",      "smollm3",
                                  "starcoder2"};

TEST(OriginalsFolder, HoldsTheModelsThatAreTested) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/reference/originals"))
    if (entry.path().extension() == ".gguf") found.push_back(entry.path().stem().string());
  std::ranges::sort(found);
  EXPECT_EQ(found, std::vector<std::string>(std::begin(kNames), std::end(kNames)));
}

TEST_P(Originals, LogitsAreTransformers) {
  const auto model = load(file() + ".gguf", {.kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const std::vector<float> ours = all_logits(*new_runner_for_tokens(model), original_tokens(), 64);
  EXPECT_LT(rms_error_ratio(ours, read_original_logits(file() + ".npy")), 1e-5);
}

TEST_P(Originals, LogitsOfATokenAtATimeAreThoseOfPasses) {
  const auto model = load(file() + ".gguf");
  ASSERT_NE(model, nullptr);
  const std::vector<TokenId> ids = original_tokens();
  const std::vector<float> together = all_logits(*new_runner_for_tokens(model), ids, 64);
  EXPECT_EQ(all_logits(*new_runner_for_tokens(model), ids, 1), together);
  EXPECT_EQ(all_logits(*new_runner_for_tokens(model), ids, 37), together);
}

// Passes encode the pages that they complete, and rows near those read them in 16 bits.
TEST_P(Originals, EncodedPagesGiveTheSameForAnyPasses) {
  const auto model = load(file() + ".gguf", {.kv_type = "q8"});
  ASSERT_NE(model, nullptr);
  const std::vector<TokenId> ids = original_tokens();
  const std::vector<float> together = all_logits(*new_runner_for_tokens(model), ids, 150);
  EXPECT_EQ(all_logits(*new_runner_for_tokens(model), ids, 1), together);
  EXPECT_EQ(all_logits(*new_runner_for_tokens(model), ids, 37), together);
}

INSTANTIATE_TEST_SUITE_P(All, Originals, testing::ValuesIn(kNames),
                         [](const testing::TestParamInfo<const char*>& info) { return info.param; });

}  // namespace
}  // namespace kvasir::test
