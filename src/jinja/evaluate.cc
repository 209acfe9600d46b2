// The interpreter's expressions and calls.
#include <utility>

#include "jinja/arithmetic.h"
#include "jinja/failure.h"
#include "jinja/interpreter.h"

namespace kvasir::jinja {

using Kind = Expression::Kind;

Value Interpreter::evaluate(const Expression& expression) {
  const Place* before = place_;
  enter(expression.place);
  Value value = evaluate_node(expression);
  --depth_;
  place_ = before;
  return value;
}

Value Interpreter::evaluate_optional(const ExpressionPtr& expression) {
  return expression == nullptr ? Value::none() : evaluate(*expression);
}

Value Interpreter::look_up(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->around.get()) {
    heap_.step(scope->variables.size() / 16);
    if (const Value* found = find(scope->variables, name)) return *found;
  }
  return is_function(name) ? heap_.function(name) : undefined(name);
}

Value Interpreter::evaluate_node(const Expression& expression) {
  const auto& children = expression.children;
  const auto child = [&](std::size_t i) { return evaluate(*children[i]); };
  switch (expression.kind) {
    case Kind::kConstant: return expression.value;
    case Kind::kName: return look_up(expression.name);
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& item : children) items.push_back(evaluate(*item));
      return heap_.list(std::move(items), expression.kind == Kind::kTuple ? List::Form::kTuple : List::Form::kList);
    }
    case Kind::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (std::size_t i = 0; i < children.size(); i += 2) {
        Value key = child(i);
        put(heap_, &items, std::move(key), child(i + 1));
      }
      return heap_.dict(std::move(items));
    }
    case Kind::kAttribute: return get_attribute(heap_, child(0), expression.name);
    case Kind::kIndex: {
      const Value value = child(0);
      return get_item(heap_, value, child(1));
    }
    case Kind::kSlice: {
      const Value value = child(0);
      const Value from = evaluate_optional(children[1]);
      const Value to = evaluate_optional(children[2]);
      return get_slice(heap_, value, from, to, evaluate_optional(children[3]));
    }
    case Kind::kCall: {
      const Value callee = child(0);
      return call(callee, evaluate_arguments(expression.arguments));
    }
    case Kind::kFilter: return filter(expression, child(0));
    case Kind::kTest: {
      const Value value = child(0);
      return Value::boolean(apply_test(heap_, expression.name, value, evaluate_arguments(expression.arguments)));
    }
    case Kind::kNot: return Value::boolean(!truth(child(0)));
    case Kind::kNegative: return negative(child(0));
    case Kind::kPositive: {
      Value value = child(0);
      require_defined(value);
      if (!value.is_number()) fail("'+' does not work on {}", value.type_name());
      return value.is_bool() ? Value::integer(value.as_int()) : value;
    }
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = child(0);
      return truth(left) == (expression.kind == Kind::kOr) ? left : child(1);
    }
    case Kind::kConcat: return concatenate(expression);
    case Kind::kCompare: return compare_chain(expression);
    case Kind::kBinary: {
      const Value left = child(0);
      return binary(heap_, expression.operators[0], left, child(1));
    }
    case Kind::kIf:
      if (truth(child(1))) return child(0);
      return children[2] == nullptr ? Value() : child(2);
  }
  return Value();
}

Value Interpreter::concatenate(const Expression& expression) {
  Text text;
  for (const ExpressionPtr& part : expression.children) {
    const Text more = to_text(heap_, evaluate(*part));
    heap_.require(text.size() + more.size());
    heap_.copy(more);
    text.append(more);
  }
  return heap_.string(std::move(text));
}

Value Interpreter::compare_chain(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1]);
    if (!compare(heap_, expression.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::filter(const Expression& expression, const Value& value) {
  return apply_filter(heap_, expression.name, value, evaluate_arguments(expression.arguments));
}

// The innermost filter of a block's has no child: it is applied to the text of the block.
Value Interpreter::filter_block(const Expression* filters, Value value) {
  if (filters == nullptr) return value;
  const Value inner = filter_block(filters->children[0].get(), std::move(value));
  place_ = &filters->place;
  return filter(*filters, inner);
}

Given Interpreter::evaluate_arguments(const Arguments& arguments) {
  Given given;
  for (const ExpressionPtr& argument : arguments.positional) given.positional.push_back(evaluate(*argument));
  for (const auto& [name, argument] : arguments.named) given.named.emplace_back(name, evaluate(*argument));
  return given;
}

Value Interpreter::call(const Value& callee, Given given) {
  require_defined(callee);
  const Callable* callable = callee.callable();
  if (callable == nullptr || callable->kind == Callable::Kind::kLoop) fail("{} cannot be called", callee.type_name());
  if (callable->kind == Callable::Kind::kFunction) return call_function(heap_, callable->name, given, now_);
  if (callable->kind == Callable::Kind::kMethod) return call_method(heap_, callable->self, callable->name, given);
  return call_macro(*callable, std::move(given));
}

Value Interpreter::call_macro(const Callable& callable, Given given) {
  const Macro& macro = *callable.macro;
  const InScope scope(this, callable.scope);
  const std::size_t count = macro.parameters.size();
  if (given.positional.size() > count && !macro.takes_more)
    fail("macro '{}' takes {} arguments, not {}", macro.name, count, given.positional.size());
  Value caller = undefined("caller");
  std::vector<std::pair<Value, Value>> others;
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (i < given.positional.size()) set(parameter.name, given.positional[i]);
  }
  for (auto& [name, value] : given.named) {
    std::size_t i = 0;
    while (i < count && macro.parameters[i].name != name) ++i;
    if (i < count && i < given.positional.size()) fail("macro '{}' got '{}' twice", macro.name, name);
    if (i < count)
      set(name, std::move(value));
    else if (name == "caller" && macro.takes_caller)
      caller = std::move(value);
    else if (macro.takes_named)
      others.emplace_back(heap_.string(name, Origin::kTemplate), std::move(value));
    else
      fail("macro '{}' has no parameter '{}'", macro.name, name);
  }
  for (const Parameter& parameter : macro.parameters)
    if (find(scope_->variables, parameter.name) == nullptr)
      set(parameter.name, parameter.otherwise == nullptr ? undefined(parameter.name) : evaluate(*parameter.otherwise));
  if (macro.takes_caller) set("caller", caller);
  if (macro.takes_named) set("kwargs", heap_.dict(std::move(others)));
  if (macro.takes_more) {
    const auto first = given.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, given.positional.size()));
    set("varargs", heap_.list({first, given.positional.end()}, List::Form::kTuple));
  }
  return heap_.string(capture_here(*macro.body));
}

}  // namespace kvasir::jinja
