// Builds the syntax tree of a template from its tokens.
// Thread-safety: a parser belongs to one thread.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/syntax.h"

namespace kvasir::jinja {

struct Program {
  Body body;
};

class Parser {
 public:
  // Trees deeper than this are refused, so that no walk over one exhausts the stack.
  static constexpr int kMaxDepth = 200;

  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Throws PlacedFailure.
  Program run();

 private:
  // parser.cc: tokens and statements.
  class Nesting;
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_operator(std::string_view sign) const {
    return current().kind == Token::Kind::kOperator && current().text == sign;
  }
  bool is_name(std::string_view name) const { return current().kind == Token::Kind::kName && current().text == name; }
  bool skip_operator(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view sign);
  void expect_name(std::string_view name);
  std::string expect_identifier();
  void expect_block_end();
  [[noreturn]] void fail_here(std::string message) const;
  [[noreturn]] void fail_unexpected() const;

  Body parse_body(std::initializer_list<std::string_view> ends);
  void parse_block(Body* body);
  Statement parse_for(Statement statement);
  Statement parse_if(Statement statement);
  Statement parse_set(Statement statement);
  Statement parse_macro(Statement statement);
  Statement parse_call_block(Statement statement);
  Statement parse_filter_block(Statement statement);
  Statement parse_with(Statement statement);
  std::vector<Parameter> parse_parameters();
  Target parse_target(bool attributes);
  Target parse_one_target(bool attributes);
  std::shared_ptr<const Macro> finish_macro(Macro macro, std::initializer_list<std::string_view> ends);

  // parse_expression.cc.
  ExpressionPtr parse_expression(bool conditional = true);
  ExpressionPtr parse_tuple(bool conditional, bool parenthesised = false);
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name_or_constant();
  ExpressionPtr parse_number();
  ExpressionPtr parse_postfix(ExpressionPtr expression);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr expression);
  // Parses `name(arguments)|name...`; `expression` may be null. `first` is set where no `|` starts it.
  ExpressionPtr parse_filters(ExpressionPtr expression, bool first);
  ExpressionPtr parse_test(ExpressionPtr expression);
  ExpressionPtr parse_subscript(ExpressionPtr expression);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  Arguments parse_arguments();
  bool ends_tuple() const;
  std::string parse_dotted_name();

  ExpressionPtr make(Expression::Kind kind, Place place) const;
  // Adds a child, and its depth to that of its parent.
  void adopt(Expression* parent, ExpressionPtr child) const;
  void deepen(Expression* parent, const Expression& child) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around the current statement, within its macro
  std::vector<Macro*> macros_;
};

// Counts one more level of nesting while it lives.
class Parser::Nesting {
 public:
  explicit Nesting(Parser* parser) : parser_(parser) {
    if (++parser_->depth_ > kMaxDepth) parser_->fail_here("the template is nested too deeply");
  }
  ~Nesting() { --parser_->depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser* parser_;
};

}  // namespace kvasir::jinja
