#include "text/vocabulary.h"

#include <limits>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

Status check_id(const char* name, TokenId id, std::size_t size) {
  if (id >= 0 && static_cast<std::size_t>(id) < size) return {};
  return data_loss("the {} token is {}, but the vocabulary ends at {}", name, id, size - 1);
}

}  // namespace

bool is_marker(const Vocabulary& vocabulary, TokenId token) {
  const auto index = static_cast<std::size_t>(token);
  if (vocabulary.kinds[index] != TokenKind::kUserDefined) return false;
  const std::string_view piece = vocabulary.pieces[index];
  const auto framed = [&](std::string_view open, std::string_view close) {
    return piece.size() > open.size() + close.size() && piece.starts_with(open) && piece.ends_with(close);
  };
  return framed("<|", "|>") || framed("<\uFF5C", "\uFF5C>");
}

Status check_vocabulary(const Vocabulary& vocabulary) {
  const std::size_t size = vocabulary.pieces.size();
  if (size == 0) return data_loss("the vocabulary is empty");
  if (size > static_cast<std::size_t>(std::numeric_limits<TokenId>::max())) {
    return data_loss("the vocabulary has {} tokens, more than an id can number", size);
  }
  if (vocabulary.scores.size() != size || vocabulary.kinds.size() != size) {
    return data_loss("the vocabulary has {} tokens, but {} scores and {} token types", size, vocabulary.scores.size(),
                     vocabulary.kinds.size());
  }
  const std::pair<const char*, std::optional<TokenId>> ids[] = {{"BOS", vocabulary.bos},
                                                                {"EOS", vocabulary.eos},
                                                                {"end-of-turn", vocabulary.eot},
                                                                {"unknown", vocabulary.unknown}};
  for (const auto& [name, id] : ids) {
    if (id) KVASIR_RETURN_IF_ERROR(check_id(name, *id, size));
  }
  for (const TokenId id : vocabulary.ends) KVASIR_RETURN_IF_ERROR(check_id("end", id, size));
  for (const TokenId id : vocabulary.strip_after) KVASIR_RETURN_IF_ERROR(check_id("stripping", id, size));
  if (vocabulary.add_bos && !vocabulary.bos) return data_loss("BOS is to be added, but the vocabulary names none");
  if (vocabulary.add_eos && !vocabulary.eos) return data_loss("EOS is to be added, but the vocabulary names none");
  return {};
}

}  // namespace kvasir
