// The bits of the downloaded model (golden_file.h): sizes, weights and a text that models of random weights do not
// have. Every policy with pages of f16, every codec with a policy that keeps all, one that drops runs and one that
// drops single tokens.
#include <fmt/core.h>
#include <xxhash.h>

#include <fstream>
#include <iterator>

#include "golden/golden_file.h"
#include "support/engine_fixture.h"
#include "support/real_model.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

constexpr std::size_t kTokens = 300;
constexpr std::size_t kPrompt = 260;  // the others are generated

struct RealModelCase {
  std::string codec;
  std::string policy;
};

std::vector<RealModelCase> cases_of(std::string_view arithmetic) {
  if (arithmetic == "generic") return {{"f16", "full"}};  // takes as long as ten cases of another
  std::vector<RealModelCase> cases;
  for (const std::string& policy : one_policy_of_each_kind()) cases.push_back({"f16", policy});
  cases.push_back({"f16", "quest:budget=64"});
  for (const char* codec : {"q8", "q4", "q4o", "q3", "q2", "k=q8,v=q4"})
    for (const char* policy : {"full", "streaming:sinks=4,window=44,every=16", "h2o:budget=64,recent=32"})
      cases.push_back({codec, policy});
  return cases;
}

std::vector<std::string> names_of(std::string_view arithmetic) {
  std::vector<std::string> names;
  for (const RealModelCase& of : cases_of(arithmetic))
    names.push_back(fmt::format("{}{}/{}", kRealModelCases, of.codec, of.policy));
  return names;
}

// The first tokens of a text in the repository.
std::vector<TokenId> text_tokens(const LoadedModel& model) {
  std::ifstream in(source_dir() + "/examples/the-lamplighter.txt");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto tokens = model.tokenizer->encode(text.substr(0, 2000), {});
  EXPECT_TRUE(tokens.ok() && tokens->size() >= kTokens);
  if (!tokens.ok() || tokens->size() < kTokens) return {};
  tokens->resize(kTokens);
  EXPECT_EQ(XXH3_64bits(tokens->data(), kTokens * sizeof(TokenId)), 17891261874272745462U)
      << "another text, or other tokens, than bits.txt was made of";
  return *std::move(tokens);
}

class GoldenSmolLm2 : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenSmolLm2, BitsAreThoseOfTheFile) {
  KVASIR_REAL_MODEL_OR_SKIP(path);
  const KernelTable* table = find_kernels(GetParam());
  const std::string_view arithmetic = table != nullptr ? table->arithmetic : GetParam();
  std::shared_ptr<LoadedModel> model;
  std::vector<TokenId> tokens;
  if (table != nullptr) {
    model = load(path, {.threads = 2, .isa = GetParam()});
    ASSERT_NE(model, nullptr);
    tokens = text_tokens(*model);
    ASSERT_FALSE(tokens.empty());
  }
  const std::vector<RealModelCase> cases = cases_of(arithmetic);
  compare_with_file(GetParam(), names_of(arithmetic), [&](std::size_t i) {
    const ParsedCodec codec = parse_codec(cases[i].codec);
    EXPECT_EQ(codec.error, "");
    return run_golden(model, cases[i].policy, tokens, kPrompt, 0, codec.codec);
  });
}

TEST(GoldenSmolLm2File, HasALineOfEachCaseAndNoOther) {
  expect_lines_of(names_of, true);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenSmolLm2, ::testing::Values("generic", "avx2", "avx512", "amx"),
                         [](const auto& table) { return table.param; });

}  // namespace
}  // namespace kvasir::test
