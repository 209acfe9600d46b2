#include "generation/token_stream.h"

#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_incomplete_character(std::string_view bytes) {
  const Utf8Unit unit = first_utf8_unit(bytes);
  return unit.kind == Utf8Unit::Kind::kIncomplete && unit.length == bytes.size();
}

}  // namespace

TokenStream::TokenStream(const Tokenizer& tokenizer, bool strip_leading_space)
    : tokenizer_(&tokenizer), prefix_(tokenizer.vocabulary(), strip_leading_space) {}

Result<TokenStream> TokenStream::from_state(const Tokenizer& tokenizer, TokenStreamState state) {
  if (!state.pending.empty() && !is_incomplete_character(state.pending))
    return data_loss("a text stream holds back bytes that are not an incomplete character");
  TokenStream stream(tokenizer, state.strips_space);
  if (stream.prefix_.expected() != state.strips_space)
    return data_loss("a text stream is to drop a space that this vocabulary never adds");
  stream.pending_ = std::move(state.pending);
  return stream;
}

std::string TokenStream::push(TokenId token) {
  const std::string bytes = tokenizer_->bytes_of(token);
  pending_ += prefix_.strip(token, bytes);
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = first_utf8_unit(rest);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    text += unit.kind == Utf8Unit::Kind::kComplete ? rest.substr(0, unit.length) : kReplacement;
    rest.remove_prefix(unit.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string TokenStream::push_shown(TokenId token) {
  std::string text = push(token);
  // A marker's bytes are a complete text, so they stand at the end.
  if (is_marker(tokenizer_->vocabulary(), token)) text.resize(text.size() - tokenizer_->bytes_of(token).size());
  return text;
}

std::string TokenStream::push_named(TokenId token) {
  std::string text = push(token);
  if (tokenizer_->vocabulary().kinds[static_cast<std::size_t>(token)] == TokenKind::kControl)
    text += flush() + tokenizer_->bytes_of(token, true);
  return text;
}

std::string TokenStream::flush() {
  // What push() held back is one incomplete character, hence one maximal subpart.
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return std::string(incomplete ? kReplacement : "");
}

}  // namespace kvasir
