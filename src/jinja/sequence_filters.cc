// Filters of sequences.
#include <algorithm>
#include <charconv>
#include <functional>

#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

using Form = List::Form;

// value.a.0.b of the path "a.0.b", or of an integer; of null, the value.
Value attribute_of(Heap& heap, Value value, const Value* path) {
  if (path == nullptr || path->is_none()) return value;
  if (path->is_integral()) return get_item(heap, value, *path);
  std::string_view rest = string_argument(path, "attribute").bytes();
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto number = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool whole_number = number.ec == std::errc() && number.ptr == part.data() + part.size() && part[0] != '-';
    value = get_item(heap, value, whole_number ? Value::integer(index) : heap.string(part, Origin::kTemplate));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

// What is compared of a value: strings without their case, unless `case_sensitive`.
Value key_of(Heap& heap, const Value& value, const Value* path, bool case_sensitive) {
  Value key = attribute_of(heap, value, path);
  if (case_sensitive || key.text() == nullptr) return key;
  heap.step(key.text()->size() / 4);
  return heap.string(change_case(*key.text(), Case::kLower));
}

// Sorts stably, and keeps the order of equals when reversed, as Python does. A merge sort, since comparisons may throw.
void sort_by(Heap& heap, std::vector<std::pair<Value, Value>>* keyed, bool reverse) {
  const auto before = [&](const auto& one, const auto& other) {
    // jinja2 compares keys as items of lists, where equal ones need no order.
    if (equals(heap, one.first, other.first)) return false;
    return reverse ? less(heap, other.first, one.first) : less(heap, one.first, other.first);
  };
  std::vector<std::pair<Value, Value>> merged(keyed->size());
  for (std::size_t width = 1; width < keyed->size(); width *= 2) {
    for (std::size_t start = 0; start < keyed->size(); start += 2 * width) {
      const std::size_t middle = std::min(start + width, keyed->size());
      const std::size_t end = std::min(start + 2 * width, keyed->size());
      std::size_t left = start;
      std::size_t right = middle;
      for (std::size_t i = start; i < end; ++i) {
        const bool second = left == middle || (right < end && before((*keyed)[right], (*keyed)[left]));
        merged[i] = std::move((*keyed)[second ? right++ : left++]);
      }
    }
    std::swap(*keyed, merged);
  }
}

Value sort(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("sort", given, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(heap, value)) {
    Value key = key_of(heap, item, bound[2], flag(bound[1], false));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  sort_by(heap, &keyed, flag(bound[0], false));
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return heap.list(std::move(items));
}

Value dictsort(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("dictsort", given, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : string_argument(bound[1], "dictsort").bytes();
  if (by != "key" && by != "value") fail("dictsort sorts by key or value");
  require_defined(value);
  if (value.dict() == nullptr) fail("dictsort needs a dictionary, not {}", value.type_name());
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.dict()->items)
    keyed.emplace_back(key_of(heap, by == "key" ? key : item, nullptr, flag(bound[0], false)),
                       heap.list({key, item}, Form::kTuple));
  sort_by(heap, &keyed, flag(bound[2], false));
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return heap.list(std::move(items));
}

Value unique(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("unique", given, {"case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> seen;
  std::vector<Value> items;
  for (Value& item : iterate(heap, value)) {
    const std::size_t before = seen.size();
    put(heap, &seen, key_of(heap, item, bound[1], flag(bound[0], false)), Value());
    if (seen.size() > before) items.push_back(std::move(item));
  }
  return heap.list(std::move(items), Form::kIterator);
}

Value extreme(Heap& heap, std::string_view name, const Value& value, const Given& given) {
  const auto bound = bind(name, given, {"case_sensitive", "attribute"});
  Value best = undefined("there is no item");
  Value best_key;
  bool first = true;
  for (Value& item : iterate(heap, value)) {
    Value key = key_of(heap, item, bound[1], flag(bound[0], false));
    if (!std::exchange(first, false) && !(name == "min" ? less(heap, key, best_key) : less(heap, best_key, key)))
      continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}

Value join(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("join", given, {"d", "attribute"});
  const Text between = bound[0] == nullptr ? Text() : to_text(heap, *bound[0]);
  Text joined;
  bool first = true;
  for (const Value& item : iterate(heap, value)) {
    const Text text = to_text(heap, attribute_of(heap, item, bound[1]));
    heap.require(joined.size() + between.size() + text.size());
    heap.step(1);
    heap.copy(between);
    heap.copy(text);
    if (!std::exchange(first, false)) joined.append(between);
    joined.append(text);
  }
  return heap.string(std::move(joined));
}

Value sum(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("sum", given, {"attribute", "start"});
  Value total = bound[1] == nullptr ? Value::integer(0) : *bound[1];
  if (total.text() != nullptr) fail("sum cannot add strings; use join");
  for (const Value& item : iterate(heap, value)) total = binary(heap, "+", total, attribute_of(heap, item, bound[0]));
  return total;
}

Value reverse(Heap& heap, const Value& value) {
  if (const Text* text = value.text()) {
    heap.step(text->size());
    Text reversed;
    for (std::size_t end = text->size(); end > 0;) {
      std::size_t size = 1;
      for (std::size_t more = 2; more <= 4 && more <= end; ++more)
        if (character_size(std::string_view(text->bytes()).substr(end - more, more)) == more) size = more;
      end -= size;
      reversed.append(*text, end, size);
    }
    return heap.string(std::move(reversed));
  }
  std::vector<Value> items = iterate(heap, value);
  std::reverse(items.begin(), items.end());
  return heap.list(std::move(items), Form::kIterator);
}

Value end_of(Heap& heap, std::string_view name, const Value& value) {
  if (name == "last" && value.list() != nullptr && value.list()->form == Form::kIterator)
    fail("an iterator has no last item");
  const std::vector<Value> items = iterate(heap, value);
  if (items.empty()) return undefined("there is no " + std::string(name) + " item");
  return name == "first" ? items.front() : items.back();
}

// The arguments from `from` on.
Given rest_of(Heap& heap, const Given& given, std::size_t from) {
  heap.require(given.positional.size() * sizeof(Value) + given.named.size() * 3 * sizeof(Value));
  heap.step(given.positional.size() + given.named.size());
  return {{given.positional.begin() + static_cast<std::ptrdiff_t>(from), given.positional.end()}, given.named};
}

Value map(Heap& heap, const Value& value, const Given& given) {
  std::vector<Value> items;
  if (!truth(value)) return heap.list({}, Form::kIterator);
  if (given.positional.empty()) {
    const auto bound = bind("map", given, {"attribute", "default"}, 1);
    for (const Value& item : iterate(heap, value)) {
      Value mapped = attribute_of(heap, item, bound[0]);
      items.push_back(mapped.is_undefined() && bound[1] != nullptr ? *bound[1] : std::move(mapped));
    }
  } else {
    const std::string& filter = string_argument(&given.positional[0], "map").bytes();
    // Each would call the next one, as deep as there are arguments.
    if (filter == "map") fail("map cannot be the filter of map");
    const Given arguments = rest_of(heap, given, 1);
    for (const Value& item : iterate(heap, value)) items.push_back(apply_filter(heap, filter, item, arguments));
  }
  return heap.list(std::move(items), Form::kIterator);
}

// select, reject, selectattr and rejectattr.
Value select(Heap& heap, const Value& value, const Given& given, bool keeps, bool attribute) {
  const std::size_t test_at = attribute ? 1 : 0;
  if (attribute && given.positional.empty()) fail("the filter needs an attribute");
  const Value* path = attribute ? &given.positional[0] : nullptr;
  const bool tests = given.positional.size() > test_at;
  const Given arguments = tests ? rest_of(heap, given, test_at + 1) : Given{};
  std::vector<Value> items;
  if (!truth(value)) return heap.list({}, Form::kIterator);
  for (const Value& item : iterate(heap, value)) {
    const Value tested = attribute_of(heap, item, path);
    const bool holds =
        tests ? apply_test(heap, string_argument(&given.positional[test_at], "select").bytes(), tested, arguments)
              : truth(tested);
    if (holds == keeps) items.push_back(item);
  }
  return heap.list(std::move(items), Form::kIterator);
}

Value pairs(Heap& heap, const Value& value) {
  std::vector<Value> items;
  if (!value.is_undefined()) {
    if (value.dict() == nullptr) fail("items needs a dictionary, not {}", value.type_name());
    for (const auto& [key, item] : value.dict()->items) items.push_back(heap.list({key, item}, Form::kTuple));
  }
  return heap.list(std::move(items), Form::kIterator);
}

}  // namespace

bool apply_sequence_filter(Heap& heap, std::string_view name, const Value& value, const Given& given, Value* result) {
  if (name == "join") return *result = join(heap, value, given), true;
  if (name == "sort") return *result = sort(heap, value, given), true;
  if (name == "dictsort") return *result = dictsort(heap, value, given), true;
  if (name == "unique") return *result = unique(heap, value, given), true;
  if (name == "min" || name == "max") return *result = extreme(heap, name, value, given), true;
  if (name == "sum") return *result = sum(heap, value, given), true;
  if (name == "map") return *result = map(heap, value, given), true;
  const bool rejects = name == "reject" || name == "rejectattr";
  const bool attribute = name == "selectattr" || name == "rejectattr";
  if (name == "select" || rejects || attribute) return *result = select(heap, value, given, !rejects, attribute), true;
  for (const std::string_view each : {"list", "first", "last", "reverse", "items"})
    if (name == each) bind(name, given, {});
  if (name == "list") return *result = heap.list(iterate(heap, value)), true;
  if (name == "first" || name == "last") return *result = end_of(heap, name, value), true;
  if (name == "reverse") return *result = reverse(heap, value), true;
  if (name == "items") return *result = pairs(heap, value), true;
  return false;
}

}  // namespace kvasir::jinja
