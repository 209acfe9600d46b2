// str() and repr().
#include <fmt/core.h>

#include "jinja/arithmetic.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

// Appends repr(value); sets `origin` to kCaller if a string in it is the caller's.
void show(Heap& heap, const Value& value, std::string* shown, Origin* origin);

void show_list(Heap& heap, const List& list, std::string* shown, Origin* origin) {
  using Form = List::Form;
  if (list.form == Form::kRange || list.form == Form::kIterator) fail("this list has no text; use |list");
  const bool tuple = list.form == Form::kTuple;
  const std::string_view name = list.form == Form::kKeys     ? "dict_keys"
                                : list.form == Form::kValues ? "dict_values"
                                : list.form == Form::kItems  ? "dict_items"
                                                             : "";
  if (!name.empty()) *shown += fmt::format("{}(", name);
  *shown += tuple ? '(' : '[';
  bool first = true;
  for (const Value& item : list.items) {
    if (!std::exchange(first, false)) *shown += ", ";
    show(heap, item, shown, origin);
  }
  if (tuple && list.items.size() == 1) *shown += ',';
  *shown += tuple ? ')' : ']';
  if (!name.empty()) *shown += ')';
}

void show(Heap& heap, const Value& value, std::string* shown, Origin* origin) {
  heap.step();
  heap.require(shown->size());
  if (value.is_undefined()) {
    *shown += "Undefined";
  } else if (value.is_none()) {
    *shown += "None";
  } else if (value.is_bool()) {
    *shown += value.as_int() != 0 ? "True" : "False";
  } else if (value.is_int()) {
    *shown += std::to_string(value.as_int());
  } else if (value.is_real()) {
    *shown += float_text(value.as_real());
  } else if (const Text* text = value.text()) {
    heap.step(text->size() / 4);
    if (text->origin() == Origin::kCaller) *origin = Origin::kCaller;
    *shown += python_quoted(text->bytes());
  } else if (value.list() != nullptr) {
    show_list(heap, *value.list(), shown, origin);
  } else if (value.dict() != nullptr) {
    *shown += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict()->items) {
      if (!std::exchange(first, false)) *shown += ", ";
      show(heap, key, shown, origin);
      *shown += ": ";
      show(heap, item, shown, origin);
    }
    *shown += '}';
  } else {
    fail("{} cannot be written", value.type_name());
  }
}

}  // namespace

Text to_text(Heap& heap, const Value& value) {
  if (value.is_undefined()) return {};
  if (value.text() != nullptr) {
    heap.copy(*value.text());
    return *value.text();
  }
  std::string shown;
  Origin origin = Origin::kTemplate;
  show(heap, value, &shown, &origin);
  return Text(shown, origin);
}

}  // namespace kvasir::jinja
