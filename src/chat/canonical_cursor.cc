#include "chat/canonical_cursor.h"

#include <algorithm>

namespace kvasir {

std::optional<std::string> CanonicalCursor::take_literal() {
  if (!rest_.starts_with('\'')) return std::nullopt;
  std::string literal;
  for (std::size_t at = 1; at < rest_.size(); ++at) {
    if (rest_[at] == '\'') {
      rest_.remove_prefix(at + 1);
      return literal;
    }
    if (rest_[at] == '\\') ++at;
    if (at < rest_.size()) literal += rest_[at];
  }
  return std::nullopt;
}

bool CanonicalCursor::take(std::string_view pattern, std::initializer_list<std::string*> holes) {
  static constexpr std::string_view kHole = "'*'";
  const std::string_view start = rest_;
  auto hole = holes.begin();
  for (;;) {
    const std::string_view fixed = pattern.substr(0, pattern.find(kHole));
    if (!rest_.starts_with(fixed)) break;
    rest_.remove_prefix(fixed.size());
    pattern.remove_prefix(fixed.size());
    if (pattern.empty()) return true;
    std::optional<std::string> literal = take_literal();
    if (!literal) break;
    if (hole != holes.end()) *(*hole++) = std::move(*literal);
    pattern.remove_prefix(kHole.size());
  }
  rest_ = start;
  return false;
}

std::optional<std::vector<TemplateTerm>> CanonicalCursor::take_terms() {
  static constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.[]";
  static constexpr std::string_view kStrip = ".strip";
  const std::string_view start = rest_;
  std::vector<TemplateTerm> terms;
  do {
    TemplateTerm term;
    if (std::optional<std::string> literal = take_literal()) {
      term = {true, std::move(*literal), false};
    } else {
      const std::size_t size = std::min(rest_.find_first_not_of(kName), rest_.size());
      term.text = rest_.substr(0, size);
      rest_.remove_prefix(size);
      if (term.text.ends_with(kStrip) && take("()")) {
        term.text.resize(term.text.size() - kStrip.size());
        term.strip = true;
      }
    }
    if (take("|trim")) term.strip = true;
    if (!term.literal && term.text.empty()) {
      rest_ = start;
      return std::nullopt;
    }
    terms.push_back(std::move(term));
  } while (take("+"));
  return terms;
}

}  // namespace kvasir
