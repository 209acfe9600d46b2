// Long texts: what takes a quadratic tokenizer hours takes this one seconds. The bounds leave room for slow machines.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "text/long_text.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::kMegabyte;

void expect_fast_round_trip(const std::string& text) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  const auto start = std::chrono::steady_clock::now();
  const auto tokens = tokenizer->encode(text, {});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(tokens.ok());
  EXPECT_LT(elapsed.count(), 20.0);
  ::testing::Test::RecordProperty("seconds", std::to_string(elapsed.count()));
  EXPECT_EQ(tokenizer->decode(*tokens), text);
}

TEST(SpmTokenizerTime, TenMegabytesOfWords) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 10 * kMegabyte) {
    for (auto n = 1 + random() % 10; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += random() % 10 == 0 ? ".\n" : " ";
  }
  expect_fast_round_trip(text);
}

TEST(SpmTokenizerTime, OneMegabyteOfOneLetter) {
  expect_fast_round_trip(std::string(kMegabyte, 'a'));
}
TEST(SpmTokenizerTime, OneMegabyteOfSpaces) {
  expect_fast_round_trip(std::string(kMegabyte, ' '));
}

TEST(SpmTokenizerTime, OneMegabyteWithoutSpaces) {
  std::mt19937 random(2);
  std::string text;
  while (text.size() < kMegabyte) text += "etaoinshr"[random() % 9];
  expect_fast_round_trip(text);
}

TEST(SpmTokenizerTime, OneMegabyteOfMarkers) {
  std::string text;
  while (text.size() < kMegabyte) text += "<|user|>";
  expect_fast_round_trip(text);
}

// All merges possible: one run of a million symbols over a vocabulary of powers of two.
TEST(SpmTokenizerTime, OneRunOfAMillionSymbols) {
  Vocabulary vocabulary = test::byte_vocabulary();
  vocabulary.add_space_prefix = false;
  for (std::size_t size = 1; size <= 64; size *= 2) {
    test::add_piece(&vocabulary, std::string(size, 'a'), -static_cast<float>(size));
  }
  const auto tokenizer = test::tokenizer_of(vocabulary);
  const auto start = std::chrono::steady_clock::now();
  const auto tokens = tokenizer->encode(std::string(64 * (kMegabyte / 64), 'a'), {.add_special = false});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokens, std::vector<TokenId>(kMegabyte / 64, 259 + 6));
  EXPECT_LT(elapsed.count(), 20.0);
}

}  // namespace
}  // namespace kvasir
