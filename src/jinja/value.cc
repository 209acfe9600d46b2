#include "jinja/value.h"

#include <algorithm>

#include "jinja/heap.h"

namespace kvasir::jinja {

Value Value::string(std::string_view bytes, Origin origin) {
  return Data(std::make_shared<const String>(String{Text(bytes, origin), {}}));
}

Value Value::list(std::vector<Value> items) {
  List list;
  for (const Value& item : items) list.depth = std::max(list.depth, item.depth() + 1);
  list.items = std::move(items);
  return Data(std::make_shared<const List>(std::move(list)));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  Dict dict;
  for (auto& [key, value] : items) {
    dict.depth = std::max(dict.depth, value.depth() + 1);
    dict.items.emplace_back(string(key), std::move(value));
  }
  return Data(std::make_shared<const Dict>(std::move(dict)));
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_int()) return "an integer";
  if (is_real()) return "a float";
  if (text() != nullptr) return "a string";
  if (list() != nullptr) return list()->form == List::Form::kTuple ? "a tuple" : "a list";
  if (dict() != nullptr) return "a dictionary";
  return space() != nullptr ? "a namespace" : "a function";
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  if (callable() != nullptr) return callable()->depth;
  return space() != nullptr ? 1 : 0;
}

const Value* find(const Variables& variables, std::string_view name) {
  for (const auto& [key, value] : variables)
    if (key == name) return &value;
  return nullptr;
}

}  // namespace kvasir::jinja
