#include "generation/token_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::byte_token;

using Tokens = std::vector<TokenId>;

std::string stream_bytes(std::string_view bytes) {
  Vocabulary vocabulary = test::byte_vocabulary();
  vocabulary.add_space_prefix = false;
  const auto tokenizer = test::tokenizer_of(vocabulary);
  TokenStream stream(*tokenizer, false);
  std::string text;
  for (const char c : bytes) text += stream.push(byte_token(c));
  return text + stream.flush();
}

TEST(TokenStream, HoldsBackIncompleteCharacters) {
  const auto tokenizer = test::tokenizer_of(test::byte_vocabulary());
  for (const std::string text : {"\u00E9", "\u4E16", "\U0001F600"}) {
    TokenStream stream(*tokenizer, false);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool last = i + 1 == text.size();
      EXPECT_EQ(stream.push(byte_token(text[i])), last ? text : "") << i;
    }
    EXPECT_EQ(stream.flush(), "");
  }
}

TEST(TokenStream, EqualsTheWholeDecode) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    std::string text = test::random_text(&random, 30);
    if (i % 3 == 0) text += "<|user|>" + test::random_text(&random, 5);
    const Tokens tokens = test::encode(*tokenizer, text);
    TokenStream stream(*tokenizer, true);
    std::string streamed;
    for (const TokenId token : tokens) {
      const std::string part = stream.push(token);
      EXPECT_FALSE(find_invalid_utf8(part)) << part;
      streamed += part;
    }
    EXPECT_EQ(streamed + stream.flush(), text);
  }
}

// A piece may end, and another begin, inside a character: every way to cut the text into pieces gives the text.
TEST(TokenStream, EverySplitGivesTheSameText) {
  const std::string text = "a\u00E9\u4E16\U0001F600";
  for (unsigned cuts = 0; cuts < 1U << (text.size() - 1); ++cuts) {
    Vocabulary vocabulary = test::byte_vocabulary();
    vocabulary.add_space_prefix = false;
    Tokens tokens;
    std::string piece;
    for (std::size_t i = 0; i < text.size(); ++i) {
      piece += text[i];
      if (i + 1 < text.size() && (cuts >> i & 1) == 0) continue;
      tokens.push_back(test::add_piece(&vocabulary, piece));
      piece.clear();
    }
    const auto tokenizer = test::tokenizer_of(vocabulary);
    TokenStream stream(*tokenizer, false);
    std::string streamed;
    for (const TokenId token : tokens) streamed += stream.push(token);
    ASSERT_EQ(streamed, text) << cuts;
    ASSERT_EQ(stream.flush(), "");
  }
}

// The examples of the Unicode Standard 15.0, section 3.9, tables 3-8 to 3-11.
TEST(TokenStream, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(stream_bytes("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(stream_bytes("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(stream_bytes("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(stream_bytes("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(stream_bytes("x\xF0\x9F\x98"), "x" + r);
}

TEST(TokenStream, RandomBytesBecomeValidUtf8) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bytes;
    for (int n = 0; n < 20; ++n)
      bytes += static_cast<char>(random() % 2 == 0 ? 0xE0 + random() % 24 : 0x80 + random() % 64);
    EXPECT_FALSE(find_invalid_utf8(stream_bytes(bytes)));
  }
}

TEST(TokenStream, StripsOneSpaceWhereATextStarts) {
  Vocabulary vocabulary = test::byte_vocabulary();
  const TokenId word = test::add_piece(&vocabulary, "\u2581\u2581w");
  const auto tokenizer = test::tokenizer_of(vocabulary);
  TokenStream start(*tokenizer, true);
  EXPECT_EQ(start.push(*vocabulary.bos), "");
  EXPECT_EQ(start.push(word), " w");
  EXPECT_EQ(start.push(word), "  w");
  TokenStream continuation(*tokenizer, false);
  EXPECT_EQ(continuation.push(word), "  w");
  EXPECT_EQ(continuation.push(*vocabulary.eos), "");
  EXPECT_EQ(continuation.push(word), " w");
}

TEST(TokenStream, ContinuesFromItsState) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(4);
  int incomplete = 0;
  int strips = 0;
  for (int i = 0; i < 300; ++i) {
    const Tokens tokens =
        test::encode(*tokenizer, test::random_text(&random, 20) + "<|user|>" + test::random_text(&random, 5),
                     {.parse_special = true});
    TokenStream whole(*tokenizer, true);
    TokenStream parts(*tokenizer, true);
    for (const TokenId token : tokens) {
      const TokenStreamState state = parts.state();
      incomplete += state.pending.empty() ? 0 : 1;
      strips += state.strips_space ? 1 : 0;
      auto next = TokenStream::from_state(*tokenizer, state);
      ASSERT_TRUE(next.ok()) << next.status().message();
      parts = std::move(*next);
      ASSERT_EQ(parts.push(token), whole.push(token));
      ASSERT_EQ(parts.mid_character(), whole.mid_character());
    }
    ASSERT_EQ(parts.flush(), whole.flush());
  }
  EXPECT_GT(incomplete, 100);
  EXPECT_GT(strips, 300);
}

TEST(TokenStream, StatesThatNoTokensLeadToAreRefused) {
  const auto spm = test::tokenizer_of(test::byte_vocabulary());
  const auto bpe = test::tokenizer_of(test::bpe_vocabulary());
  EXPECT_TRUE(TokenStream::from_state(*spm, {"\xE4\xB8", true}).ok());
  EXPECT_TRUE(TokenStream::from_state(*bpe, {"\xF0\x9F\x98", false}).ok());
  EXPECT_EQ(TokenStream::from_state(*bpe, {"", true}).status().code(), StatusCode::kDataLoss);
  for (const char* pending : {"a", "\xE4\xB8\x96", "\x80", "\xE4\xE4", "\xED\xA0"})
    EXPECT_EQ(TokenStream::from_state(*spm, {pending, false}).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvasir
