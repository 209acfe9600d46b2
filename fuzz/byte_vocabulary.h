// The start of the vocabularies of fuzz targets: <unk> 0, <s> 1, </s> 2, then a token for each byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "text/vocabulary.h"

namespace kvasir::fuzz {

inline TokenId add_piece(Vocabulary& vocabulary, std::string piece, TokenKind kind) {
  vocabulary.pieces.push_back(std::move(piece));
  vocabulary.scores.push_back(0);
  vocabulary.kinds.push_back(kind);
  return static_cast<TokenId>(vocabulary.pieces.size() - 1);
}

inline Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.unknown = add_piece(vocabulary, "<unk>", TokenKind::kUnknown);
  vocabulary.bos = add_piece(vocabulary, "<s>", TokenKind::kControl);
  vocabulary.eos = add_piece(vocabulary, "</s>", TokenKind::kControl);
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte)
    add_piece(vocabulary, std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", TokenKind::kByte);
  return vocabulary;
}

}  // namespace kvasir::fuzz
