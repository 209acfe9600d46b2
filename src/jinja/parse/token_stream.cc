#include "jinja/parse/token_stream.h"

#include <fmt/core.h>

namespace kvasir::jinja {

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kText: return "text";
    case Token::Kind::kOutputBegin: return "'{{'";
    case Token::Kind::kOutputEnd: return "'}}'";
    case Token::Kind::kBlockBegin: return "'{%'";
    case Token::Kind::kBlockEnd: return "'%}'";
    case Token::Kind::kString: return "a string";
    case Token::Kind::kEnd: return "the end of the template";
    default: return "'" + token.text + "'";
  }
}

void TokenStream::fail_here(std::string message) const {
  throw PlacedFailure{current().place, std::move(message)};
}

void TokenStream::fail_unexpected() const {
  fail_here("unexpected " + describe(current()));
}

bool TokenStream::skip(std::string_view word) {
  if (!is(word)) return false;
  next();
  return true;
}

void TokenStream::expect(std::string_view word) {
  if (!skip(word)) fail_here(fmt::format("expected '{}', found {}", word, describe(current())));
}

std::string TokenStream::expect_identifier() {
  if (!is(Token::Kind::kName)) fail_here("expected a name, found " + describe(current()));
  return next().text;
}

void TokenStream::expect_block_end() {
  if (!is(Token::Kind::kBlockEnd)) fail_here("expected '%}', found " + describe(current()));
  next();
}

}  // namespace kvasir::jinja
