#include "text/pre_tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "text/regex_splitter.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pieces = std::vector<std::string>;

Pieces split(const RegexSplitter& splitter, std::string_view text) {
  Pieces pieces;
  const Status status = splitter.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_TRUE(status.ok()) << status.message();
  return pieces;
}

Pieces split_by(const std::vector<std::string_view>& expressions, std::string_view text) {
  const auto splitter = RegexSplitter::compile(expressions);
  EXPECT_TRUE(splitter.ok()) << splitter.status().message();
  return splitter.ok() ? split(*splitter, text) : Pieces();
}

Pieces split_as(std::string_view name, std::string_view text) {
  const auto pre_tokenizer = find_pre_tokenizer(name);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status().message();
  return pre_tokenizer.ok() ? split_by((*pre_tokenizer)->expressions, text) : Pieces();
}

TEST(RegexSplitter, MatchesAndGaps) {
  EXPECT_THAT(split_by({"[0-9]+"}, "ab12cd3"), ElementsAre("ab", "12", "cd", "3"));
  EXPECT_THAT(split_by({"x"}, "abc"), ElementsAre("abc"));
  EXPECT_THAT(split_by({"x"}, ""), IsEmpty());
  EXPECT_THAT(split_by({}, "abc"), ElementsAre("abc"));
  EXPECT_THAT(split_by({"x*"}, "axxb"), ElementsAre("a", "xx", "b"));
}

// A later expression sees each piece alone: nothing before it, nothing behind it.
TEST(RegexSplitter, StagesWorkOnPieces) {
  EXPECT_THAT(split_by({"[0-9]+", "[0-9][0-9]"}, "a123"), ElementsAre("a", "12", "3"));
  EXPECT_THAT(split_by({"-", "a$"}, "ba-ba"), ElementsAre("b", "a", "-", "b", "a"));
  EXPECT_THAT(split_by({"-", R"(\s+(?!\S))"}, "a  -  b"), ElementsAre("a", "  ", "-", " ", " b"));
}

TEST(RegexSplitter, WhiteSpaceIsUnicodes) {
  for (const char* space : {"\t", "\v", "\u0085", "\u00A0", "\u1680", "\u2003", "\u2028", "\u202F", "\u3000"})
    EXPECT_THAT(split_by({R"(\s)"}, std::string("a") + space + "b"), ElementsAre("a", space, "b"));
  for (const char* other : {"\u180E", "\u200B", "\u200D", "\u2060", "\uFEFF"})
    EXPECT_THAT(split_by({R"([\s])"}, std::string("a") + other + "b"), ElementsAre(std::string("a") + other + "b"));
  EXPECT_THAT(split_by({R"(\S+)"}, "a\u180E b"), ElementsAre("a\u180E", " ", "b"));
  EXPECT_THAT(split_by({R"(\\s)"}, R"(a\sb c)"), ElementsAre("a", R"(\s)", "b c"));
}

// More state than compiled code's stack holds.
TEST(RegexSplitter, DeepMatchesGoOnOnTheHeap) {
  const std::string text(200 * 1000, 'a');
  EXPECT_THAT(split_by({"(?:a|b)*(?=a|c)"}, text), ElementsAre(text.substr(1), "a"));
}

TEST(RegexSplitter, RefusesWhatDoesNotCompile) {
  const std::vector<std::string_view> expressions = {"a", "(b"};
  const auto splitter = RegexSplitter::compile(expressions);
  EXPECT_EQ(splitter.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(splitter.status().message(), HasSubstr("'(b'"));
}

TEST(PreTokenizers, NamesAreUniqueAndAllCompile) {
  std::set<std::string_view> names;
  for (const PreTokenizer& row : pre_tokenizers()) {
    ASSERT_FALSE(row.names.empty());
    const auto splitter = RegexSplitter::compile(row.expressions);
    EXPECT_TRUE(splitter.ok()) << splitter.status().message();
    for (const std::string_view name : row.names) {
      EXPECT_TRUE(names.insert(name).second) << name;
      const auto found = find_pre_tokenizer(name);
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(*found, &row);
    }
  }
  EXPECT_TRUE(names.contains(kDefaultPreTokenizer));
}

TEST(PreTokenizers, UnknownNamesAreRefusedWithTheKnownOnes) {
  const auto found = find_pre_tokenizer("nonesuch");
  EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(found.status().message(), HasSubstr("\"nonesuch\""));
  EXPECT_THAT(found.status().message(), HasSubstr("llama-bpe"));
  EXPECT_THAT(found.status().message(), HasSubstr("qwen2"));
  EXPECT_THAT(found.status().message(), ::testing::Not(HasSubstr("\n")));
}

TEST(PreTokenizers, Gpt2) {
  EXPECT_THAT(split_as("gpt-2", "Hello, y'all! It's 2024."),
              ElementsAre("Hello", ",", " y", "'", "all", "!", " It", "'s", " 2024", "."));
  EXPECT_THAT(split_as("gpt-2", "I'LL  go\n\n now "), ElementsAre("I", "'", "LL", " ", " go", "\n\n", " now", " "));
  EXPECT_THAT(split_as("gpt-2", "\tx \u4F60\u597D\U0001F600"), ElementsAre("\t", "x", " \u4F60\u597D", "\U0001F600"));
}

TEST(PreTokenizers, Llama3) {
  EXPECT_THAT(split_as("llama-bpe", "Hello, y'all! It'S 20245."),
              ElementsAre("Hello", ",", " y", "'all", "!", " It", "'S", " ", "202", "45", "."));
  EXPECT_THAT(split_as("llama-bpe", "x =  1;\r\n\n  if(\ty)\n"),
              ElementsAre("x", " =", " ", " ", "1", ";\r\n\n", " ", " if", "(", "\ty", ")\n"));
  EXPECT_THAT(split_as("llama-bpe", " \n \n  a"), ElementsAre(" \n \n", " ", " a"));
}

TEST(PreTokenizers, Qwen) {
  EXPECT_THAT(split_as("qwen2", "in 2024, we'Ll"), ElementsAre("in", " ", "2", "0", "2", "4", ",", " we", "'Ll"));
  // A combining mark is no letter to the one, and goes with its letter in the other.
  EXPECT_THAT(split_as("qwen2", "ne\u0301 e"), ElementsAre("ne", "\u0301", " e"));
  EXPECT_THAT(split_as("qwen35", "ne\u0301 e"), ElementsAre("ne\u0301", " e"));
}

TEST(PreTokenizers, DigitsAlone) {
  EXPECT_THAT(split_as("starcoder", "a 123b"), ElementsAre("a", " ", "1", "2", "3", "b"));
  EXPECT_THAT(split_as("falcon", "a 12345 b!="), ElementsAre("a", " ", "123", "45", " b", "!="));
  EXPECT_THAT(split_as("default", "a=12345`"), ElementsAre("a", "=", "123", "45", "`"));
}

TEST(PreTokenizers, Deepseek) {
  EXPECT_THAT(split_as("deepseek-llm", "Hi \u4F60\u597D, 12\n  "),
              ElementsAre("Hi", " ", "\u4F60\u597D", ",", " ", "12", "\n", "  "));
  EXPECT_THAT(split_as("deepseek-llm", "a  =  b   "), ElementsAre("a", " ", " =", " ", " b", "   "));
  EXPECT_THAT(split_as("deepseek-coder", "x_1 += 22;"), ElementsAre("x", "_", "1", " += ", "2", "2", ";"));
  EXPECT_THAT(split_as("deepseek-v3", "12345 \u4F60\u597Dabc.com  ok"),
              ElementsAre("123", "45", " ", "\u4F60\u597D", "abc", ".com", " ", " ok"));
}

TEST(PreTokenizers, CaseCounts) {
  EXPECT_THAT(split_as("gpt-4o", "HelloWorld it'sFOO a/b/"),
              ElementsAre("Hello", "World", " it's", "FOO", " a", "/b", "/"));
  EXPECT_THAT(split_as("tekken", "HelloWorld it's 12"), ElementsAre("Hello", "World", " it", "'s", " ", "1", "2"));
  EXPECT_THAT(split_as("tekken", "\u00C9t\u00E9\u00C9t\u00E9"), ElementsAre("\u00C9t\u00E9", "\u00C9t\u00E9"));
}

TEST(PreTokenizers, OtherScripts) {
  EXPECT_THAT(split_as("bloom", "Hei, maailma (1)."), ElementsAre("Hei", ",", " maailma", " (", "1", ")."));
  EXPECT_THAT(split_as("viking", "Hei 12"), ElementsAre("Hei", " ", "1", "2"));
  EXPECT_THAT(split_as("chameleon", "IMGIMGABZ a.1"), ElementsAre("IMGIMGABZ", " a", ".", "1"));
}

// How the package that runs published tokenizer.json files cuts texts (splits/make_splits.py).
TEST(PreTokenizers, CutAsPublishedExpressionsDo) {
  std::ifstream file(test::source_dir() + "/tests/text/splits/splits.json");
  const auto published = nlohmann::json::parse(file);
  ASSERT_GT(published["texts"].size(), 150U);
  for (const auto& [name, splits] : published["splits"].items()) {
    std::vector<std::string> names = published["same"].value(name, std::vector<std::string>());
    names.push_back(name);
    for (const std::string& other : names) {
      const auto pre_tokenizer = find_pre_tokenizer(other);
      ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status().message();
      const auto splitter = RegexSplitter::compile((*pre_tokenizer)->expressions);
      ASSERT_TRUE(splitter.ok()) << splitter.status().message();
      for (std::size_t i = 0; i < splits.size(); ++i) {
        const std::string text = published["texts"][i];
        std::vector<std::size_t> sizes;
        for (const std::string& piece : split(*splitter, text)) sizes.push_back(piece.size());
        EXPECT_EQ(sizes, splits[i].get<std::vector<std::size_t>>()) << other << ": \"" << text << '"';
      }
    }
  }
}

TEST(PreTokenizers, PiecesAreTheText) {
  std::mt19937 random(7);
  for (const PreTokenizer& row : pre_tokenizers()) {
    const auto splitter = RegexSplitter::compile(row.expressions);
    ASSERT_TRUE(splitter.ok());
    for (int i = 0; i < 100; ++i) {
      const std::string text = test::random_text(&random, i);
      std::string joined;
      for (const std::string& piece : split(*splitter, text)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      EXPECT_EQ(joined, text) << row.names[0];
    }
  }
}

}  // namespace
}  // namespace kvasir
