#include "jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvasir::jinja {
namespace {

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

}  // namespace

void Parser::fail_here(std::string message) const {
  throw PlacedFailure{current().place, std::move(message)};
}
void Parser::fail_unexpected() const {
  fail_here("unexpected " + describe(current()));
}

bool Parser::skip_operator(std::string_view sign) {
  if (!is_operator(sign)) return false;
  next();
  return true;
}
bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}
void Parser::expect_operator(std::string_view sign) {
  if (!skip_operator(sign)) fail_here(fmt::format("expected '{}', found {}", sign, describe(current())));
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_here(fmt::format("expected '{}', found {}", name, describe(current())));
}
std::string Parser::expect_identifier() {
  if (current().kind != Token::Kind::kName) fail_here("expected a name, found " + describe(current()));
  return next().text;
}
void Parser::expect_block_end() {
  if (current().kind != Token::Kind::kBlockEnd) fail_here("expected '%}', found " + describe(current()));
  next();
}

Program Parser::run() {
  return {parse_body({})};
}

// Parses up to a block that starts with one of `ends`, and stops at that name.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(this);
  Body body;
  while (current().kind != Token::Kind::kEnd) {
    const Token token = next();
    if (token.kind == Token::Kind::kText) {
      body.push_back({Statement::Kind::kText, token.place, token.text});
    } else if (token.kind == Token::Kind::kOutputBegin) {
      Statement statement{Statement::Kind::kOutput, current().place};
      statement.expression = parse_tuple(true);
      if (current().kind != Token::Kind::kOutputEnd) fail_here("expected '}}', found " + describe(current()));
      next();
      body.push_back(std::move(statement));
    } else {
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return body;
      parse_block(&body);
    }
  }
  if (ends.size() > 0) fail_here(fmt::format("{{% {} %}} is missing", *std::prev(ends.end())));
  return body;
}

void Parser::parse_block(Body* body) {
  const Place place = current().place;
  Statement statement{Statement::Kind::kScope, place};
  if (skip_name("for")) return body->push_back(parse_for(std::move(statement)));
  if (skip_name("if")) return body->push_back(parse_if(std::move(statement)));
  if (skip_name("set")) return body->push_back(parse_set(std::move(statement)));
  if (skip_name("macro")) return body->push_back(parse_macro(std::move(statement)));
  if (skip_name("call")) return body->push_back(parse_call_block(std::move(statement)));
  if (skip_name("filter")) return body->push_back(parse_filter_block(std::move(statement)));
  if (skip_name("with")) return body->push_back(parse_with(std::move(statement)));
  if (is_name("break") || is_name("continue")) {
    if (loops_ == 0) fail_here(describe(current()) + " outside of a loop");
    statement.kind = is_name("break") ? Statement::Kind::kBreak : Statement::Kind::kContinue;
    next();
    expect_block_end();
    return body->push_back(std::move(statement));
  }
  if (skip_name("generation")) {  // marks what a model is trained on; only a scope here
    expect_block_end();
    const int loops = std::exchange(loops_, 0);
    statement.body = parse_body({"endgeneration"});
    loops_ = loops;
    next();
    expect_block_end();
    return body->push_back(std::move(statement));
  }
  for (const std::string_view tag : {"include", "import", "from", "extends", "block", "do", "autoescape", "trans"})
    if (is_name(tag)) fail_here(fmt::format("{{% {} %}} is not supported", tag));
  fail_here("unknown tag " + describe(current()));
}

Target Parser::parse_one_target(bool attributes) {
  Target target{current().place, {}, {}, {}};
  if (skip_operator("(")) {
    const Nesting nesting(this);
    target = parse_target(attributes);
    expect_operator(")");
    return target;
  }
  target.name = expect_identifier();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
    if (target.name == constant) throw PlacedFailure{target.place, "cannot assign to '" + target.name + "'"};
  if (attributes && skip_operator(".")) target.attribute = expect_identifier();
  return target;
}

Target Parser::parse_target(bool attributes) {
  Target first = parse_one_target(attributes);
  if (!is_operator(",")) return first;
  Target tuple{first.place, {}, {}, {}};
  tuple.items.push_back(std::move(first));
  while (skip_operator(",")) {
    if (is_name("in") || is_operator("=") || is_operator(")") || current().kind == Token::Kind::kBlockEnd) break;
    tuple.items.push_back(parse_one_target(attributes));
  }
  return tuple;
}

Statement Parser::parse_for(Statement statement) {
  statement.kind = Statement::Kind::kFor;
  statement.target = parse_target(false);
  expect_name("in");
  statement.expression = parse_tuple(false);
  if (skip_name("if")) statement.condition = parse_expression();
  if (is_name("recursive")) fail_here("recursive loops are not supported");
  expect_block_end();
  ++loops_;
  statement.body = parse_body({"else", "endfor"});
  --loops_;
  if (skip_name("else")) {
    expect_block_end();
    statement.otherwise = parse_body({"endfor"});
  }
  next();
  expect_block_end();
  return statement;
}

Statement Parser::parse_if(Statement statement) {
  statement.kind = Statement::Kind::kIf;
  statement.expression = parse_tuple(false);
  expect_block_end();
  statement.body = parse_body({"elif", "else", "endif"});
  while (skip_name("elif")) {
    ExpressionPtr condition = parse_tuple(false);
    expect_block_end();
    statement.branches.emplace_back(std::move(condition), parse_body({"elif", "else", "endif"}));
  }
  if (skip_name("else")) {
    expect_block_end();
    statement.otherwise = parse_body({"endif"});
  }
  next();
  expect_block_end();
  return statement;
}

Statement Parser::parse_set(Statement statement) {
  statement.target = parse_target(true);
  if (skip_operator("=")) {
    statement.kind = Statement::Kind::kSet;
    statement.expression = parse_tuple(true);
    expect_block_end();
    return statement;
  }
  statement.kind = Statement::Kind::kSetBlock;
  if (is_operator("|")) statement.expression = parse_filters(nullptr, false);
  expect_block_end();
  const int loops = std::exchange(loops_, 0);
  statement.body = parse_body({"endset"});
  loops_ = loops;
  next();
  expect_block_end();
  return statement;
}

std::vector<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_operator("(");
  while (!is_operator(")")) {
    if (!parameters.empty()) expect_operator(",");
    if (is_operator(")")) break;
    Parameter parameter{expect_identifier(), nullptr};
    if (skip_operator("="))
      parameter.otherwise = parse_expression();
    else if (!parameters.empty() && parameters.back().otherwise != nullptr)
      fail_here("a parameter without a default follows one with a default");
    parameters.push_back(std::move(parameter));
  }
  next();
  return parameters;
}

std::shared_ptr<const Macro> Parser::finish_macro(Macro macro, std::initializer_list<std::string_view> ends) {
  expect_block_end();
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  macro.body = std::make_shared<const Body>(parse_body(ends));
  macros_.pop_back();
  loops_ = loops;
  next();
  // The name may be said again: {% endmacro name %}.
  if (current().kind == Token::Kind::kName && !macro.name.empty()) next();
  expect_block_end();
  return std::make_shared<const Macro>(std::move(macro));
}

Statement Parser::parse_macro(Statement statement) {
  statement.kind = Statement::Kind::kMacro;
  Macro macro;
  macro.name = expect_identifier();
  macro.parameters = parse_parameters();
  statement.macro = finish_macro(std::move(macro), {"endmacro"});
  return statement;
}

Statement Parser::parse_call_block(Statement statement) {
  statement.kind = Statement::Kind::kCall;
  Macro caller;
  if (is_operator("(")) caller.parameters = parse_parameters();
  statement.expression = parse_expression();
  if (statement.expression->kind != Expression::Kind::kCall) fail_here("expected a call");
  statement.macro = finish_macro(std::move(caller), {"endcall"});
  return statement;
}

Statement Parser::parse_filter_block(Statement statement) {
  statement.kind = Statement::Kind::kFilter;
  statement.expression = parse_filters(nullptr, true);
  expect_block_end();
  const int loops = std::exchange(loops_, 0);
  statement.body = parse_body({"endfilter"});
  loops_ = loops;
  next();
  expect_block_end();
  return statement;
}

Statement Parser::parse_with(Statement statement) {
  while (current().kind != Token::Kind::kBlockEnd) {
    if (!statement.assigned.empty()) expect_operator(",");
    Target target = parse_one_target(false);
    expect_operator("=");
    statement.assigned.emplace_back(std::move(target), parse_expression());
  }
  next();
  statement.body = parse_body({"endwith"});
  next();
  expect_block_end();
  return statement;
}

}  // namespace kvasir::jinja
