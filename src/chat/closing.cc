#include "chat/closing.h"

#include <algorithm>

namespace kvasir {
namespace {

struct Found {
  std::size_t at = std::string_view::npos;
  std::size_t size = 0;
};

// Finds the first control or user-defined token in `text`; the longest if several start there.
Found find_control_token(std::string_view text, const Vocabulary& vocabulary) {
  Found found;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    const std::string& piece = vocabulary.pieces[i];
    if ((kind != TokenKind::kControl && kind != TokenKind::kUserDefined) || piece.empty()) continue;
    // A run of spaces may be a user-defined token, too.
    if (piece.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    const std::size_t at = text.find(piece);
    if (at < found.at || (at == found.at && at != std::string_view::npos && piece.size() > found.size))
      found = {at, piece.size()};
  }
  return found;
}

Found find_mark(std::string_view text) {
  const std::size_t at = text.find_first_of("<[");
  if (at == std::string_view::npos) return {};
  const std::size_t end = text.find(text[at] == '<' ? '>' : ']', at);
  return end == std::string_view::npos ? Found{} : Found{at, end + 1 - at};
}

}  // namespace

ChatClosing split_closing(std::string_view text, const Vocabulary& vocabulary) {
  Found end = find_control_token(text, vocabulary);
  if (end.size == 0) end = find_mark(text);
  const std::size_t at = std::min(end.at, text.size());
  if (end.size == 0) return {"", "", std::string(text)};
  return {std::string(text.substr(0, at)), std::string(text.substr(at, end.size)),
          std::string(text.substr(at + end.size))};
}

}  // namespace kvasir
