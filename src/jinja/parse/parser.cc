#include "jinja/parse/parser.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvasir::jinja {
Program Parser::run() {
  return {parse_body({})};
}

// Parses up to a block that starts with one of `ends`, and stops at that name.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const TokenStream::Nesting nesting(tokens_);
  Body body;
  while (!tokens_.is(Token::Kind::kEnd)) {
    const Token token = tokens_.next();
    if (token.kind == Token::Kind::kText) {
      body.push_back({Statement::Kind::kText, token.place, token.text});
    } else if (token.kind == Token::Kind::kOutputBegin) {
      Statement statement{Statement::Kind::kOutput, tokens_.current().place};
      statement.expression = expressions_.parse_tuple(true);
      if (!tokens_.is(Token::Kind::kOutputEnd))
        tokens_.fail_here("expected '}}', found " + describe(tokens_.current()));
      tokens_.next();
      body.push_back(std::move(statement));
    } else {
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.is(end); })) return body;
      parse_block(&body);
    }
  }
  if (ends.size() > 0) tokens_.fail_here(fmt::format("{{% {} %}} is missing", *std::prev(ends.end())));
  return body;
}

Body Parser::parse_outside_loops(std::initializer_list<std::string_view> ends) {
  const int loops = std::exchange(loops_, 0);
  Body body = parse_body(ends);
  loops_ = loops;
  tokens_.next();
  return body;
}

void Parser::parse_block(Body* body) {
  const Place place = tokens_.current().place;
  Statement statement{Statement::Kind::kScope, place};
  if (tokens_.skip("for")) return body->push_back(parse_for(std::move(statement)));
  if (tokens_.skip("if")) return body->push_back(parse_if(std::move(statement)));
  if (tokens_.skip("set")) return body->push_back(parse_set(std::move(statement)));
  if (tokens_.skip("macro")) return body->push_back(parse_macro(std::move(statement)));
  if (tokens_.skip("call")) return body->push_back(parse_call_block(std::move(statement)));
  if (tokens_.skip("filter")) return body->push_back(parse_filter_block(std::move(statement)));
  if (tokens_.skip("with")) return body->push_back(parse_with(std::move(statement)));
  if (tokens_.is("break") || tokens_.is("continue")) {
    if (loops_ == 0) tokens_.fail_here(describe(tokens_.current()) + " outside of a loop");
    statement.kind = tokens_.is("break") ? Statement::Kind::kBreak : Statement::Kind::kContinue;
    tokens_.next();
    tokens_.expect_block_end();
    return body->push_back(std::move(statement));
  }
  if (tokens_.skip("generation")) {  // marks what a model is trained on; only a scope here
    tokens_.expect_block_end();
    statement.body = parse_outside_loops({"endgeneration"});
    tokens_.expect_block_end();
    return body->push_back(std::move(statement));
  }
  for (const std::string_view tag : {"include", "import", "from", "extends", "block", "do", "autoescape", "trans"})
    if (tokens_.is(tag)) tokens_.fail_here(fmt::format("{{% {} %}} is not supported", tag));
  tokens_.fail_here("unknown tag " + describe(tokens_.current()));
}

Target Parser::parse_one_target(bool attributes) {
  Target target{tokens_.current().place, {}, {}, {}};
  if (tokens_.skip("(")) {
    const TokenStream::Nesting nesting(tokens_);
    target = parse_target(attributes);
    tokens_.expect(")");
    return target;
  }
  target.name = tokens_.expect_identifier();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
    if (target.name == constant) throw PlacedFailure{target.place, "cannot assign to '" + target.name + "'"};
  if (attributes && tokens_.skip(".")) target.attribute = tokens_.expect_identifier();
  return target;
}

Target Parser::parse_target(bool attributes) {
  Target first = parse_one_target(attributes);
  if (!tokens_.is(",")) return first;
  Target tuple{first.place, {}, {}, {}};
  tuple.items.push_back(std::move(first));
  while (tokens_.skip(",")) {
    if (tokens_.is("in") || tokens_.is("=") || tokens_.is(")") || tokens_.is(Token::Kind::kBlockEnd)) break;
    tuple.items.push_back(parse_one_target(attributes));
  }
  return tuple;
}

Statement Parser::parse_for(Statement statement) {
  statement.kind = Statement::Kind::kFor;
  statement.target = parse_target(false);
  tokens_.expect("in");
  statement.expression = expressions_.parse_tuple(false);
  if (tokens_.skip("if")) statement.condition = expressions_.parse_expression();
  if (tokens_.is("recursive")) tokens_.fail_here("recursive loops are not supported");
  tokens_.expect_block_end();
  ++loops_;
  statement.body = parse_body({"else", "endfor"});
  --loops_;
  if (tokens_.skip("else")) {
    tokens_.expect_block_end();
    statement.otherwise = parse_body({"endfor"});
  }
  tokens_.next();
  tokens_.expect_block_end();
  return statement;
}

Statement Parser::parse_if(Statement statement) {
  statement.kind = Statement::Kind::kIf;
  statement.expression = expressions_.parse_tuple(false);
  tokens_.expect_block_end();
  statement.body = parse_body({"elif", "else", "endif"});
  while (tokens_.skip("elif")) {
    ExpressionPtr condition = expressions_.parse_tuple(false);
    tokens_.expect_block_end();
    statement.branches.emplace_back(std::move(condition), parse_body({"elif", "else", "endif"}));
  }
  if (tokens_.skip("else")) {
    tokens_.expect_block_end();
    statement.otherwise = parse_body({"endif"});
  }
  tokens_.next();
  tokens_.expect_block_end();
  return statement;
}

Statement Parser::parse_set(Statement statement) {
  statement.target = parse_target(true);
  if (tokens_.skip("=")) {
    statement.kind = Statement::Kind::kSet;
    statement.expression = expressions_.parse_tuple(true);
    tokens_.expect_block_end();
    return statement;
  }
  statement.kind = Statement::Kind::kSetBlock;
  if (tokens_.is("|")) statement.expression = expressions_.parse_filters(nullptr, false);
  tokens_.expect_block_end();
  statement.body = parse_outside_loops({"endset"});
  tokens_.expect_block_end();
  return statement;
}

std::vector<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  tokens_.expect("(");
  tokens_.read_list(")", [&] {
    Parameter parameter{tokens_.expect_identifier(), nullptr};
    if (tokens_.skip("="))
      parameter.otherwise = expressions_.parse_expression();
    else if (!parameters.empty() && parameters.back().otherwise != nullptr)
      tokens_.fail_here("a parameter without a default follows one with a default");
    parameters.push_back(std::move(parameter));
  });
  return parameters;
}

std::shared_ptr<const Macro> Parser::finish_macro(Macro macro, std::initializer_list<std::string_view> ends) {
  tokens_.expect_block_end();
  Macro* const around = expressions_.enter_macro(&macro);
  macro.body = std::make_shared<const Body>(parse_outside_loops(ends));
  expressions_.enter_macro(around);
  // The name may be said again: {% endmacro name %}.
  if (tokens_.is(Token::Kind::kName) && !macro.name.empty()) tokens_.next();
  tokens_.expect_block_end();
  return std::make_shared<const Macro>(std::move(macro));
}

Statement Parser::parse_macro(Statement statement) {
  statement.kind = Statement::Kind::kMacro;
  Macro macro;
  macro.name = tokens_.expect_identifier();
  macro.parameters = parse_parameters();
  statement.macro = finish_macro(std::move(macro), {"endmacro"});
  return statement;
}

Statement Parser::parse_call_block(Statement statement) {
  statement.kind = Statement::Kind::kCall;
  Macro caller;
  if (tokens_.is("(")) caller.parameters = parse_parameters();
  statement.expression = expressions_.parse_expression();
  if (statement.expression->kind != Expression::Kind::kCall) tokens_.fail_here("expected a call");
  statement.macro = finish_macro(std::move(caller), {"endcall"});
  return statement;
}

Statement Parser::parse_filter_block(Statement statement) {
  statement.kind = Statement::Kind::kFilter;
  statement.expression = expressions_.parse_filters(nullptr, true);
  tokens_.expect_block_end();
  statement.body = parse_outside_loops({"endfilter"});
  tokens_.expect_block_end();
  return statement;
}

Statement Parser::parse_with(Statement statement) {
  while (!tokens_.is(Token::Kind::kBlockEnd)) {
    if (!statement.assigned.empty()) tokens_.expect(",");
    Target target = parse_one_target(false);
    tokens_.expect("=");
    statement.assigned.emplace_back(std::move(target), expressions_.parse_expression());
  }
  tokens_.next();
  statement.body = parse_body({"endwith"});
  tokens_.next();
  tokens_.expect_block_end();
  return statement;
}

}  // namespace kvasir::jinja
