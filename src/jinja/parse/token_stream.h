// The tokens of a template, as its parsers read them.
// Thread-safety: belongs to one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/parse/lexer.h"

namespace kvasir::jinja {

class TokenStream {
 public:
  // Trees deeper than this are refused, so that no walk over one exhausts the stack.
  static constexpr int kMaxDepth = 200;
  class Nesting;

  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is(Token::Kind kind) const { return current().kind == kind; }
  // Whether the current token is this name or this operator.
  bool is(std::string_view word) const { return is_word(current(), word); }
  bool next_is(std::string_view word) const { return is_word(look(), word); }
  bool skip(std::string_view word);

  // Throw PlacedFailure.
  void expect(std::string_view word);
  std::string expect_identifier();
  void expect_block_end();
  [[noreturn]] void fail_here(std::string message) const;
  [[noreturn]] void fail_unexpected() const;

  // Reads items up to `close` and that, with a comma between two, and perhaps one behind the last.
  template <class Item>
  void read_list(std::string_view close, const Item& item) {
    for (bool first = true; !is(close); first = false) {
      if (!first) expect(",");
      if (is(close)) break;
      item();
    }
    next();
  }

 private:
  static bool is_word(const Token& token, std::string_view word) {
    return (token.kind == Token::Kind::kOperator || token.kind == Token::Kind::kName) && token.text == word;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Returns a token as messages name it.
std::string describe(const Token& token);

// Counts one more level of nesting while it lives. Throws PlacedFailure beyond kMaxDepth.
class TokenStream::Nesting {
 public:
  explicit Nesting(TokenStream& tokens) : tokens_(tokens) {
    if (++tokens_.depth_ > kMaxDepth) tokens_.fail_here("the template is nested too deeply");
  }
  ~Nesting() { --tokens_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  TokenStream& tokens_;
};

}  // namespace kvasir::jinja
