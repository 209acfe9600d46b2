// Long texts take as much longer than short ones as they are longer.
#include <gtest/gtest.h>

#include <random>

#include "support/scaling.h"
#include "text/long_text.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::kMegabyte;
using test::kTimes;

void expect_linear_round_trip(const std::string& text) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  std::vector<TokenId> tokens;
  const auto encode = [&](std::string_view part) { tokens = test::encode(*tokenizer, part, {}); };
  test::expect_linear(
      kTimes, [&] { encode(text.substr(0, text.size() / kTimes)); }, [&] { encode(text); });
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(SpmTokenizerTime, TenMegabytesOfWords) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 10 * kMegabyte) {
    for (auto n = 1 + random() % 10; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += random() % 10 == 0 ? ".\n" : " ";
  }
  expect_linear_round_trip(text);
}

TEST(SpmTokenizerTime, OneMegabyteOfOneLetter) {
  expect_linear_round_trip(std::string(kMegabyte, 'a'));
}
TEST(SpmTokenizerTime, OneMegabyteOfSpaces) {
  expect_linear_round_trip(std::string(kMegabyte, ' '));
}

TEST(SpmTokenizerTime, OneMegabyteWithoutSpaces) {
  std::mt19937 random(2);
  std::string text;
  while (text.size() < kMegabyte) text += "etaoinshr"[random() % 9];
  expect_linear_round_trip(text);
}

TEST(SpmTokenizerTime, OneMegabyteOfMarkers) {
  std::string text;
  while (text.size() < kMegabyte) text += "<|user|>";
  expect_linear_round_trip(text);
}

// All merges possible: one run of a million symbols over a vocabulary of powers of two.
TEST(SpmTokenizerTime, OneRunOfAMillionSymbols) {
  Vocabulary vocabulary = test::byte_vocabulary();
  vocabulary.add_space_prefix = false;
  for (std::size_t size = 1; size <= 64; size *= 2) {
    test::add_piece(&vocabulary, std::string(size, 'a'), -static_cast<float>(size));
  }
  const auto tokenizer = test::tokenizer_of(vocabulary);
  std::vector<TokenId> tokens;
  const auto encode = [&](std::size_t size) {
    tokens = test::encode(*tokenizer, std::string(size, 'a'), {.add_special = false});
  };
  test::expect_linear(
      kTimes, [&] { encode(64 * (kMegabyte / 64) / kTimes); }, [&] { encode(64 * (kMegabyte / 64)); });
  EXPECT_EQ(tokens, std::vector<TokenId>(kMegabyte / 64, 259 + 6));
}

}  // namespace
}  // namespace kvasir
