#include "jinja/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "jinja/calls.h"
#include "jinja/failure.h"
#include "jinja/search.h"

namespace kvasir::jinja {
namespace {

using Form = List::Form;

[[noreturn]] void fail_overflow() {
  fail("the result does not fit 64 bits");
}

std::strong_ordering order(Heap& heap, const Text& left, const Text& right) {
  heap.step(std::min(left.size(), right.size()) / 64);
  return left.bytes() <=> right.bytes();
}

Value whole_arithmetic(std::string_view sign, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  bool overflow = false;
  if (sign == "+") {
    overflow = __builtin_add_overflow(left, right, &result);
  } else if (sign == "-") {
    overflow = __builtin_sub_overflow(left, right, &result);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(left, right, &result);
  } else if (sign == "//" || sign == "%") {
    if (right == 0) fail("division by zero");
    if (right == -1) {
      overflow = sign == "//" && __builtin_sub_overflow(std::int64_t{0}, left, &result);
    } else {
      const std::int64_t rest = left % right;
      const bool below = rest != 0 && (rest < 0) != (right < 0);
      result = sign == "%" ? rest + (below ? right : 0) : left / right - (below ? 1 : 0);
    }
  } else {  // **, of an exponent that is not negative
    result = 1;
    for (std::int64_t power = left; right > 0 && !overflow; right >>= 1) {
      if (right & 1) overflow = __builtin_mul_overflow(result, power, &result);
      if (right > 1 && !overflow && __builtin_mul_overflow(power, power, &power)) overflow = true;
    }
  }
  if (overflow) fail_overflow();
  return Value::integer(result);
}

double real_arithmetic(std::string_view sign, double left, double right) {
  if (sign == "+") return left + right;
  if (sign == "-") return left - right;
  if (sign == "*") return left * right;
  if (sign == "**") {
    if (left == 0 && right < 0) fail("division by zero");
    if (left < 0 && right != std::floor(right)) fail("the power is no real number");
    const double result = std::pow(left, right);
    if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) fail("the number is out of range");
    return result;
  }
  if (right == 0) fail("division by zero");
  if (sign == "/") return left / right;
  double rest = std::fmod(left, right);
  const double quotient = (left - rest) / right;
  const bool below = rest != 0 && (rest < 0) != (right < 0);
  if (sign == "%") return rest == 0 ? std::copysign(0.0, right) : below ? rest + right : rest;
  const double shifted = below ? quotient - 1 : quotient;
  if (shifted == 0) return std::copysign(0.0, left / right);
  const double floored = std::floor(shifted);
  return shifted - floored > 0.5 ? floored + 1 : floored;
}

Value repeat(Heap& heap, const Value& sequence, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto checked = [&](std::size_t bytes) {
    if (bytes > 0 && static_cast<std::size_t>(times) > (std::size_t{1} << 40) / bytes)
      throw Failure{StatusCode::kResourceExhausted, "the template needs too much memory"};
    heap.require(bytes * static_cast<std::size_t>(times));
    heap.step(bytes * static_cast<std::size_t>(times) / 64);
  };
  if (const Text* text = sequence.text()) {
    if (text->empty()) return sequence;
    checked(text->size() + text->runs().size() * sizeof(Run));
    Text repeated;
    for (std::int64_t i = 0; i < times; ++i) repeated.append(*text);
    return heap.string(std::move(repeated));
  }
  const List& list = *sequence.list();
  checked(list.items.size() * sizeof(Value));
  std::vector<Value> items;
  if (!list.items.empty())
    for (std::int64_t i = 0; i < times; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  return heap.list(std::move(items), list.form);
}

Value add(Heap& heap, const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    heap.require(left.text()->size() + right.text()->size());
    heap.copy(*left.text());
    heap.copy(*right.text());
    Text both = *left.text();
    both.append(*right.text());
    return heap.string(std::move(both));
  }
  const List* first = left.list();
  const List* second = right.list();
  if (first == nullptr || second == nullptr || first->form != second->form ||
      (first->form != Form::kList && first->form != Form::kTuple))
    fail("cannot add {} and {}", left.type_name(), right.type_name());
  heap.require((first->items.size() + second->items.size()) * sizeof(Value));
  heap.step(first->items.size() + second->items.size());
  std::vector<Value> items = first->items;
  items.insert(items.end(), second->items.begin(), second->items.end());
  return heap.list(std::move(items), first->form);
}

bool repeats(const Value& value) {
  return value.text() != nullptr ||
         (value.list() != nullptr && (value.list()->form == Form::kList || value.list()->form == Form::kTuple));
}

bool same_items(Heap& heap, const std::vector<Value>& left, const std::vector<Value>& right) {
  return left.size() == right.size() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [&](const Value& one, const Value& other) { return equals(heap, one, other); });
}

}  // namespace

Value undefined(std::string_view name) {
  return Value::Data(Undefined{std::make_shared<const std::string>(name)});
}

void require_defined(const Value& value) {
  if (!value.is_undefined()) return;
  const auto& name = std::get<Undefined>(value.data()).name;
  if (name == nullptr) fail("the value is undefined");
  fail("'{}' is undefined", *name);
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integral()) return value.as_int() != 0;
  if (value.is_real()) return value.as_real() != 0;
  if (value.text() != nullptr) return !value.text()->empty();
  if (value.list() != nullptr) return value.list()->form == Form::kIterator || !value.list()->items.empty();
  return value.dict() == nullptr || !value.dict()->items.empty();
}

bool equals(Heap& heap, const Value& left, const Value& right) {
  heap.step();
  if (left.is_number() && right.is_number())
    return left.is_integral() && right.is_integral() ? left.as_int() == right.as_int()
                                                     : left.as_real() == right.as_real();
  if (left.data().index() != right.data().index()) return false;
  if (left.is_undefined() || left.is_none()) return true;
  if (left.text() != nullptr)
    return left.text()->size() == right.text()->size() && order(heap, *left.text(), *right.text()) == 0;
  if (left.list() != nullptr)
    return left.list() == right.list() ||
           (left.list()->form == right.list()->form && left.list()->form != Form::kIterator &&
            same_items(heap, left.list()->items, right.list()->items));
  if (left.dict() != nullptr) {
    if (left.dict()->items.size() != right.dict()->items.size()) return false;
    return std::all_of(left.dict()->items.begin(), left.dict()->items.end(), [&](const auto& item) {
      const Value* other = find(heap, *right.dict(), item.first);
      return other != nullptr && equals(heap, item.second, *other);
    });
  }
  return left.space() != nullptr ? left.space() == right.space() : left.callable() == right.callable();
}

bool less(Heap& heap, const Value& left, const Value& right) {
  heap.step();
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number())
    return left.is_integral() && right.is_integral() ? left.as_int() < right.as_int()
                                                     : left.as_real() < right.as_real();
  if (left.text() != nullptr && right.text() != nullptr) return order(heap, *left.text(), *right.text()) < 0;
  if (left.list() != nullptr && right.list() != nullptr && left.list()->form == right.list()->form && repeats(left)) {
    const auto& one = left.list()->items;
    const auto& other = right.list()->items;
    for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i)
      if (!equals(heap, one[i], other[i])) return less(heap, one[i], other[i]);
    return one.size() < other.size();
  }
  fail("cannot compare {} and {}", left.type_name(), right.type_name());
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) fail("'in <string>' needs a string, not {}", item.type_name());
    return find_part(heap, text->bytes(), item.text()->bytes()) != std::string::npos;
  }
  if (container.dict() != nullptr) return find(heap, *container.dict(), item) != nullptr;
  const std::vector<Value> items = iterate(heap, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return equals(heap, each, item); });
}

Value binary(Heap& heap, std::string_view sign, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral() && sign != "/" && !(sign == "**" && right.as_int() < 0))
      return whole_arithmetic(sign, left.as_int(), right.as_int());
    return Value::real(real_arithmetic(sign, left.as_real(), right.as_real()));
  }
  if (sign == "+") return add(heap, left, right);
  if (sign == "*" && repeats(left) && right.is_integral()) return repeat(heap, left, right.as_int());
  if (sign == "*" && left.is_integral() && repeats(right)) return repeat(heap, right, left.as_int());
  fail("'{}' does not work on {} and {}", sign, left.type_name(), right.type_name());
}

Value negative(const Value& value) {
  require_defined(value);
  if (value.is_real()) return Value::real(-value.as_real());
  if (!value.is_integral()) fail("'-' does not work on {}", value.type_name());
  if (value.as_int() == std::numeric_limits<std::int64_t>::min()) fail_overflow();
  return Value::integer(-value.as_int());
}

bool compare(Heap& heap, std::string_view sign, const Value& left, const Value& right) {
  if (sign == "==") return equals(heap, left, right);
  if (sign == "!=") return !equals(heap, left, right);
  if (sign == "in") return contains(heap, right, left);
  if (sign == "not in") return !contains(heap, right, left);
  if (sign == "<") return less(heap, left, right);
  if (sign == ">") return less(heap, right, left);
  const bool numbers = left.is_number() && right.is_number();
  if (numbers && (std::isnan(left.as_real()) || std::isnan(right.as_real()))) return false;
  return sign == "<=" ? !less(heap, right, left) : !less(heap, left, right);
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
         (value.callable() != nullptr && value.callable()->kind == Callable::Kind::kLoop);
}

std::vector<Value> iterate(Heap& heap, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.list()) {
    if (list->form == Form::kIterator && std::exchange(list->spent, true)) return items;
    heap.step(list->items.size());
    heap.require(list->items.size() * sizeof(Value));
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    heap.step(dict->items.size());
    for (const auto& [key, each] : dict->items) items.push_back(key);
    return items;
  }
  const Text* text = value.text();
  if (text == nullptr) fail("{} is not iterable", value.type_name());
  for (std::size_t at = 0; at < text->size();) {
    heap.step();
    const std::size_t size = character_size(std::string_view(text->bytes()).substr(at));
    items.push_back(heap.string(text->substring(at, size)));
    at += size;
  }
  return items;
}

std::int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return static_cast<std::int64_t>(count_characters(value.text()->bytes()));
  if (value.dict() != nullptr) return static_cast<std::int64_t>(value.dict()->items.size());
  if (value.list() == nullptr || value.list()->form == Form::kIterator) fail("{} has no length", value.type_name());
  return static_cast<std::int64_t>(value.list()->items.size());
}

const Value* find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.dict() != nullptr || (key.list() != nullptr && key.list()->form == Form::kList))
    fail("{} cannot be a key", key.type_name());
  heap.step(dict.items.size() / 8);
  for (const auto& [each, value] : dict.items)
    if (each.data().index() == key.data().index() || each.is_number())
      if (equals(heap, each, key)) return &value;
  return nullptr;
}

const Value* find(Heap& heap, const Dict& dict, std::string_view key) {
  heap.step(dict.items.size() / 8);
  for (const auto& [each, value] : dict.items)
    if (each.text() != nullptr && each.text()->bytes() == key) return &value;
  return nullptr;
}

void put(Heap& heap, std::vector<std::pair<Value, Value>>* items, Value key, Value value) {
  if (key.dict() != nullptr || (key.list() != nullptr && key.list()->form == Form::kList))
    fail("{} cannot be a key", key.type_name());
  for (auto& [each, old] : *items)
    if (equals(heap, each, key)) {
      old = std::move(value);
      return;
    }
  items->emplace_back(std::move(key), std::move(value));
}

}  // namespace kvasir::jinja
