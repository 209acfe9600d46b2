#include "jinja/parse/parse_expression.h"

#include <algorithm>
#include <charconv>

namespace kvasir::jinja {

namespace {

ExpressionPtr make(Expression::Kind kind, Place place) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->place = place;
  return expression;
}

}  // namespace

void ExpressionParser::deepen(Expression* parent, const Expression& child) const {
  parent->depth = std::max(parent->depth, child.depth + 1);
  if (parent->depth > TokenStream::kMaxDepth) tokens_.fail_here("the expression is nested too deeply");
}

void ExpressionParser::adopt(Expression* parent, ExpressionPtr child) const {
  if (child != nullptr) deepen(parent, *child);
  parent->children.push_back(std::move(child));
}

void ExpressionParser::adopt(Expression* parent, Arguments arguments) const {
  for (const ExpressionPtr& argument : arguments.positional) deepen(parent, *argument);
  for (const auto& [name, argument] : arguments.named) deepen(parent, *argument);
  parent->arguments = std::move(arguments);
}

bool ExpressionParser::ends_tuple() const {
  return tokens_.is(Token::Kind::kOutputEnd) || tokens_.is(Token::Kind::kBlockEnd) || tokens_.is(")") ||
         tokens_.is("in") || tokens_.is("recursive");
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional, bool parenthesised) {
  const Place place = tokens_.current().place;
  std::vector<ExpressionPtr> items;
  bool tuple = false;
  while (!ends_tuple()) {
    items.push_back(parse_expression(conditional));
    if (!tokens_.skip(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return std::move(items[0]);
  if (!tuple && !parenthesised) tokens_.fail_unexpected();
  ExpressionPtr expression = make(Kind::kTuple, place);
  for (ExpressionPtr& item : items) adopt(expression.get(), std::move(item));
  return expression;
}

ExpressionPtr ExpressionParser::parse_expression(bool conditional) {
  const TokenStream::Nesting nesting(tokens_);
  ExpressionPtr expression = parse_or();
  while (conditional && tokens_.is("if")) {
    ExpressionPtr choice = make(Kind::kIf, tokens_.next().place);
    adopt(choice.get(), std::move(expression));
    adopt(choice.get(), parse_or());
    adopt(choice.get(), tokens_.skip("else") ? parse_expression() : nullptr);
    expression = std::move(choice);
  }
  return expression;
}

ExpressionPtr ExpressionParser::parse_chain(Kind kind, std::initializer_list<std::string_view> words, Operand operand) {
  ExpressionPtr left = (this->*operand)();
  while (std::ranges::any_of(words, [&](std::string_view word) { return tokens_.is(word); })) {
    const Token word = tokens_.next();
    ExpressionPtr both = make(kind, word.place);
    if (kind == Kind::kBinary) both->operators.push_back(word.text);
    adopt(both.get(), std::move(left));
    adopt(both.get(), (this->*operand)());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is("not")) return parse_comparison();
  const TokenStream::Nesting nesting(tokens_);
  ExpressionPtr negated = make(Kind::kNot, tokens_.next().place);
  adopt(negated.get(), parse_not());
  return negated;
}

ExpressionPtr ExpressionParser::parse_comparison() {
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::string sign;
    const Place place = tokens_.current().place;
    for (const std::string_view each : {"==", "!=", "<", "<=", ">", ">="})
      if (tokens_.is(each)) sign = each;
    if (!sign.empty()) {
      tokens_.next();
    } else if (tokens_.skip("in")) {
      sign = "in";
    } else if (tokens_.is("not") && tokens_.next_is("in")) {
      tokens_.next();
      tokens_.next();
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

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!tokens_.is("~")) return first;
  ExpressionPtr chain = make(Kind::kConcat, tokens_.current().place);
  adopt(chain.get(), std::move(first));
  while (tokens_.skip("~")) adopt(chain.get(), parse_product());
  return chain;
}

ExpressionPtr ExpressionParser::parse_filtered() {
  const TokenStream::Nesting nesting(tokens_);
  ExpressionPtr expression = parse_unary();
  while (true) {
    if (tokens_.is("|"))
      expression = parse_filters(std::move(expression), false);
    else if (tokens_.is("is"))
      expression = parse_test(std::move(expression));
    else if (tokens_.is("("))
      expression = parse_postfix(std::move(expression));
    else
      return expression;
  }
}

ExpressionPtr ExpressionParser::parse_unary() {
  if (!tokens_.is("-") && !tokens_.is("+")) return parse_postfix(parse_primary());
  const Token sign = tokens_.next();
  const TokenStream::Nesting nesting(tokens_);
  ExpressionPtr expression = make(sign.text == "-" ? Kind::kNegative : Kind::kPositive, sign.place);
  adopt(expression.get(), parse_unary());
  return expression;
}

ExpressionPtr ExpressionParser::parse_name_or_constant() {
  const Token token = tokens_.next();
  ExpressionPtr expression = make(Kind::kConstant, token.place);
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expression->value = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expression->value = Value::none();
  } else {
    expression->kind = Kind::kName;
    expression->name = name;
    if (macro_ != nullptr) {
      macro_->takes_more |= name == "varargs";
      macro_->takes_named |= name == "kwargs";
      macro_->takes_caller |= name == "caller";
    }
  }
  return expression;
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = tokens_.next();
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

ExpressionPtr ExpressionParser::parse_primary() {
  const TokenStream::Nesting nesting(tokens_);
  switch (tokens_.current().kind) {
    case Token::Kind::kName: return parse_name_or_constant();
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: return parse_number();
    case Token::Kind::kString: {
      ExpressionPtr expression = make(Kind::kConstant, tokens_.current().place);
      std::string text;
      while (tokens_.is(Token::Kind::kString)) text += tokens_.next().text;
      expression->value = Value::string(text, Origin::kTemplate);
      return expression;
    }
    default: break;
  }
  if (tokens_.skip("(")) {
    ExpressionPtr expression = parse_tuple(true, true);
    tokens_.expect(")");
    return expression;
  }
  if (tokens_.is("[")) return parse_list();
  if (tokens_.is("{")) return parse_dict();
  tokens_.fail_unexpected();
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr list = make(Kind::kList, tokens_.next().place);
  tokens_.read_list("]", [&] { adopt(list.get(), parse_expression()); });
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Kind::kDict, tokens_.next().place);
  tokens_.read_list("}", [&] {
    adopt(dict.get(), parse_expression());
    tokens_.expect(":");
    adopt(dict.get(), parse_expression());
  });
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr expression) {
  while (true) {
    if (tokens_.is(".") || tokens_.is("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (tokens_.is("(")) {
      ExpressionPtr call = make(Kind::kCall, tokens_.current().place);
      adopt(call.get(), std::move(expression));
      adopt(call.get(), parse_arguments());
      expression = std::move(call);
    } else {
      return expression;
    }
  }
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.expect_identifier();
  while (tokens_.skip(".")) name += "." + tokens_.expect_identifier();
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr expression, bool first) {
  while (first || tokens_.skip("|")) {
    first = false;
    ExpressionPtr filter = make(Kind::kFilter, tokens_.current().place);
    filter->name = parse_dotted_name();
    adopt(filter.get(), std::move(expression));
    if (tokens_.is("(")) adopt(filter.get(), parse_arguments());
    expression = std::move(filter);
  }
  return expression;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr expression) {
  const Place place = tokens_.next().place;
  const bool negated = tokens_.skip("not");
  ExpressionPtr test = make(Kind::kTest, tokens_.current().place);
  test->name = parse_dotted_name();
  adopt(test.get(), std::move(expression));
  const Token::Kind kind = tokens_.current().kind;
  Arguments arguments;
  if (tokens_.is("(")) {
    arguments = parse_arguments();
  } else if ((kind == Token::Kind::kName && !tokens_.is("else") && !tokens_.is("or") && !tokens_.is("and")) ||
             kind == Token::Kind::kString || kind == Token::Kind::kInteger || kind == Token::Kind::kFloat ||
             tokens_.is("[") || tokens_.is("{")) {
    if (tokens_.is("is")) tokens_.fail_here("tests cannot be chained");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  adopt(test.get(), std::move(arguments));
  if (!negated) return test;
  ExpressionPtr opposite = make(Kind::kNot, place);
  adopt(opposite.get(), std::move(test));
  return opposite;
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr expression) {
  const auto [kind, sign, place] = tokens_.next();
  if (sign == ".") {
    if (tokens_.is(Token::Kind::kName)) {
      ExpressionPtr attribute = make(Kind::kAttribute, place);
      attribute->name = tokens_.next().text;
      adopt(attribute.get(), std::move(expression));
      return attribute;
    }
    if (!tokens_.is(Token::Kind::kInteger)) tokens_.fail_here("expected a name or a number");
    ExpressionPtr index = make(Kind::kIndex, place);
    adopt(index.get(), std::move(expression));
    adopt(index.get(), parse_number());
    return index;
  }
  ExpressionPtr parts[3];
  int colons = 0;
  while (!tokens_.is("]")) {
    if (tokens_.is(":")) {
      if (++colons > 2) tokens_.fail_unexpected();
      tokens_.next();
      continue;
    }
    if (parts[colons] != nullptr) tokens_.fail_unexpected();
    parts[colons] = parse_expression();
    if (tokens_.is(",")) tokens_.fail_here("subscripts of several parts are not supported");
  }
  if (colons == 0 && parts[0] == nullptr) tokens_.fail_unexpected();
  tokens_.next();
  ExpressionPtr index = make(colons > 0 ? Kind::kSlice : Kind::kIndex, place);
  adopt(index.get(), std::move(expression));
  adopt(index.get(), std::move(parts[0]));
  if (colons > 0) {
    adopt(index.get(), std::move(parts[1]));
    adopt(index.get(), std::move(parts[2]));
  }
  return index;
}

Arguments ExpressionParser::parse_arguments() {
  Arguments arguments;
  tokens_.expect("(");
  tokens_.read_list(")", [&] {
    if (tokens_.is("*") || tokens_.is("**")) tokens_.fail_here("unpacked arguments are not supported");
    if (tokens_.is(Token::Kind::kName) && tokens_.next_is("=")) {
      std::string name = tokens_.next().text;
      tokens_.next();
      for (const auto& [other, argument] : arguments.named)
        if (other == name) tokens_.fail_here("the argument '" + name + "' is given twice");
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty()) tokens_.fail_here("a positional argument follows a named one");
      arguments.positional.push_back(parse_expression());
    }
  });
  return arguments;
}

}  // namespace kvasir::jinja
