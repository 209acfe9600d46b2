// A thousand texts (code, emoji, 47 scripts, control characters) and their token ids under SmolLM2's vocabulary.
// smollm2/make_ids.py made the ids with transformers, and found llama.cpp's llama-tokenize to give the same.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/real_model.h"
#include "support/shared_data.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

constexpr int kTexts = 1000;

std::ifstream open(const std::string& name) {
  return std::ifstream(test::source_dir() + "/tests/text/smollm2/" + name);
}

TEST(SmolLm2, TokenIdsOfAThousandTexts) {
  KVASIR_REAL_MODEL_OR_SKIP(model);
  const auto tokenizer = test::tokenizer_of_file(model);
  ASSERT_NE(tokenizer, nullptr);
  std::ifstream lines = open("lines.jsonl");
  std::ifstream ids = open("ids.txt");
  int texts = 0;
  for (std::string line, row; std::getline(lines, line) && std::getline(ids, row); ++texts) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    std::istringstream words(row);
    const std::vector<TokenId> expected{std::istream_iterator<TokenId>(words), {}};
    EXPECT_EQ(test::encode(*tokenizer, text, test::kNoSpecial), expected) << "line " << texts + 1 << ": " << line;
  }
  EXPECT_EQ(texts, kTexts);
}

}  // namespace
}  // namespace kvasir
