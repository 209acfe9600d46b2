// Logits against those of Hugging Face's implementations, for small models of random weights. The files in
// tests/reference/vectors were written by tests/reference/huggingface_vectors.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "reference/reference_model.h"
#include "support/engine_fixture.h"
#include "support/families.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

struct Published {
  std::vector<TokenId> tokens;
  std::map<std::size_t, std::vector<double>> rows;
};

Published read_published(const std::string& family) {
  Published published;
  std::ifstream file(source_dir() + "/tests/reference/vectors/" + family + ".txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "tokens") {
      for (TokenId token; words >> token;) published.tokens.push_back(token);
    } else if (kind == "row") {
      std::size_t row = 0;
      words >> row;
      for (double logit; words >> logit;) published.rows[row].push_back(logit);
    }
  }
  return published;
}

TEST(PublishedLogits, AreOursAndTheReferences) {
  for (const FamilyCase& family : family_cases()) {
    if (!std::filesystem::exists(source_dir() + "/tests/reference/vectors/" + family.name + ".txt")) continue;
    SCOPED_TRACE(family.name);
    const Published published = read_published(family.name);
    ASSERT_GE(published.rows.size(), 4u);
    const std::vector<std::byte> bytes = make_random_model(family.spec);
    const auto parsed = gguf::File::parse(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto reference =
        ReferenceModel(*parsed).logits(std::vector<int>(published.tokens.begin(), published.tokens.end()));
    const TemporaryFile file(bytes);
    const auto model = load(file.path(), {.kv_type = "f32"});
    ASSERT_NE(model, nullptr);
    const std::vector<float> ours = all_logits(*new_runner(model, "full"), published.tokens, 16);
    const auto vocabulary = static_cast<std::size_t>(family.spec.vocab);
    for (const auto& [row, want] : published.rows) {
      ASSERT_EQ(want.size(), vocabulary);
      EXPECT_LT(rms_error_ratio(std::span(ours).subspan(row * vocabulary, vocabulary), want), 1e-5) << row;
      double largest = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) largest = std::max(largest, std::abs(reference[row][i] - want[i]));
      EXPECT_LT(largest, 1e-5) << row;
    }
  }
  EXPECT_FALSE(read_published("gemma3").rows.empty());
}

}  // namespace
}  // namespace kvasir::test
