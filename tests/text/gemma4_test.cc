// Gemma 4's tokenizer: published vectors and those of the package tokenizers, on a part of its vocabulary
// (gemma4/make_vectors.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/vocabularies.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Tokens = std::vector<TokenId>;

Json read_vectors() {
  std::ifstream file(test::source_dir() + "/tests/text/gemma4/vectors.json");
  return Json::parse(file);
}

Vocabulary vocabulary_of(const Json& vectors) {
  Vocabulary vocabulary;
  vocabulary.tokenizer = TokenizerKind::kSpmMerges;
  for (std::size_t i = 0; i < vectors["pieces"].size(); ++i)
    test::add_piece(&vocabulary, vectors["pieces"][i], 0, static_cast<TokenKind>(vectors["kinds"][i].get<int>()));
  vocabulary.merges = vectors["merges"].get<std::vector<std::string>>();
  vocabulary.add_bos = false;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

TEST(Gemma4Tokenizer, AgreesWithPublishedVectors) {
  const Json vectors = read_vectors();
  const auto tokenizer = test::tokenizer_of(vocabulary_of(vectors));
  ASSERT_NE(tokenizer, nullptr);
  ASSERT_GT(vectors["texts"].size(), 200U);
  for (std::size_t i = 0; i < vectors["texts"].size(); ++i) {
    const std::string text = vectors["texts"][i];
    const Tokens expected = vectors["tokens"][i];
    EXPECT_EQ(test::encode(*tokenizer, text, test::kNoSpecial), expected) << '"' << text << '"';
    EXPECT_EQ(tokenizer->decode(expected), text);
  }
}

// "ab" is merged first, though "bc" and "\u2581a" are pieces too.
TEST(Gemma4Tokenizer, MergesByTheListAndFallsBackToBytes) {
  Vocabulary vocabulary = test::byte_vocabulary();
  vocabulary.tokenizer = TokenizerKind::kSpmMerges;
  vocabulary.add_bos = vocabulary.add_space_prefix = false;
  for (const char* piece : {"a", "b", "c", "\u2581"}) test::add_piece(&vocabulary, piece);
  const TokenId ab = test::add_merge(&vocabulary, "a", "b");
  const TokenId bc = test::add_merge(&vocabulary, "b", "c");
  const TokenId abc = test::add_merge(&vocabulary, "ab", "c");
  const TokenId space = test::add_merge(&vocabulary, "\u2581", "a");
  const auto tokenizer = test::tokenizer_of(vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(test::encode(*tokenizer, "abc"), Tokens({abc}));
  EXPECT_EQ(test::encode(*tokenizer, "bc ab a"), Tokens({bc, ab - 1, ab, space}));
  EXPECT_EQ(test::encode(*tokenizer, "d"), test::byte_tokens("d"));
  EXPECT_EQ(test::encode(*tokenizer, "\u00E9"), test::byte_tokens("\u00E9"));
  // A reserved token is never made, so what it would be made of stays.
  const std::vector<TextSegment> segments = {{"abc", false}};
  const std::vector<TokenId> reserved = {ab};
  const auto tokens = tokenizer->encode_segments(segments, false, reserved);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokens, Tokens({ab - 4, bc}));
}

TEST(Gemma4Tokenizer, MalformedMergesAreNamed) {
  for (const char* merge : {"ab", " b", "a ", "a b c", "a \xFF"}) {
    Vocabulary vocabulary = test::byte_vocabulary();
    vocabulary.tokenizer = TokenizerKind::kSpmMerges;
    vocabulary.merges = {merge};
    const auto tokenizer = make_tokenizer(std::move(vocabulary));
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(tokenizer.status().message(), HasSubstr("merge 0"));
  }
}

}  // namespace
}  // namespace kvasir
