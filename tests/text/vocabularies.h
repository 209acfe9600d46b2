// Vocabularies for tests: small ones made here, and the small model's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "support/shared_data.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace kvasir::test {

inline constexpr EncodeOptions kNoSpecial{.add_special = false, .parse_special = false};
inline constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

inline TokenId add_piece(Vocabulary* vocabulary, std::string piece, float score = 0.0F,
                         TokenKind kind = TokenKind::kNormal) {
  vocabulary->pieces.push_back(std::move(piece));
  vocabulary->scores.push_back(score);
  vocabulary->kinds.push_back(kind);
  return static_cast<TokenId>(vocabulary->pieces.size() - 1);
}

// <unk> 0, <s> 1, </s> 2, bytes 3 to 258.
inline constexpr TokenId kByte0 = 3;
inline TokenId byte_token(char c) {
  return kByte0 + static_cast<unsigned char>(c);
}
inline std::vector<TokenId> byte_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(byte_token(c));
  return tokens;
}
inline Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.unknown = add_piece(&vocabulary, "<unk>", 0, TokenKind::kUnknown);
  vocabulary.bos = add_piece(&vocabulary, "<s>", 0, TokenKind::kControl);
  vocabulary.eos = add_piece(&vocabulary, "</s>", 0, TokenKind::kControl);
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string piece = {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
    add_piece(&vocabulary, piece, 0, TokenKind::kByte);
  }
  return vocabulary;
}

// Byte-level BPE of GPT-2 without merges: the bytes are 0 to 255, <|endoftext|> 256.
inline Vocabulary bpe_vocabulary(std::string pre_tokenizer = "gpt-2") {
  Vocabulary vocabulary;
  vocabulary.tokenizer = TokenizerKind::kBpe;
  vocabulary.pre_tokenizer = std::move(pre_tokenizer);
  for (int byte = 0; byte < 256; ++byte) add_piece(&vocabulary, byte_to_piece(static_cast<std::uint8_t>(byte)));
  vocabulary.eos = add_piece(&vocabulary, "<|endoftext|>", 0, TokenKind::kControl);
  vocabulary.add_bos = false;
  return vocabulary;
}

// Adds a merge of two pieces and, as a token, what it makes of them.
inline TokenId add_merge(Vocabulary* vocabulary, const std::string& left, const std::string& right) {
  vocabulary->merges.push_back(left + " " + right);
  return add_piece(vocabulary, left + right);
}

inline std::unique_ptr<Tokenizer> tokenizer_of(Vocabulary vocabulary) {
  auto tokenizer = make_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

inline std::unique_ptr<Tokenizer> tokenizer_of_file(const std::string& path) {
  const auto file = gguf::File::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return nullptr;
  auto vocabulary = vocabulary_from_gguf(*file);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  return vocabulary.ok() ? tokenizer_of(std::move(*vocabulary)) : nullptr;
}

inline std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                                   const EncodeOptions& options = {}) {
  auto tokens = tokenizer.encode(text, options);
  EXPECT_TRUE(tokens.ok()) << tokens.status().message();
  return tokens.ok() ? std::move(*tokens) : std::vector<TokenId>();
}

inline std::string utf8(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

// Letters, runs of spaces and newlines, accents, combining marks, CJK, emoji, and anything at all; never U+2581, which
// SPM does not tell from a space.
inline std::string random_text(std::mt19937* random, int characters) {
  const auto pick = [&](std::uint32_t low, std::uint32_t high) {
    return static_cast<char32_t>(std::uniform_int_distribution<std::uint32_t>(low, high)(*random));
  };
  std::string text;
  for (int i = 0; i < characters; ++i) {
    char32_t c = 0;
    switch (pick(0, 9)) {
      case 0:
      case 1: c = U' '; break;
      case 2: c = U"\n\t\r\n"[pick(0, 3)]; break;
      case 3: c = pick(0xC0, 0x24F); break;
      case 4: c = pick(0x300, 0x36F); break;
      case 5: c = pick(0x4E00, 0x9FFF); break;
      case 6: c = pick(0x1F300, 0x1F6FF); break;
      case 7: c = pick(0, 0x10FFFF); break;
      default: c = pick('a', 'z');
    }
    if (c == 0x2581 || (c >= 0xD800 && c <= 0xDFFF)) c = U'x';
    text += utf8(c);
  }
  return text;
}

}  // namespace kvasir::test
