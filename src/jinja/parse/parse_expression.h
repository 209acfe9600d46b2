// Builds the syntax trees of expressions, from the loosest binding to the tightest.
// Thread-safety: belongs to one thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "jinja/parse/syntax.h"
#include "jinja/parse/token_stream.h"

namespace kvasir::jinja {

class ExpressionParser {
 public:
  // `tokens` must outlive this.
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // Returns the expression at the current token, which is behind it then. `conditional`: it may hold `if`. Throw
  // PlacedFailure.
  ExpressionPtr parse_expression(bool conditional = true);
  ExpressionPtr parse_tuple(bool conditional, bool parenthesised = false);
  // Parses `name(arguments)|name...`; `expression` may be null. `first` is set where no `|` starts it.
  ExpressionPtr parse_filters(ExpressionPtr expression, bool first);

  // Sets the macro that notes the special names which expressions use, null: none. Returns the one before.
  Macro* enter_macro(Macro* macro) { return std::exchange(macro_, macro); }

 private:
  using Kind = Expression::Kind;
  using Operand = ExpressionPtr (ExpressionParser::*)();

  // Parses operands with words of the list between them, which bind from the left.
  ExpressionPtr parse_chain(Kind kind, std::initializer_list<std::string_view> words, Operand operand);
  ExpressionPtr parse_or() { return parse_chain(Kind::kOr, {"or"}, &ExpressionParser::parse_and); }
  ExpressionPtr parse_and() { return parse_chain(Kind::kAnd, {"and"}, &ExpressionParser::parse_not); }
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum() { return parse_chain(Kind::kBinary, {"+", "-"}, &ExpressionParser::parse_concat); }
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product() {
    return parse_chain(Kind::kBinary, {"*", "/", "//", "%"}, &ExpressionParser::parse_power);
  }
  ExpressionPtr parse_power() { return parse_chain(Kind::kBinary, {"**"}, &ExpressionParser::parse_filtered); }
  ExpressionPtr parse_filtered();
  ExpressionPtr parse_unary();
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name_or_constant();
  ExpressionPtr parse_number();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr expression);
  ExpressionPtr parse_test(ExpressionPtr expression);
  ExpressionPtr parse_subscript(ExpressionPtr expression);
  Arguments parse_arguments();
  bool ends_tuple() const;
  std::string parse_dotted_name();

  // Add a child, and its depth to that of its parent.
  void adopt(Expression* parent, ExpressionPtr child) const;
  void adopt(Expression* parent, Arguments arguments) const;
  void deepen(Expression* parent, const Expression& child) const;

  TokenStream& tokens_;
  Macro* macro_ = nullptr;
};

}  // namespace kvasir::jinja
