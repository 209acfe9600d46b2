// The expressions of the grammar, from the loosest binding to the tightest.
#include <algorithm>
#include <charconv>

#include "jinja/parser.h"

namespace kvasir::jinja {

using Kind = Expression::Kind;

ExpressionPtr Parser::make(Kind kind, Place place) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->place = place;
  return expression;
}

void Parser::deepen(Expression* parent, const Expression& child) const {
  parent->depth = std::max(parent->depth, child.depth + 1);
  if (parent->depth > kMaxDepth) fail_here("the expression is nested too deeply");
}

void Parser::adopt(Expression* parent, ExpressionPtr child) const {
  if (child != nullptr) deepen(parent, *child);
  parent->children.push_back(std::move(child));
}

bool Parser::ends_tuple() const {
  return current().kind == Token::Kind::kOutputEnd || current().kind == Token::Kind::kBlockEnd || is_operator(")") ||
         is_name("in") || is_name("recursive");
}

ExpressionPtr Parser::parse_tuple(bool conditional, bool parenthesised) {
  const Place place = current().place;
  std::vector<ExpressionPtr> items;
  bool tuple = false;
  while (!ends_tuple()) {
    items.push_back(parse_expression(conditional));
    if (!skip_operator(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return std::move(items[0]);
  if (!tuple && !parenthesised) fail_unexpected();
  ExpressionPtr expression = make(Kind::kTuple, place);
  for (ExpressionPtr& item : items) adopt(expression.get(), std::move(item));
  return expression;
}

ExpressionPtr Parser::parse_expression(bool conditional) {
  const Nesting nesting(this);
  ExpressionPtr expression = parse_or();
  while (conditional && is_name("if")) {
    ExpressionPtr choice = make(Kind::kIf, next().place);
    adopt(choice.get(), std::move(expression));
    adopt(choice.get(), parse_or());
    adopt(choice.get(), skip_name("else") ? parse_expression() : nullptr);
    expression = std::move(choice);
  }
  return expression;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    ExpressionPtr both = make(Kind::kOr, next().place);
    adopt(both.get(), std::move(left));
    adopt(both.get(), parse_and());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    ExpressionPtr both = make(Kind::kAnd, next().place);
    adopt(both.get(), std::move(left));
    adopt(both.get(), parse_not());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr Parser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const Nesting nesting(this);
  ExpressionPtr negated = make(Kind::kNot, next().place);
  adopt(negated.get(), parse_not());
  return negated;
}

ExpressionPtr Parser::parse_comparison() {
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::string sign;
    const Place place = current().place;
    for (const std::string_view each : {"==", "!=", "<", "<=", ">", ">="})
      if (is_operator(each)) sign = each;
    if (!sign.empty()) {
      next();
    } else if (skip_name("in")) {
      sign = "in";
    } else if (is_name("not") && look().kind == Token::Kind::kName && look().text == "in") {
      next();
      next();
      sign = "not in";
    } else {
      break;
    }
    if (chain == nullptr) {
      chain = make(Kind::kCompare, place);
      adopt(chain.get(), std::move(first));
    }
    chain->operators.push_back(sign);
    adopt(chain.get(), parse_sum());
  }
  return chain == nullptr ? std::move(first) : std::move(chain);
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    ExpressionPtr both = make(Kind::kBinary, current().place);
    both->operators.push_back(next().text);
    adopt(both.get(), std::move(left));
    adopt(both.get(), parse_concat());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr Parser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!is_operator("~")) return first;
  ExpressionPtr chain = make(Kind::kConcat, current().place);
  adopt(chain.get(), std::move(first));
  while (skip_operator("~")) adopt(chain.get(), parse_product());
  return chain;
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr left = parse_power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    ExpressionPtr both = make(Kind::kBinary, current().place);
    both->operators.push_back(next().text);
    adopt(both.get(), std::move(left));
    adopt(both.get(), parse_power());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (is_operator("**")) {
    ExpressionPtr both = make(Kind::kBinary, current().place);
    both->operators.push_back(next().text);
    adopt(both.get(), std::move(left));
    adopt(both.get(), parse_unary(true));
    left = std::move(both);
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool filters) {
  const Nesting nesting(this);
  ExpressionPtr expression;
  if (is_operator("-") || is_operator("+")) {
    expression = make(is_operator("-") ? Kind::kNegative : Kind::kPositive, current().place);
    next();
    adopt(expression.get(), parse_unary(false));
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return filters ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPtr Parser::parse_name_or_constant() {
  const Token token = next();
  ExpressionPtr expression = make(Kind::kConstant, token.place);
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expression->value = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expression->value = Value::none();
  } else {
    expression->kind = Kind::kName;
    expression->name = name;
    if (!macros_.empty()) {
      Macro& macro = *macros_.back();
      macro.takes_more |= name == "varargs";
      macro.takes_named |= name == "kwargs";
      macro.takes_caller |= name == "caller";
    }
  }
  return expression;
}

ExpressionPtr Parser::parse_number() {
  const Token token = next();
  ExpressionPtr expression = make(Kind::kConstant, token.place);
  const char* end = token.text.data() + token.text.size();
  if (token.kind == Token::Kind::kFloat) {
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      throw PlacedFailure{token.place, "the number is out of range"};
    expression->value = Value::real(value);
  } else {
    std::int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      throw PlacedFailure{token.place, "the number is out of range"};
    if (token.text[0] == '0' && value != 0) throw PlacedFailure{token.place, "a number starts with 0"};
    expression->value = Value::integer(value);
  }
  return expression;
}

ExpressionPtr Parser::parse_primary() {
  const Nesting nesting(this);
  switch (current().kind) {
    case Token::Kind::kName: return parse_name_or_constant();
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: return parse_number();
    case Token::Kind::kString: {
      ExpressionPtr expression = make(Kind::kConstant, current().place);
      std::string text;
      while (current().kind == Token::Kind::kString) text += next().text;
      expression->value = Value::string(text, Origin::kTemplate);
      return expression;
    }
    default: break;
  }
  if (skip_operator("(")) {
    ExpressionPtr expression = parse_tuple(true, true);
    expect_operator(")");
    return expression;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail_unexpected();
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr list = make(Kind::kList, next().place);
  while (!is_operator("]")) {
    if (!list->children.empty()) expect_operator(",");
    if (is_operator("]")) break;
    adopt(list.get(), parse_expression());
  }
  next();
  return list;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr dict = make(Kind::kDict, next().place);
  while (!is_operator("}")) {
    if (!dict->children.empty()) expect_operator(",");
    if (is_operator("}")) break;
    adopt(dict.get(), parse_expression());
    expect_operator(":");
    adopt(dict.get(), parse_expression());
  }
  next();
  return dict;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr expression) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (is_operator("(")) {
      ExpressionPtr call = make(Kind::kCall, current().place);
      adopt(call.get(), std::move(expression));
      call->arguments = parse_arguments();
      for (const ExpressionPtr& argument : call->arguments.positional) deepen(call.get(), *argument);
      for (const auto& [name, argument] : call->arguments.named) deepen(call.get(), *argument);
      expression = std::move(call);
    } else {
      return expression;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr expression) {
  while (true) {
    if (is_operator("|"))
      expression = parse_filters(std::move(expression), false);
    else if (is_name("is"))
      expression = parse_test(std::move(expression));
    else if (is_operator("("))
      expression = parse_postfix(std::move(expression));
    else
      return expression;
  }
}

std::string Parser::parse_dotted_name() {
  std::string name = expect_identifier();
  while (skip_operator(".")) name += "." + expect_identifier();
  return name;
}

ExpressionPtr Parser::parse_filters(ExpressionPtr expression, bool first) {
  while (first || skip_operator("|")) {
    first = false;
    ExpressionPtr filter = make(Kind::kFilter, current().place);
    filter->name = parse_dotted_name();
    adopt(filter.get(), std::move(expression));
    if (is_operator("(")) filter->arguments = parse_arguments();
    for (const ExpressionPtr& argument : filter->arguments.positional) deepen(filter.get(), *argument);
    for (const auto& [name, argument] : filter->arguments.named) deepen(filter.get(), *argument);
    expression = std::move(filter);
  }
  return expression;
}

ExpressionPtr Parser::parse_test(ExpressionPtr expression) {
  const Place place = next().place;
  const bool negated = skip_name("not");
  ExpressionPtr test = make(Kind::kTest, current().place);
  test->name = parse_dotted_name();
  adopt(test.get(), std::move(expression));
  const Token::Kind kind = current().kind;
  if (is_operator("(")) {
    test->arguments = parse_arguments();
  } else if ((kind == Token::Kind::kName && !is_name("else") && !is_name("or") && !is_name("and")) ||
             kind == Token::Kind::kString || kind == Token::Kind::kInteger || kind == Token::Kind::kFloat ||
             is_operator("[") || is_operator("{")) {
    if (is_name("is")) fail_here("tests cannot be chained");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  for (const ExpressionPtr& argument : test->arguments.positional) deepen(test.get(), *argument);
  for (const auto& [name, argument] : test->arguments.named) deepen(test.get(), *argument);
  if (!negated) return test;
  ExpressionPtr opposite = make(Kind::kNot, place);
  adopt(opposite.get(), std::move(test));
  return opposite;
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr expression) {
  const Place place = next().place;
  if (tokens_[at_ - 1].text == ".") {
    if (current().kind == Token::Kind::kName) {
      ExpressionPtr attribute = make(Kind::kAttribute, place);
      attribute->name = next().text;
      adopt(attribute.get(), std::move(expression));
      return attribute;
    }
    if (current().kind != Token::Kind::kInteger) fail_here("expected a name or a number");
    ExpressionPtr index = make(Kind::kIndex, place);
    adopt(index.get(), std::move(expression));
    adopt(index.get(), parse_number());
    return index;
  }
  ExpressionPtr parts[3];
  int colons = 0;
  while (!is_operator("]")) {
    if (is_operator(":")) {
      if (++colons > 2) fail_unexpected();
      next();
      continue;
    }
    if (parts[colons] != nullptr) fail_unexpected();
    parts[colons] = parse_expression();
    if (is_operator(",")) fail_here("subscripts of several parts are not supported");
  }
  if (colons == 0 && parts[0] == nullptr) fail_unexpected();
  next();
  ExpressionPtr index = make(colons > 0 ? Kind::kSlice : Kind::kIndex, place);
  adopt(index.get(), std::move(expression));
  adopt(index.get(), std::move(parts[0]));
  if (colons > 0) {
    adopt(index.get(), std::move(parts[1]));
    adopt(index.get(), std::move(parts[2]));
  }
  return index;
}

Arguments Parser::parse_arguments() {
  Arguments arguments;
  expect_operator("(");
  bool first = true;
  while (!is_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**")) fail_here("unpacked arguments are not supported");
    if (current().kind == Token::Kind::kName && look().kind == Token::Kind::kOperator && look().text == "=") {
      std::string name = next().text;
      next();
      for (const auto& [other, argument] : arguments.named)
        if (other == name) fail_here("the argument '" + name + "' is given twice");
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty()) fail_here("a positional argument follows a named one");
      arguments.positional.push_back(parse_expression());
    }
  }
  next();
  return arguments;
}

}  // namespace kvasir::jinja
