// Tests: `value is name`.
#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

Value remainder(Heap& heap, const Value& value, std::int64_t divisor) {
  return binary(heap, "%", value, Value::integer(divisor));
}

bool is_sequence(const Value& value) {
  if (const List* list = value.list())
    return list->form == List::Form::kList || list->form == List::Form::kTuple || list->form == List::Form::kRange;
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr;
}

// The operator that a test is another name of, or "".
std::string_view operator_of(std::string_view name) {
  if (name == "equalto" || name == "eq") return "==";
  if (name == "ne") return "!=";
  if (name == "lt" || name == "lessthan") return "<";
  if (name == "le") return "<=";
  if (name == "gt" || name == "greaterthan") return ">";
  if (name == "ge") return ">=";
  for (const std::string_view sign : {"==", "!=", "<", "<=", ">", ">=", "in"})
    if (name == sign) return sign;
  return "";
}

bool plain_test(Heap& heap, std::string_view name, const Value& value) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "boolean") return value.is_bool();
  if (name == "true" || name == "false") return value.is_bool() && truth(value) == (name == "true");
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable") return is_iterable(value);
  if (name == "sequence") return is_sequence(value);
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.is_real();
  if (name == "callable")
    return value.is_undefined() || (value.callable() != nullptr && value.callable()->kind != Callable::Kind::kLoop);
  if (name == "odd") return equals(heap, remainder(heap, value, 2), Value::integer(1));
  if (name == "even") return equals(heap, remainder(heap, value, 2), Value::integer(0));
  if (name == "lower" || name == "upper") {
    const Text text = to_text(heap, value);
    heap.step(text.size() / 2);
    const Case to = name == "lower" ? Case::kLower : Case::kUpper;
    const Case other = name == "lower" ? Case::kUpper : Case::kLower;
    return change_case(text, to).bytes() == text.bytes() && change_case(text, other).bytes() != text.bytes();
  }
  fail("there is no test '{}'", name);
}

}  // namespace

bool apply_test(Heap& heap, std::string_view name, const Value& value, const Given& given) {
  const std::string_view sign = operator_of(name);
  if (!sign.empty()) return compare(heap, sign, value, *bind(name, given, {"other"}, 1)[0]);
  if (name == "divisibleby") {
    const Value* divisor = bind(name, given, {"num"}, 1)[0];
    return equals(heap, binary(heap, "%", value, *divisor), Value::integer(0));
  }
  if (name == "sameas") {
    const Value& other = *bind(name, given, {"other"}, 1)[0];
    if (value.data().index() != other.data().index()) return false;
    const bool plain = value.is_none() || value.is_number() || value.text() != nullptr;
    return plain ? equals(heap, value, other)
                 : value.list() == other.list() && value.dict() == other.dict() && value.space() == other.space() &&
                       value.callable() == other.callable();
  }
  bind(name, given, {});
  return plain_test(heap, name, value);
}

}  // namespace kvasir::jinja
