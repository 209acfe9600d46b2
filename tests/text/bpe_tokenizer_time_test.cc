// Long texts under every pre-tokenizer take as much longer than short ones as they are longer.
#include <gtest/gtest.h>

#include <random>

#include "support/scaling.h"
#include "text/long_text.h"
#include "text/pre_tokenizers.h"
#include "text/regex_splitter.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::kMegabyte;
using test::kTimes;

std::string repeated(std::string_view part, std::size_t size) {
  std::string text;
  while (text.size() < size) text += part;
  return text;
}

// Runs that some expression looks ahead over, and runs that end in what it looked for.
std::vector<std::string> hard_texts(std::size_t size) {
  std::vector<std::string> texts;
  for (const char* part :
       {"a",      "A",      " ",      "\n",         "\r",     "\t",      "7",           "!",      "'",  "/",
        "\u0301", "\u3000", "\u4E16", "\U0001F600", "\u200D", "\x01",    " \n",         " \t",    "a'", "'s",
        "Aa",     "!/",     "!\n",    " \u00BD",    "\x01 ",  "\u0301A", "<sentinel:1", "IMGIMGA"})
    texts.push_back(repeated(part, size));
  const std::string thousand(1000, ' ');
  for (const char* end : {"x", "\n", "7", "!", "\u4E16", "\u0301", "\x01"}) {
    texts.push_back(std::string(size, ' ') + end);
    texts.push_back(repeated(thousand + end, size));
    texts.push_back(repeated(std::string(1000, '\t') + end, size));
    texts.push_back(repeated(std::string(1000, 'A') + end, size));
    texts.push_back(repeated(std::string(1000, '7') + end, size));
  }
  return texts;
}

TEST(BpeTokenizerTime, EveryPreTokenizerIsLinear) {
  const std::vector<std::string> texts = hard_texts(kMegabyte);
  const std::vector<std::string> shorter = hard_texts(kMegabyte / kTimes);
  for (const PreTokenizer& row : pre_tokenizers()) {
    const auto splitter = RegexSplitter::compile(row.expressions);
    ASSERT_TRUE(splitter.ok());
    const auto split = [&](const std::string& text) {
      std::size_t bytes = 0;
      const Status status = splitter->split(text, [&](std::string_view piece) { bytes += piece.size(); });
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(bytes, text.size());
    };
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(std::string(row.names[0]) + " '" + texts[i].substr(0, 12) + "...'");
      test::expect_linear(
          kTimes, [&] { split(shorter[i]); }, [&] { split(texts[i]); });
    }
  }
}

// All runs of up to 64 of the byte are pieces.
Vocabulary runs_vocabulary(std::string_view pre_tokenizer, const std::string& piece) {
  Vocabulary vocabulary = test::bpe_vocabulary(std::string(pre_tokenizer));
  std::string run = piece;
  for (int doubling = 0; doubling < 6; ++doubling, run += run) test::add_merge(&vocabulary, run, run);
  return vocabulary;
}

TEST(BpeTokenizerTime, OneWordOfAMillionBytes) {
  for (const char* byte : {"a", "!", "\u0120"}) {
    const auto tokenizer = test::tokenizer_of(runs_vocabulary("llama-bpe", byte));
    ASSERT_NE(tokenizer, nullptr);
    const std::string text(64 * (kMegabyte / 64), (*piece_to_bytes(byte))[0]);
    std::vector<TokenId> tokens;
    const auto encode = [&](std::string_view part) { tokens = test::encode(*tokenizer, part, {.add_special = false}); };
    test::expect_linear(
        kTimes, [&] { encode(text.substr(0, text.size() / kTimes)); }, [&] { encode(text); });
    EXPECT_EQ(tokens, std::vector<TokenId>(kMegabyte / 64, 256 + 6));
  }
}

TEST(BpeTokenizerTime, TenMegabytesOfWords) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 10 * kMegabyte) {
    for (auto n = 1 + random() % 10; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += random() % 10 == 0 ? ".\n" : " ";
  }
  for (const char* pre_tokenizer : {"gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "gpt-4o"}) {
    const auto tokenizer = test::tokenizer_of(runs_vocabulary(pre_tokenizer, "e"));
    ASSERT_NE(tokenizer, nullptr);
    std::vector<TokenId> tokens;
    const auto encode = [&](std::string_view part) { tokens = test::encode(*tokenizer, part, {.add_special = false}); };
    test::expect_linear(
        kTimes, [&] { encode(text.substr(0, text.size() / kTimes)); }, [&] { encode(text); });
    EXPECT_EQ(tokenizer->decode(tokens), text);
  }
}

}  // namespace
}  // namespace kvasir
