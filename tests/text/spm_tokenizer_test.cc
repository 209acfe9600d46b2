#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::add_piece;
using test::byte_token;
using test::byte_vocabulary;
using test::encode;
using test::kByte0;
using test::kNoSpecial;
using test::kParse;
using test::tokenizer_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Tokens = std::vector<TokenId>;

// Llama 2's ids for control tokens and what follows them, as llama.cpp gives them.
TEST(SpmTokenizer, TextAfterAControlTokenTakesTheSpaceToo) {
  KVASIR_SHARED_OR_SKIP(path, "vocab/ggml-vocab-llama-spm.gguf");
  const auto tokenizer = test::tokenizer_of_file(path);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(encode(*tokenizer, "Hello", {}), ElementsAre(1, 15043));
  EXPECT_THAT(encode(*tokenizer, "Hello</s>Hello", kParse), ElementsAre(15043, 2, 15043));
  EXPECT_THAT(encode(*tokenizer, "", {}), ElementsAre(1));
  EXPECT_THAT(encode(*tokenizer, "", kNoSpecial), IsEmpty());
}

TEST(SpmTokenizer, RoundTripsAnyText) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = test::random_text(&random, i % 60);
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text)), text);
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text, kNoSpecial)), text);
  }
  for (const std::string text : {" ", "  a", "a ", "<|user|>", "a<|user|> b<|user|><|user|>\n", "<|user|>  x"}) {
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text)), text);
  }
}

// The definition, by exhaustion: look at every adjacent pair, merge the best one, start over.
Tokens merge_naively(const Vocabulary& vocabulary, const std::vector<std::string>& characters) {
  std::map<std::string, TokenId> ids;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    if (vocabulary.kinds[i] == TokenKind::kNormal) ids[vocabulary.pieces[i]] = static_cast<TokenId>(i);
  }
  std::vector<std::string> symbols;
  for (const std::string& c : characters) symbols.push_back(c == " " ? "\u2581" : c);
  for (;;) {
    std::size_t best = symbols.size();
    float best_score = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto id = ids.find(symbols[i] + symbols[i + 1]);
      if (id == ids.end()) continue;
      const float score = vocabulary.scores[static_cast<std::size_t>(id->second)];
      if (best == symbols.size() || score > best_score) {
        best = i;
        best_score = score;
      }
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Tokens tokens;
  for (const std::string& symbol : symbols) {
    if (ids.contains(symbol)) {
      tokens.push_back(ids[symbol]);
    } else {
      for (const char c : symbol) tokens.push_back(byte_token(c));
    }
  }
  return tokens;
}

TEST(SpmTokenizer, MergesAsTheDefinitionSays) {
  const std::vector<std::string> alphabet = {"a", "b", "c", " ", "\u00E9", "\u4E16", "\U0001F600"};
  std::mt19937 random(2);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int merged = 0;
  for (int round = 0; round < 200; ++round) {
    Vocabulary vocabulary = byte_vocabulary();
    vocabulary.add_space_prefix = false;
    for (const std::string& c : alphabet) {
      if (pick(0, 3) > 0) add_piece(&vocabulary, c == " " ? "\u2581" : c, -100);
    }
    for (int i = pick(0, 40); i > 0; --i) {
      std::string piece;
      for (int n = pick(2, 5); n > 0; --n) {
        const std::string& c = alphabet[static_cast<std::size_t>(pick(0, 6))];
        piece += c == " " ? "\u2581" : c;
      }
      add_piece(&vocabulary, piece, static_cast<float>(-pick(0, 8)));  // ties are common
    }
    const auto tokenizer = tokenizer_of(vocabulary);
    ASSERT_NE(tokenizer, nullptr);
    for (int i = 0; i < 20; ++i) {
      std::vector<std::string> characters;
      std::string text;
      for (int n = pick(0, 40); n > 0; --n) {
        characters.push_back(alphabet[static_cast<std::size_t>(pick(0, 6))]);
        text += characters.back();
      }
      const Tokens expected = merge_naively(vocabulary, characters);
      merged += expected.size() < characters.size();
      ASSERT_EQ(encode(*tokenizer, text, kNoSpecial), expected) << text;
    }
  }
  EXPECT_GT(merged, 100);
}

TEST(SpmTokenizer, LeftmostFirstAmongEqualScores) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  const TokenId a = add_piece(&vocabulary, "a");
  const TokenId aa = add_piece(&vocabulary, "aa", -1);
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "aaaaa", kNoSpecial), ElementsAre(aa, aa, a));
}

TEST(SpmTokenizer, FallsBackToBytesThenToUnknown) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "\u00E9 ", kNoSpecial),
              ElementsAre(kByte0 + 0xC3, kByte0 + 0xA9, kByte0 + 0xE2, kByte0 + 0x96, kByte0 + 0x81));
  // One byte of the character is missing: the character is unknown as a whole.
  vocabulary.kinds[kByte0 + 0xA9] = TokenKind::kNormal;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "\u00E9a", kNoSpecial), ElementsAre(0, kByte0 + 'a'));
  EXPECT_EQ(tokenizer_of(vocabulary)->decode(Tokens{0}), "");
  EXPECT_EQ(tokenizer_of(vocabulary)->decode(Tokens{0}, true), "<unk>");
}

TEST(SpmTokenizer, BosAndEosAsTheVocabularyAsks) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  for (const bool bos : {false, true}) {
    for (const bool eos : {false, true}) {
      vocabulary.add_bos = bos;
      vocabulary.add_eos = eos;
      const auto tokenizer = tokenizer_of(vocabulary);
      Tokens expected;
      if (bos) expected.push_back(1);
      expected.push_back(kByte0 + 'x');
      if (eos) expected.push_back(2);
      EXPECT_EQ(encode(*tokenizer, "x"), expected);
      EXPECT_THAT(encode(*tokenizer, "x", kNoSpecial), ElementsAre(kByte0 + 'x'));
      EXPECT_EQ(tokenizer->decode(expected), "x");
    }
  }
}

TEST(SpmTokenizer, ControlTokensNeedParseSpecial) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  const TokenId mark = add_piece(&vocabulary, "[m]", 0, TokenKind::kUserDefined);
  add_piece(&vocabulary, "</", 5);  // on the way to "</s>" by merging
  add_piece(&vocabulary, "</s", 5);
  const auto tokenizer = tokenizer_of(vocabulary);
  EXPECT_THAT(encode(*tokenizer, "</s>[m]<s>", kParse), ElementsAre(2, mark, 1));
  const Tokens tokens = encode(*tokenizer, "</s>[m]<unk>", kNoSpecial);
  EXPECT_THAT(tokens, ::testing::Contains(mark));
  EXPECT_THAT(tokens, ::testing::Not(::testing::Contains(2)));
  EXPECT_THAT(tokens, ::testing::Not(::testing::Contains(0)));
  EXPECT_EQ(tokenizer->decode(tokens), "</s>[m]<unk>");
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "</s>[m]<s>", kParse)), "[m]");
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "</s>[m]<s>", kParse), true), "</s>[m]<s>");
}

TEST(SpmTokenizer, LongerTokensAreSplitOffFirst) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  const TokenId two = add_piece(&vocabulary, "xx", 0, TokenKind::kUserDefined);
  const TokenId three = add_piece(&vocabulary, "yxx", 0, TokenKind::kUserDefined);
  const TokenId twin = add_piece(&vocabulary, "zx", 0, TokenKind::kUserDefined);
  const auto tokenizer = tokenizer_of(vocabulary);
  // From the left, "xx" would come first and leave "yx": the longer token wins although it starts later.
  EXPECT_THAT(encode(*tokenizer, "xyxxx", kNoSpecial), ElementsAre(kByte0 + 'x', three, kByte0 + 'x'));
  EXPECT_THAT(encode(*tokenizer, "xxxxx", kNoSpecial), ElementsAre(two, two, kByte0 + 'x'));
  // Of equal length, the one defined first.
  EXPECT_THAT(encode(*tokenizer, "zxx", kNoSpecial), ElementsAre(kByte0 + 'z', two));
  EXPECT_THAT(encode(*tokenizer, "zxy", kNoSpecial), ElementsAre(twin, kByte0 + 'y'));
}

TEST(SpmTokenizer, SpacePrefixAfterEveryRecognisedToken) {
  Vocabulary vocabulary = byte_vocabulary();
  const TokenId mark = add_piece(&vocabulary, "[m]", 0, TokenKind::kUserDefined);
  const TokenId space = add_piece(&vocabulary, "\u2581");
  const TokenId a = add_piece(&vocabulary, "a");
  const auto tokenizer = tokenizer_of(vocabulary);
  EXPECT_THAT(encode(*tokenizer, "a[m]a", kNoSpecial), ElementsAre(space, a, mark, space, a));
  EXPECT_THAT(encode(*tokenizer, "[m][m] a", kNoSpecial), ElementsAre(mark, mark, space, space, a));
  EXPECT_EQ(tokenizer->decode(Tokens{space, a, mark, space, a}), "a[m]a");
  EXPECT_EQ(tokenizer->decode(Tokens{space, space, a}), " a");
  vocabulary.add_space_prefix = false;
  EXPECT_THAT(encode(*tokenizer_of(vocabulary), "a[m] a", kNoSpecial), ElementsAre(a, mark, space, a));
  EXPECT_EQ(tokenizer_of(vocabulary)->decode(Tokens{space, a}), " a");
}

// Across the parts of a text too, as if they were written together.
TEST(SpmTokenizer, TokensMaySwallowTheWhiteSpaceBehindThem) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_space_prefix = false;
  const TokenId mark = add_piece(&vocabulary, "[m]", 0, TokenKind::kUserDefined);
  const TokenId other = add_piece(&vocabulary, "[n]", 0, TokenKind::kUserDefined);
  vocabulary.strip_after = {mark};
  const auto tokenizer = tokenizer_of(vocabulary);
  const TokenId a = kByte0 + 'a';
  const TokenId newline = kByte0 + '\n';
  EXPECT_THAT(encode(*tokenizer, "a\n[m] \t\u00A0\n\u3000a\n[n]\na", kNoSpecial),
              ElementsAre(a, newline, mark, a, newline, other, newline, a));
  EXPECT_THAT(encode(*tokenizer, "[m] \n[m] [n]\n", kNoSpecial), ElementsAre(mark, mark, other, newline));
  const std::vector<TextSegment> segments = {{"[m]\n", true}, {"\n a\n", false}, {"[m]", true}, {"\n", false}};
  const auto tokens = tokenizer->encode_segments(segments, false, {});
  ASSERT_TRUE(tokens.ok());
  EXPECT_THAT(*tokens, ElementsAre(mark, a, newline, mark));
}

TEST(SpmTokenizer, InvalidUtf8NamesTheByte) {
  const auto tokenizer = tokenizer_of(byte_vocabulary());
  const std::vector<std::pair<std::string, std::size_t>> texts = {
      {"\xFF", 0},          {"caf\xE9", 3},          {"ab\xE4\xB8", 2}, {"\xC0\xAF", 0},
      {"a\xED\xA0\x80", 1}, {"\xF4\x90\x80\x80", 0}, {"\u4E16\x80", 3}, {"x\xE0\x80\x80", 1},
  };
  for (const auto& [text, offset] : texts) {
    const auto tokens = tokenizer->encode(text, {});
    ASSERT_FALSE(tokens.ok()) << offset;
    EXPECT_EQ(tokens.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(tokens.status().message(), HasSubstr("at byte " + std::to_string(offset) + " "));
    EXPECT_THAT(tokens.status().message(), HasSubstr("iconv"));
  }
  const std::vector<TextSegment> segments = {{"four", false}, {"\u00E9\x80", false}};
  EXPECT_THAT(tokenizer->encode_segments(segments, true, {}).status().message(), HasSubstr("at byte 6 "));
}

TEST(SpmTokenizer, SegmentsAreOneText) {
  const auto tokenizer = test::tokenizer_of_file(test::small_model());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<TextSegment> segments;
    std::string whole;
    for (int n = 0; n < 4; ++n) {
      segments.push_back({test::random_text(&random, n == i % 4 ? 0 : 10) + "the", n % 2 == 0});
      whole += segments.back().text;
    }
    const auto tokens = tokenizer->encode_segments(segments, true, {});
    ASSERT_TRUE(tokens.ok());
    EXPECT_EQ(*tokens, encode(*tokenizer, whole));
  }
}

TEST(SpmTokenizer, EndsAreEosAndEndOfTurn) {
  Vocabulary vocabulary = byte_vocabulary();
  EXPECT_FALSE(tokenizer_of(vocabulary)->is_end(5));
  vocabulary.eot = 5;
  EXPECT_TRUE(tokenizer_of(vocabulary)->is_end(5));
  EXPECT_TRUE(tokenizer_of(vocabulary)->is_end(2));
  EXPECT_FALSE(tokenizer_of(vocabulary)->is_end(1));
  vocabulary.ends = {7, 8};
  EXPECT_TRUE(tokenizer_of(vocabulary)->is_end(8));
  EXPECT_FALSE(tokenizer_of(vocabulary)->is_end(9));
}

TEST(SpmTokenizer, RefusesMalformedVocabularies) {
  const auto message = [](Vocabulary vocabulary) {
    const auto tokenizer = make_spm_tokenizer(std::move(vocabulary));
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kDataLoss);
    return tokenizer.status().message();
  };
  EXPECT_THAT(message({}), HasSubstr("empty"));
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.scores.pop_back();
  EXPECT_THAT(message(vocabulary), HasSubstr("258 scores"));
  vocabulary = byte_vocabulary();
  vocabulary.eos = 259;
  EXPECT_THAT(message(vocabulary), HasSubstr("EOS token is 259"));
  vocabulary = byte_vocabulary();
  vocabulary.bos.reset();
  EXPECT_THAT(message(vocabulary), HasSubstr("BOS is to be added"));
  vocabulary = byte_vocabulary();
  vocabulary.add_eos = true;
  vocabulary.eos.reset();
  EXPECT_THAT(message(vocabulary), HasSubstr("EOS is to be added"));
  vocabulary = byte_vocabulary();
  vocabulary.pieces[kByte0 + 10] = "<0x0G>";
  EXPECT_THAT(message(vocabulary), HasSubstr("token 13 is a byte token"));
  vocabulary = byte_vocabulary();
  vocabulary.unknown.reset();
  vocabulary.kinds[kByte0 + 10] = TokenKind::kNormal;
  EXPECT_THAT(message(vocabulary), HasSubstr("byte 0x0A"));
  vocabulary = byte_vocabulary();
  vocabulary.scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message(vocabulary), HasSubstr("token 7"));
}

// One pass over the text finds what a search for one token after another would.
TEST(SpmTokenizer, SpecialTokensAreThoseOfASearchTokenByToken) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto letters = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>('a' + pick(0, 1));
    return text;
  };
  for (int round = 0; round < 400; ++round) {
    Vocabulary vocabulary = test::byte_vocabulary();
    for (int i = pick(1, 8); i > 0; --i)
      test::add_piece(&vocabulary, letters(pick(1, 5)), 0,
                      pick(0, 1) == 0 ? TokenKind::kControl : TokenKind::kUserDefined);
    const auto size = static_cast<TokenId>(vocabulary.pieces.size());
    const std::vector<TokenId> reserved = {size - 1};
    const std::string text = letters(40);
    const bool parse = pick(0, 1) == 1;
    std::vector<TokenId> order;
    for (TokenId token = 259; token < size; ++token)
      if (parse || (vocabulary.kinds[static_cast<std::size_t>(token)] == TokenKind::kUserDefined && token != size - 1))
        order.push_back(token);
    const auto piece = [&](TokenId token) -> const std::string& {
      return vocabulary.pieces[static_cast<std::size_t>(token)];
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return piece(a).size() > piece(b).size(); });
    std::vector<TokenId> at(text.size(), -1);  // -2 within a token
    for (const TokenId token : order)
      for (std::size_t i = 0; i + piece(token).size() <= text.size(); ++i) {
        const auto begin = at.begin() + static_cast<std::ptrdiff_t>(i);
        const auto end = begin + static_cast<std::ptrdiff_t>(piece(token).size());
        if (text.compare(i, piece(token).size(), piece(token)) != 0 ||
            std::any_of(begin, end, [](TokenId t) { return t != -1; }))
          continue;
        std::fill(begin, end, -2);
        *begin = token;
      }
    std::vector<std::pair<std::size_t, TokenId>> expected;
    for (std::size_t i = 0; i < at.size(); ++i)
      if (at[i] >= 0) expected.emplace_back(i, at[i]);
    std::vector<std::pair<std::size_t, TokenId>> found;
    for (const SpecialTokens::Place& place : SpecialTokens(vocabulary).find(text, parse, reserved))
      found.emplace_back(place.begin, place.token);
    EXPECT_EQ(found, expected) << text;
  }
}

}  // namespace
}  // namespace kvasir
