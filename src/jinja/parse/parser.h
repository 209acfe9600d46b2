// Builds the syntax tree of a template from its tokens.
// Thread-safety: a parser belongs to one thread.
#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/parse/parse_expression.h"
#include "jinja/parse/syntax.h"
#include "jinja/parse/token_stream.h"

namespace kvasir::jinja {

struct Program {
  Body body;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // Throws PlacedFailure.
  Program run();

 private:
  Body parse_body(std::initializer_list<std::string_view> ends);
  // Parses a body in which no loop around it can be left, up to its end's name and that.
  Body parse_outside_loops(std::initializer_list<std::string_view> ends);
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

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current statement, within its macro
};

}  // namespace kvasir::jinja
