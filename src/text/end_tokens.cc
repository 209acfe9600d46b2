#include "text/end_tokens.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvasir {
namespace {

constexpr std::array<std::string_view, 5> kEndsOfTurn = {"<|end|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>",
                                                         "<turn|>"};

constexpr std::array<std::string_view, 12> kOtherEnds = {
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<end_of_utterance>",
    "<|eom_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|EOT|>",
    "<EOT>",
    "\u2581<EOT>",
    "[EOT]",
    "<|return|>",
    "<|call|>",
};

template <class Table>
bool has_piece(const Table& table, std::string_view piece) {
  return std::find(table.begin(), table.end(), piece) != table.end();
}

}  // namespace

void find_end_tokens(Vocabulary* vocabulary) {
  // Where <|return|> ends an answer, <|end|> ends only a part of it.
  const bool has_parts = has_piece(vocabulary->pieces, "<|return|>");
  for (std::size_t i = 0; i < vocabulary->pieces.size(); ++i) {
    const std::string_view piece = vocabulary->pieces[i];
    const bool ends_turn = has_piece(kEndsOfTurn, piece);
    if (!ends_turn && !has_piece(kOtherEnds, piece)) continue;
    vocabulary->kinds[i] = TokenKind::kControl;
    if (has_parts && piece == "<|end|>") continue;
    vocabulary->ends.push_back(static_cast<TokenId>(i));
    if (ends_turn && !vocabulary->eot) vocabulary->eot = static_cast<TokenId>(i);
  }
}

}  // namespace kvasir
