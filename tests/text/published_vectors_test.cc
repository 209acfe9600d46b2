// The vectors that are published with vocabularies: NAME.gguf.inp has the texts, NAME.gguf.out a line of ids for each.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> vocabularies_with_vectors(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".inp") paths.push_back(entry.path().parent_path() / entry.path().stem());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void expect_vectors(const Tokenizer& tokenizer, const std::string& path) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string input = read(path + ".inp");
  std::istringstream output(read(path + ".out"));
  int vectors = 0;
  for (std::string line; std::getline(output, line); ++vectors) {
    const std::size_t end = input.find(separator);
    const std::string text = input.substr(0, end);
    input = end == std::string::npos ? "" : input.substr(end + separator.size());
    std::istringstream ids(line);
    const Tokens expected{std::istream_iterator<TokenId>(ids), {}};
    EXPECT_EQ(test::encode(tokenizer, text, {.add_special = false}), expected) << '"' << text << '"';
    EXPECT_EQ(tokenizer.decode(expected), text);
  }
  EXPECT_GT(vectors, 40);
}

TEST(PublishedVectors, OfAllVocabulariesAtHand) {
  KVASIR_SHARED_OR_SKIP(folder, "vocab");
  std::set<std::string> tested;
  for (const std::string& path : vocabularies_with_vectors(folder)) {
    SCOPED_TRACE(path);
    const auto file = gguf::File::open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    auto vocabulary = vocabulary_from_gguf(*file);
    if (!vocabulary.ok()) {
      EXPECT_EQ(vocabulary.status().code(), StatusCode::kUnsupported) << vocabulary.status().message();
      continue;
    }
    const auto tokenizer = test::tokenizer_of(std::move(*vocabulary));
    ASSERT_NE(tokenizer, nullptr);
    expect_vectors(*tokenizer, path);
    tested.insert(std::filesystem::path(path).filename().string());
  }
  for (const char* name : {"gpt-2", "llama-bpe", "llama-spm", "qwen2"})
    EXPECT_TRUE(tested.contains(std::string("ggml-vocab-") + name + ".gguf") ||
                !std::filesystem::exists(folder + "/ggml-vocab-" + name + ".gguf.inp"))
        << name;
  EXPECT_GT(tested.size(), 0U);
}

}  // namespace
}  // namespace kvasir
