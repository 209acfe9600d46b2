#include <string_view>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

TokenStream::TokenStream(const Tokenizer& tokenizer, bool strip_leading_space)
    : tokenizer_(&tokenizer), prefix_(tokenizer.vocabulary(), strip_leading_space) {}

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

std::string TokenStream::flush() {
  // What push() held back is one incomplete character, hence one maximal subpart.
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return std::string(incomplete ? kReplacement : "");
}

}  // namespace kvasir
