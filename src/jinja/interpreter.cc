#include "jinja/interpreter.h"

#include <fmt/core.h>

#include <utility>

#include "jinja/arithmetic.h"
#include "jinja/failure.h"
#include "jinja/parse/parser.h"

namespace kvasir::jinja {

Interpreter::Interpreter(const Variables& variables, std::time_t now, const Limits& limits, Trace* trace)
    : limits_(limits),
      now_(now),
      heap_(limits.steps, limits.memory_bytes),
      scope_(std::make_shared<Scope>(Scope{variables, nullptr})),
      trace_(trace) {
  if (trace_ == nullptr) return;
  trace_->loops.clear();
  for (std::size_t i = 0; i < trace_->subjects.size(); ++i) subjects_.emplace(trace_->subjects[i].dict(), i);
}

Text Interpreter::run(const Body& body) {
  Text text;
  out_ = &text;
  output_ = &text;
  execute(body);
  return text;
}

void Interpreter::enter(const Place& place) {
  place_ = &place;
  heap_.step();
  if (depth_ >= limits_.depth) throw Failure{StatusCode::kResourceExhausted, "the template nests too deeply"};
  ++depth_;
}

void Interpreter::write(const Text& text) {
  if (text.size() > limits_.output_bytes - written_)
    throw Failure{StatusCode::kResourceExhausted, "the template writes too much"};
  written_ += text.size();
  heap_.copy(text);
  out_->append(text);
}

Text Interpreter::capture(const Body& body) {
  const InScope scope(this, nullptr);
  return capture_here(body);
}

Text Interpreter::capture_here(const Body& body) {
  Text text;
  Text* before = std::exchange(out_, &text);
  execute(body);
  out_ = before;
  written_ -= text.size();
  return text;
}

void Interpreter::set(const std::string& name, Value value) {
  heap_.step(scope_->variables.size() / 16);
  for (auto& [key, old] : scope_->variables)
    if (key == name) {
      old = std::move(value);
      return;
    }
  scope_->variables.emplace_back(name, std::move(value));
}

void Interpreter::assign(const Target& target, Value value) {
  place_ = &target.place;
  if (!target.items.empty()) {
    std::vector<Value> items = iterate(heap_, value);
    if (items.size() != target.items.size())
      fail("cannot assign {} values to {} names", items.size(), target.items.size());
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.items[i], std::move(items[i]));
    return;
  }
  if (target.attribute.empty()) return set(target.name, std::move(value));
  const Value space = look_up(target.name);
  if (space.space() == nullptr) fail("'{}' is no namespace", target.name);
  for (auto& [key, old] : space.space()->attributes)
    if (key == target.attribute) {
      std::swap(old, value);
      return;
    }
  space.space()->attributes.emplace_back(target.attribute, std::move(value));
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const Statement& statement : body) {
    const Place* before = place_;
    enter(statement.place);
    const Flow flow = execute(statement);
    --depth_;
    place_ = before;
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  using Kind = Statement::Kind;
  switch (statement.kind) {
    case Kind::kText: write(Text(statement.text, Origin::kTemplate)); break;
    case Kind::kOutput: write(to_text(heap_, evaluate(*statement.expression))); break;
    case Kind::kFor: return execute_for(statement);
    case Kind::kIf: return execute_if(statement);
    case Kind::kSet: {
      Value value = evaluate(*statement.expression);
      trace_round(value);
      assign(statement.target, std::move(value));
      break;
    }
    case Kind::kSetBlock:
      assign(statement.target, filter_block(statement.expression.get(), heap_.string(capture(statement.body))));
      break;
    case Kind::kMacro: set(statement.macro->name, heap_.macro(statement.macro, scope_)); break;
    case Kind::kCall: execute_call(statement); break;
    case Kind::kFilter:
      write(to_text(heap_, filter_block(statement.expression.get(), heap_.string(capture(statement.body)))));
      break;
    case Kind::kScope: {
      std::vector<Value> values;
      for (const auto& [target, expression] : statement.assigned) values.push_back(evaluate(*expression));
      const InScope scope(this, nullptr);
      for (std::size_t i = 0; i < values.size(); ++i) assign(statement.assigned[i].first, std::move(values[i]));
      return execute(statement.body);
    }
    case Kind::kBreak: return Flow::kBreak;
    case Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  if (truth(evaluate(*statement.expression))) return execute(statement.body);
  for (const auto& [condition, body] : statement.branches)
    if (truth(evaluate(*condition))) return execute(body);
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement) {
  std::vector<Value> items = iterate(heap_, evaluate(*statement.expression));
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      const InScope scope(this, nullptr);
      assign(statement.target, item);
      if (truth(evaluate(*statement.condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    const InScope scope(this, nullptr);
    return execute(statement.otherwise);
  }
  const std::shared_ptr<Loop> loop = heap_.loop(std::move(items));
  const Value variable = heap_.loop_value(loop);
  Trace::Loop traced;
  Trace::Loop* const around = std::exchange(traced_, &traced);
  const bool in_subject = in_subject_;
  const std::size_t round_from = round_from_;
  for (; loop->index < loop->items.size(); ++loop->index) {
    heap_.step();
    const InScope scope(this, nullptr);
    set("loop", variable);
    assign(statement.target, loop->items[loop->index]);
    in_subject_ = false;
    round_from_ = output_->size();
    trace_round(loop->items[loop->index]);
    if (execute(statement.body) == Flow::kBreak) break;
  }
  traced_ = around;
  in_subject_ = in_subject;
  round_from_ = round_from;
  if (!traced.rounds.empty()) {
    traced.end = output_->size();
    trace_->loops.push_back(std::move(traced));
  }
  return Flow::kNext;
}

// Notes that the current round of the innermost loop is about this value.
void Interpreter::trace_round(const Value& item) {
  if (trace_ == nullptr || traced_ == nullptr || in_subject_ || out_ != output_) return;
  const auto subject = subjects_.find(item.dict());
  if (subject == subjects_.end()) return;
  traced_->rounds.push_back({subject->second, round_from_});
  in_subject_ = true;
}

void Interpreter::execute_call(const Statement& statement) {
  const Expression& expression = *statement.expression;
  const Value callee = evaluate(*expression.children[0]);
  Given given = evaluate_arguments(expression.arguments);
  given.named.emplace_back("caller", heap_.macro(statement.macro, scope_));
  write(to_text(heap_, call(callee, std::move(given))));
}

Result<Template> parse(std::string_view source) {
  if (source.size() > kMostSource)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the template has {} bytes, and at most {} are read", source.size(), kMostSource));
  try {
    return Template(std::make_shared<const Program>(Parser(tokenize(source)).run()));
  } catch (const PlacedFailure& failure) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("line {}, column {}: {}", failure.place.line, failure.place.column, failure.message));
  }
}

Result<Text> render(const Template& parsed, const Variables& variables, std::time_t now, const Limits& limits,
                    Trace* trace) {
  Interpreter interpreter(variables, now, limits, trace);
  try {
    return interpreter.run(parsed.program().body);
  } catch (const Failure& failure) {
    const Place place = interpreter.place();
    return Status(failure.code, fmt::format("line {}, column {}: {}", place.line, place.column, failure.message));
  }
}

}  // namespace kvasir::jinja
