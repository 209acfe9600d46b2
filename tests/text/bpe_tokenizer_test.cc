#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "generation/token_stream.h"
#include "text/pre_tokenizers.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::add_merge;
using test::add_piece;
using test::bpe_vocabulary;
using test::encode;
using test::kNoSpecial;
using test::kParse;
using test::tokenizer_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Tokens = std::vector<TokenId>;

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(byte_to_piece('!'), "!");
  EXPECT_EQ(byte_to_piece('~'), "~");
  EXPECT_EQ(byte_to_piece(0x00), "\u0100");
  EXPECT_EQ(byte_to_piece('\n'), "\u010A");
  EXPECT_EQ(byte_to_piece(' '), "\u0120");
  EXPECT_EQ(byte_to_piece(0x7F), "\u0121");
  EXPECT_EQ(byte_to_piece(0xA0), "\u0142");
  EXPECT_EQ(byte_to_piece(0xA1), "\u00A1");
  EXPECT_EQ(byte_to_piece(0xAD), "\u0143");
  EXPECT_EQ(byte_to_piece(0xFF), "\u00FF");
}

TEST(ByteAlphabet, ThereAndBack) {
  std::string piece;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    piece += byte_to_piece(static_cast<std::uint8_t>(byte));
    bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(piece_to_bytes(piece), bytes);
  EXPECT_EQ(piece_to_bytes(""), "");
  for (const char* other : {" ", "a b", "\u00AD", "\u0144", "\u4F60", "\xC4", "\xFF", "a\xC4x", "\xC0\xA1"})
    EXPECT_EQ(piece_to_bytes(other), std::nullopt) << other;
}

TEST(BpeTokenizer, MergesByRankWithinWords) {
  Vocabulary vocabulary = bpe_vocabulary();
  const TokenId lo = add_merge(&vocabulary, "l", "o");
  const TokenId low = add_merge(&vocabulary, "lo", "w");
  const TokenId er = add_merge(&vocabulary, "e", "r");
  const TokenId space_low = add_merge(&vocabulary, "\u0120", "low");
  const TokenId wer = add_merge(&vocabulary, "w", "er");
  const auto tokenizer = tokenizer_of(vocabulary);
  EXPECT_THAT(encode(*tokenizer, "low lower", kNoSpecial), ElementsAre(low, space_low, er));
  EXPECT_THAT(encode(*tokenizer, "wer lo", kNoSpecial), ElementsAre(wer, ' ', lo));
  // No merge reaches over the end of a word.
  EXPECT_THAT(encode(*tokenizer, "lo1w", kNoSpecial), ElementsAre(lo, '1', 'w'));
  EXPECT_THAT(encode(*tokenizer, "", kNoSpecial), IsEmpty());
}

TEST(BpeTokenizer, LeftmostFirst) {
  Vocabulary vocabulary = bpe_vocabulary();
  const TokenId aa = add_merge(&vocabulary, "a", "a");
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "aaaaa", kNoSpecial), ElementsAre(aa, aa, 'a'));
}

// The definition, by exhaustion: look for each merge in the order of the list, from the left, and start over.
Tokens merge_naively(const Vocabulary& vocabulary, const std::string& word) {
  std::map<std::string, TokenId> ids;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) ids[vocabulary.pieces[i]] = static_cast<TokenId>(i);
  std::vector<std::string> symbols;
  for (const char c : word) symbols.push_back(byte_to_piece(static_cast<std::uint8_t>(c)));
  const auto merge_one = [&] {
    for (const std::string& merge : vocabulary.merges) {
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] + " " + symbols[i + 1] != merge) continue;
        symbols[i] += symbols[i + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        return true;
      }
    }
    return false;
  };
  while (merge_one()) continue;
  Tokens tokens;
  for (const std::string& symbol : symbols) {
    if (ids.contains(symbol)) {
      tokens.push_back(ids[symbol]);
    } else {
      for (const char byte : piece_to_bytes(symbol).value_or("")) tokens.push_back(static_cast<unsigned char>(byte));
    }
  }
  return tokens;
}

TEST(BpeTokenizer, MergesAsTheDefinitionSays) {
  const std::vector<std::string> letters = {"a", "b", "c", "\u00E9", "\u4E16"};
  std::mt19937 random(2);
  const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random()) % below; };
  int merged = 0;
  for (int round = 0; round < 200; ++round) {
    Vocabulary vocabulary = bpe_vocabulary();
    std::vector<std::string> parts;
    for (const std::string& letter : letters)
      for (const char byte : letter) parts.push_back(byte_to_piece(static_cast<std::uint8_t>(byte)));
    for (std::size_t i = pick(40); i > 0; --i) {
      const std::string left = parts[pick(parts.size())];
      const std::string right = parts[pick(parts.size())];
      if (std::find(parts.begin(), parts.end(), left + right) != parts.end()) continue;
      parts.push_back(left + right);
      vocabulary.merges.push_back(left + " " + right);
      if (pick(8) > 0) add_piece(&vocabulary, left + right);  // some results are no tokens
    }
    if (round % 2 == 0) std::shuffle(vocabulary.merges.begin(), vocabulary.merges.end(), random);
    const auto tokenizer = tokenizer_of(vocabulary);
    ASSERT_NE(tokenizer, nullptr);
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (std::size_t n = 1 + pick(30); n > 0; --n) word += letters[pick(letters.size())];
      const Tokens expected = merge_naively(vocabulary, word);
      merged += expected.size() < word.size();
      ASSERT_EQ(encode(*tokenizer, word, kNoSpecial), expected) << word;
    }
  }
  EXPECT_GT(merged, 100);
}

TEST(BpeTokenizer, IgnoresMergesForWholeWordsWhereTheModelDoes) {
  const auto encoded = [](const char* pre_tokenizer) {
    Vocabulary vocabulary = bpe_vocabulary(pre_tokenizer);
    add_merge(&vocabulary, "b", "c");     // 257
    add_piece(&vocabulary, "\u0120abc");  // 258, out of reach by merging
    return encode(*tokenizer_of(vocabulary), " abc", kNoSpecial);
  };
  EXPECT_THAT(encoded("llama-bpe"), ElementsAre(258));
  EXPECT_THAT(encoded("qwen2"), ElementsAre(' ', 'a', 257));
}

TEST(BpeTokenizer, RoundTripsAnyText) {
  std::mt19937 random(3);
  for (const PreTokenizer& row : pre_tokenizers()) {
    Vocabulary vocabulary = bpe_vocabulary(std::string(row.names[0]));
    for (const auto& [left, right] : {std::pair("a", "b"), {"\u0120", "a"}, {"\u0120", "\u0120"}, {"\u00C3", "\u00A9"}})
      add_merge(&vocabulary, left, right);
    add_piece(&vocabulary, "\u0120\u0120x", 0, TokenKind::kUserDefined);  // written so, not mapped
    const auto tokenizer = tokenizer_of(vocabulary);
    ASSERT_NE(tokenizer, nullptr);
    for (int i = 0; i < 60; ++i) {
      const std::string text = test::random_text(&random, i);
      EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text, kNoSpecial)), text) << row.names[0];
    }
    for (const std::string text : {" ", "  a", "a ", "<|endoftext|>", "\u0120\u0120x", "  x", "\n\n \u2581"})
      EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text, kNoSpecial)), text) << row.names[0];
  }
}

TEST(BpeTokenizer, BosAndEosAsTheVocabularyAsks) {
  Vocabulary vocabulary = bpe_vocabulary();
  vocabulary.bos = vocabulary.eos;
  vocabulary.add_bos = true;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "x"), ElementsAre(256, 'x'));
  vocabulary.add_eos = true;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "x"), ElementsAre(256, 'x', 256));
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "x", kNoSpecial), ElementsAre('x'));
  EXPECT_EQ(tokenizer_of(vocabulary)->decode(Tokens{256, ' ', 'x', 256}), " x");
}

TEST(BpeTokenizer, ControlTokensNeedParseSpecial) {
  Vocabulary vocabulary = bpe_vocabulary("llama-bpe");
  const TokenId mark = add_piece(&vocabulary, "[m]", 0, TokenKind::kUserDefined);
  const TokenId end = add_piece(&vocabulary, "end", 0, TokenKind::kControl);  // a whole word, and within merges
  vocabulary.merges = {"e n", "en d"};
  const auto tokenizer = tokenizer_of(vocabulary);
  EXPECT_THAT(encode(*tokenizer, "<|endoftext|>[m]end", kParse), ElementsAre(256, mark, end));
  const Tokens tokens = encode(*tokenizer, "<|endoftext|>[m] end", kNoSpecial);
  EXPECT_THAT(tokens, ::testing::Contains(mark));
  EXPECT_THAT(tokens, ::testing::Not(::testing::Contains(256)));
  EXPECT_THAT(tokens, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer->decode(tokens), "<|endoftext|>[m] end");
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "<|endoftext|>[m]x", kParse)), "[m]x");
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "<|endoftext|>[m]x", kParse), true), "<|endoftext|>[m]x");
}

TEST(BpeTokenizer, ReservedTokensAreNeverMade) {
  Vocabulary vocabulary = bpe_vocabulary("llama-bpe");
  const TokenId user = add_piece(&vocabulary, "user", 0, TokenKind::kUserDefined);
  vocabulary.merges = {"u s", "e r", "us er"};
  const auto tokenizer = tokenizer_of(vocabulary);
  const std::vector<TextSegment> segments = {{"user", true}, {"user", false}};
  const Tokens reserved = {user};
  const auto tokens = tokenizer->encode_segments(segments, false, reserved);
  ASSERT_TRUE(tokens.ok());
  EXPECT_THAT(*tokens, ElementsAre(user, 'u', 's', 'e', 'r'));
}

TEST(BpeTokenizer, SegmentsAreOneText) {
  Vocabulary vocabulary = bpe_vocabulary();
  const TokenId ab = add_merge(&vocabulary, "a", "b");
  const auto tokenizer = tokenizer_of(vocabulary);
  const std::vector<TextSegment> segments = {{"xa", false}, {"", true}, {"b<|end", false}, {"oftext|>", true}};
  const auto tokens = tokenizer->encode_segments(segments, false, {});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ((*tokens)[1], ab);
  EXPECT_EQ(*tokens, encode(*tokenizer, "xab<|endoftext|>", kNoSpecial));
}

TEST(BpeTokenizer, WhatHasNoTokenFallsBack) {
  Vocabulary vocabulary = bpe_vocabulary();
  vocabulary.merges = {"a b"};  // "ab" itself is no token
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "xab", kNoSpecial), ElementsAre('x', 'a', 'b'));
  vocabulary.pieces['b'] = "nothing";
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "xa abc", kNoSpecial), ElementsAre('x', 'a', ' ', 'a', 'c'));
  // A control token does not stand for what is unknown.
  vocabulary.unknown = vocabulary.eos;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "xbc", kNoSpecial), ElementsAre('x', 'c'));
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "b", kNoSpecial), IsEmpty());
  vocabulary.unknown = add_piece(&vocabulary, "<unk>", 0, TokenKind::kUnknown);
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "xab", kNoSpecial), ElementsAre('x', 'a', *vocabulary.unknown));
}

TEST(BpeTokenizer, PiecesOutsideTheAlphabetAreDecodedAsTheyAre) {
  Vocabulary vocabulary = bpe_vocabulary();
  const TokenId keycap = add_piece(&vocabulary, "\u20E3");
  const TokenId spaces = add_piece(&vocabulary, "  ", 0, TokenKind::kUserDefined);
  const auto tokenizer = tokenizer_of(vocabulary);
  EXPECT_EQ(tokenizer->decode(Tokens{keycap, spaces, 'a'}), "\u20E3  a");
  EXPECT_THAT(encode(*tokenizer, "a  b", kNoSpecial), ElementsAre('a', spaces, 'b'));
  EXPECT_EQ(encode(*tokenizer, "\u20E3", kNoSpecial).size(), 3U);
}

TEST(BpeTokenizer, InvalidUtf8NamesTheByte) {
  const auto tokens = tokenizer_of(bpe_vocabulary())->encode("caf\xE9", {});
  EXPECT_EQ(tokens.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tokens.status().message(), HasSubstr("at byte 3 "));
}

TEST(BpeTokenizer, StreamsLikeItDecodes) {
  Vocabulary vocabulary = bpe_vocabulary();
  add_merge(&vocabulary, "\u0120", "a");
  add_merge(&vocabulary, "\u00C3", "\u00A9");
  const auto tokenizer = tokenizer_of(vocabulary);
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const std::string text = test::random_text(&random, 30);
    TokenStream stream(*tokenizer, true);
    std::string streamed;
    for (const TokenId token : encode(*tokenizer, text, kNoSpecial)) streamed += stream.push(token);
    EXPECT_EQ(streamed + stream.flush(), text);
  }
}

TEST(BpeTokenizer, RefusesMalformedVocabularies) {
  const auto message = [](Vocabulary vocabulary, StatusCode code = StatusCode::kDataLoss) {
    const auto tokenizer = make_bpe_tokenizer(std::move(vocabulary));
    EXPECT_EQ(tokenizer.status().code(), code);
    return tokenizer.status().message();
  };
  EXPECT_THAT(message({}), HasSubstr("empty"));
  for (const char* merge : {"", " ", "ab", "a b c", " a", "a ", "a  b"}) {
    Vocabulary vocabulary = bpe_vocabulary();
    vocabulary.merges = {"a b", merge};
    EXPECT_THAT(message(vocabulary), HasSubstr("merge 1")) << merge;
  }
  Vocabulary vocabulary = bpe_vocabulary();
  vocabulary.merges = {"\u4F60 a"};
  EXPECT_THAT(message(vocabulary), HasSubstr("alphabet"));
  EXPECT_THAT(message(bpe_vocabulary("nonesuch"), StatusCode::kUnsupported), HasSubstr("nonesuch"));
  vocabulary = bpe_vocabulary();
  vocabulary.ends = {257};
  EXPECT_THAT(message(vocabulary), HasSubstr("end token is 257"));
  vocabulary = bpe_vocabulary();
  vocabulary.strip_after = {-1};
  EXPECT_THAT(message(vocabulary), HasSubstr("-1"));
}

TEST(BpeTokenizer, TheKindOfTheVocabularyDecides) {
  EXPECT_THAT(encode(*tokenizer_of(bpe_vocabulary()), " a", kNoSpecial), ElementsAre(' ', 'a'));
  Vocabulary vocabulary = test::byte_vocabulary();
  vocabulary.add_space_prefix = false;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "a", kNoSpecial), ElementsAre(3 + 'a'));
}

}  // namespace
}  // namespace kvasir
