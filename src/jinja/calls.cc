#include "jinja/calls.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "jinja/arithmetic.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

constexpr std::size_t kMaxRange = 100'000;  // as in jinja2's sandbox

Value range(Heap& heap, const Given& given) {
  const auto bound = bind("range", given, {"start", "stop", "step"}, 1);
  for (const Value* each : bound)
    if (each != nullptr && !each->is_integral()) fail("range() needs integers, not {}", each->type_name());
  std::int64_t from = bound[1] == nullptr ? 0 : bound[0]->as_int();
  const std::int64_t to = bound[1] == nullptr ? bound[0]->as_int() : bound[1]->as_int();
  const std::int64_t step = whole(bound[2], 1);
  if (step == 0) fail("range() needs a step that is not zero");
  std::vector<Value> items;
  while (step > 0 ? from < to : from > to) {
    if (items.size() == kMaxRange) fail("range() is limited to {} numbers", kMaxRange);
    heap.step();
    items.push_back(Value::integer(from));
    if (__builtin_add_overflow(from, step, &from)) break;
  }
  return heap.list(std::move(items), List::Form::kRange);
}

// What dict() and namespace() start with: a dictionary or pairs, and then the named arguments.
std::vector<std::pair<Value, Value>> entries(Heap& heap, std::string_view callee, const Given& given) {
  if (given.positional.size() > 1) fail("{}() takes one dictionary", callee);
  std::vector<std::pair<Value, Value>> items;
  if (!given.positional.empty()) {
    const Value& first = given.positional[0];
    require_defined(first);
    if (first.dict() != nullptr) {
      heap.require(first.dict()->items.size() * 2 * sizeof(Value));
      items = first.dict()->items;
    } else {
      for (const Value& pair : iterate(heap, first)) {
        std::vector<Value> both = iterate(heap, pair);
        if (both.size() != 2) fail("{}() needs pairs", callee);
        put(heap, &items, std::move(both[0]), std::move(both[1]));
      }
    }
  }
  for (const auto& [name, value] : given.named) put(heap, &items, heap.string(name, Origin::kTemplate), value);
  return items;
}

Value make_namespace(Heap& heap, const Given& given) {
  Variables attributes;
  for (auto& [key, value] : entries(heap, "namespace", given)) {
    if (key.text() == nullptr) fail("names in a namespace are strings, not {}", key.type_name());
    attributes.emplace_back(key.text()->bytes(), std::move(value));
  }
  return heap.space(std::move(attributes));
}

Value strftime_now(Heap& heap, const Given& given, std::time_t now) {
  const Text& text = string_argument(bind("strftime_now", given, {"format"}, 1)[0], "strftime_now");
  const std::string& form = text.bytes();
  if (form.size() > 200 || form.find('\0') != std::string::npos) fail("the date format is not usable");
  std::tm date{};
  KVASIR_CHECK(localtime_r(&now, &date) != nullptr);
  char shown[4096];
  // A mark in front tells an empty date from one that is too long.
  const std::size_t size = std::strftime(shown, sizeof shown, ("." + form).c_str(), &date);
  if (size == 0) fail("the date is too long");
  return heap.string(std::string_view(shown, size).substr(1), text.origin());
}

}  // namespace

std::vector<const Value*> bind(std::string_view callee, const Given& given,
                               std::initializer_list<std::string_view> parameters, std::size_t required) {
  if (given.positional.size() > parameters.size())
    fail("{} takes at most {} arguments, not {}", callee, parameters.size(), given.positional.size());
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (std::size_t i = 0; i < given.positional.size(); ++i) bound[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) fail("{} has no argument '{}'", callee, name);
    const Value*& place = bound[static_cast<std::size_t>(found - parameters.begin())];
    if (place != nullptr) fail("{} got the argument '{}' twice", callee, name);
    place = &value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr) fail("{} needs the argument '{}'", callee, *(parameters.begin() + i));
  return bound;
}

bool flag(const Value* argument, bool otherwise) {
  return argument == nullptr ? otherwise : truth(*argument);
}

std::int64_t whole(const Value* argument, std::int64_t otherwise) {
  if (argument == nullptr) return otherwise;
  require_defined(*argument);
  if (!argument->is_integral()) fail("expected an integer, not {}", argument->type_name());
  return argument->as_int();
}

const Text& string_argument(const Value* argument, std::string_view callee) {
  require_defined(*argument);
  if (argument->text() == nullptr) fail("{} needs a string, not {}", callee, argument->type_name());
  return *argument->text();
}

bool is_function(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Value call_function(Heap& heap, std::string_view name, const Given& given, std::time_t now) {
  if (name == "range") return range(heap, given);
  if (name == "namespace") return make_namespace(heap, given);
  if (name == "dict") return heap.dict(entries(heap, "dict", given));
  if (name == "strftime_now") return strftime_now(heap, given, now);
  KVASIR_CHECK(name == "raise_exception");
  const Text message = to_text(heap, *bind("raise_exception", given, {"message"}, 1)[0]);
  fail("{}", message.bytes());
}

Value loop_attribute(Heap& heap, const Value& self, std::string_view name) {
  const Loop& loop = *self.callable()->loop;
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto size = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(1);  // loops do not call themselves
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return index > 0 ? loop.items[loop.index - 1] : undefined("there is no previous item");
  if (name == "nextitem") return index + 1 < size ? loop.items[loop.index + 1] : undefined("there is no next item");
  if (name == "cycle") return heap.method(self, "cycle");
  if (name == "changed") fail("loop.changed is not supported");
  return undefined(name);
}

}  // namespace kvasir::jinja
