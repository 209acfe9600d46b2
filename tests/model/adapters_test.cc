// Logits of models with LoRA adapters against those of Hugging Face's classes and peft, whose adapters llama.cpp's
// converter wrote. The files in tests/reference/adapters were written by tests/reference/write_adapters.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "backend/naive_model.h"
#include "support/engine_fixture.h"
#include "support/originals.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string folder() {
  return source_dir() + "/tests/reference/";
}

class Adapters : public testing::TestWithParam<const char*> {
 protected:
  static std::string base() { return folder() + "originals/" + GetParam() + ".gguf"; }
  static std::string adapter() { return folder() + "adapters/" + GetParam() + ".gguf"; }
  static std::vector<double> logits() { return read_original_logits(folder() + "adapters/" + GetParam() + ".npy"); }
};

constexpr const char* kAdapted[] = {"glm4", "llama", "qwen35", "seed_oss"};

TEST(AdaptersFolder, HoldsTheAdaptersThatAreTested) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder() + "adapters"))
    if (entry.path().extension() == ".gguf") found.push_back(entry.path().stem().string());
  std::ranges::sort(found);
  EXPECT_EQ(found, std::vector<std::string>(std::begin(kAdapted), std::end(kAdapted)));
}

TEST_P(Adapters, LogitsAreThoseOfPeft) {
  const auto model = load(base(), {.lora = {{adapter()}}, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const std::vector<float> ours = all_logits(*new_runner(model, "full"), original_tokens(), 64);
  EXPECT_LT(rms_error_ratio(ours, logits()), 1e-5);
}

TEST_P(Adapters, LogitsOfTheNaiveBackendAreThoseOfPeft) {
  const auto model = load_naive(base(), {.lora = {{adapter()}}, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const std::vector<float> naive = all_logits(*new_runner(model, "full"), original_tokens(), 64);
  EXPECT_LT(rms_error_ratio(naive, logits()), 1e-5);
}

TEST_P(Adapters, LogitsOfATokenAtATimeAreThoseOfPasses) {
  const auto model = load(base(), {.lora = {{adapter(), 0.7F}}});
  ASSERT_NE(model, nullptr);
  const std::vector<TokenId> ids = original_tokens();
  const std::vector<float> together = all_logits(*new_runner(model, "full"), ids, 64);
  EXPECT_EQ(all_logits(*new_runner(model, "full"), ids, 1), together);
  EXPECT_EQ(all_logits(*new_runner(model, "full"), ids, 37), together);
}

TEST_P(Adapters, OfScaleZeroChangeNoBit) {
  const auto model = load(base());
  const auto adapted = load(base(), {.lora = {{adapter(), 0}}});
  ASSERT_TRUE(model != nullptr && adapted != nullptr);
  const std::vector<TokenId> ids = original_tokens();
  EXPECT_EQ(all_logits(*new_runner(adapted, "full"), ids, 64), all_logits(*new_runner(model, "full"), ids, 64));
}

TEST_P(Adapters, AddWithTheirScales) {
  // 0.25 and 0.75 of the same add up to the whole.
  const auto model = load(base(), {.lora = {{adapter(), 0.25F}, {adapter(), 0.75F}}, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const std::vector<float> ours = all_logits(*new_runner(model, "full"), original_tokens(), 64);
  EXPECT_LT(rms_error_ratio(ours, logits()), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, Adapters, testing::ValuesIn(kAdapted),
                         [](const testing::TestParamInfo<const char*>& info) { return info.param; });

}  // namespace
}  // namespace kvasir::test
