// Long texts under every pre-tokenizer: what takes a quadratic search hours takes this one seconds. The bounds leave
// room for slow machines.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "text/long_text.h"
#include "text/pre_tokenizers.h"
#include "text/regex_splitter.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::kMegabyte;

template <class Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string repeated(std::string_view part) {
  std::string text;
  while (text.size() < kMegabyte) text += part;
  return text;
}

// Runs that some expression looks ahead over, and runs that end in what it looked for.
std::vector<std::string> hard_texts() {
  std::vector<std::string> texts;
  for (const char* part :
       {"a",      "A",      " ",      "\n",         "\r",     "\t",      "7",           "!",      "'",  "/",
        "\u0301", "\u3000", "\u4E16", "\U0001F600", "\u200D", "\x01",    " \n",         " \t",    "a'", "'s",
        "Aa",     "!/",     "!\n",    " \u00BD",    "\x01 ",  "\u0301A", "<sentinel:1", "IMGIMGA"})
    texts.push_back(repeated(part));
  const std::string thousand(1000, ' ');
  for (const char* end : {"x", "\n", "7", "!", "\u4E16", "\u0301", "\x01"}) {
    texts.push_back(std::string(kMegabyte, ' ') + end);
    texts.push_back(repeated(thousand + end));
    texts.push_back(repeated(std::string(1000, '\t') + end));
    texts.push_back(repeated(std::string(1000, 'A') + end));
    texts.push_back(repeated(std::string(1000, '7') + end));
  }
  return texts;
}

TEST(BpeTokenizerTime, EveryPreTokenizerIsLinear) {
  const std::vector<std::string> texts = hard_texts();
  for (const PreTokenizer& row : pre_tokenizers()) {
    const auto splitter = RegexSplitter::compile(row.expressions);
    ASSERT_TRUE(splitter.ok());
    for (const std::string& text : texts) {
      std::size_t bytes = 0;
      const double elapsed = seconds([&] {
        const Status status = splitter->split(text, [&](std::string_view piece) { bytes += piece.size(); });
        EXPECT_TRUE(status.ok()) << status.message();
      });
      EXPECT_EQ(bytes, text.size());
      EXPECT_LT(elapsed, 10.0) << row.names[0] << " '" << text.substr(0, 12) << "...'";
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
    EXPECT_LT(seconds([&] { tokens = test::encode(*tokenizer, text, {.add_special = false}); }), 20.0);
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
    EXPECT_LT(seconds([&] { tokens = test::encode(*tokenizer, text, {.add_special = false}); }), 20.0);
    EXPECT_EQ(tokenizer->decode(tokens), text);
  }
}

}  // namespace
}  // namespace kvasir
