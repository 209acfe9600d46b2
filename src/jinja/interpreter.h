// Runs a parsed template.
// Thread-safety: one render, on one thread.
#pragma once

#include <ctime>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "jinja/calls.h"
#include "jinja/heap.h"
#include "jinja/jinja.h"
#include "jinja/parse/syntax.h"

namespace kvasir::jinja {

class Interpreter {
 public:
  // `trace` may be null.
  Interpreter(const Variables& variables, std::time_t now, const Limits& limits, Trace* trace);

  // Throws Failure; place() is then where.
  Text run(const Body& body);
  Place place() const { return place_ != nullptr ? *place_ : Place{}; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class InScope;

  // interpreter.cc: statements.
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_for(const Statement& statement);
  void trace_round(const Value& item);
  Flow execute_if(const Statement& statement);
  void execute_call(const Statement& statement);
  void write(const Text& text);
  // Runs a body in a scope of its own and returns what it writes.
  Text capture(const Body& body);
  Text capture_here(const Body& body);  // in the current scope
  void set(const std::string& name, Value value);
  void assign(const Target& target, Value value);
  void enter(const Place& place);

  // evaluate.cc: expressions.
  Value evaluate(const Expression& expression);
  Value evaluate_node(const Expression& expression);
  Value evaluate_optional(const ExpressionPtr& expression);
  Value look_up(const std::string& name);
  Value concatenate(const Expression& expression);
  Value compare_chain(const Expression& expression);
  Value filter(const Expression& expression, const Value& value);
  Value call(const Value& callee, Given given);
  Value call_macro(const Callable& callable, Given given);
  Value filter_block(const Expression* filters, Value value);
  Given evaluate_arguments(const Arguments& arguments);

  const Limits limits_;
  const std::time_t now_;
  Heap heap_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  const Text* output_ = nullptr;  // of the whole template
  Trace* trace_;
  Trace::Loop* traced_ = nullptr;  // the innermost loop
  std::size_t round_from_ = 0;     // offset in the output where its round starts
  bool in_subject_ = false;        // its round is over a subject
  std::unordered_map<const Dict*, std::size_t> subjects_;
  std::size_t written_ = 0;       // bytes of all texts that are being written
  const Place* place_ = nullptr;  // of the innermost node that is at work
  int depth_ = 0;
};

// Makes a new scope inside `around` the current one while it lives.
class Interpreter::InScope {
 public:
  InScope(Interpreter* interpreter, std::shared_ptr<Scope> around)
      : interpreter_(interpreter), before_(std::move(interpreter->scope_)) {
    interpreter_->scope_ = std::make_shared<Scope>(Scope{{}, around != nullptr ? std::move(around) : before_});
  }
  ~InScope() { interpreter_->scope_ = std::move(before_); }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  Interpreter* interpreter_;
  std::shared_ptr<Scope> before_;
};

}  // namespace kvasir::jinja
