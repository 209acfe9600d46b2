#include "jinja/heap.h"

#include <algorithm>

#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

constexpr std::size_t kObjectBytes = 128;  // of any object, roughly

int checked_depth(int depth) {
  if (depth > Heap::kMaxDepth) fail("values are nested too deeply");
  return depth;
}

int depth_of(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return checked_depth(depth + 1);
}

}  // namespace

Heap::~Heap() {
  for (const auto& space : spaces_) space->attributes.clear();
  for (const auto& macro : macros_) macro->scope = nullptr;
}

void Heap::step(std::size_t steps) {
  steps_ -= static_cast<std::int64_t>(std::min<std::size_t>(steps, std::size_t{1} << 40));
  if (steps_ < 0) throw Failure{StatusCode::kResourceExhausted, "the template takes too many steps"};
}

void Heap::require(std::size_t bytes) const {
  if (bytes > budget_.limit || budget_.used > budget_.limit - bytes)
    throw Failure{StatusCode::kResourceExhausted, "the template needs too much memory"};
}

Charge Heap::charge(std::size_t bytes) {
  require(bytes);
  return Charge(&budget_, bytes);
}

Value Heap::string(Text text) {
  Charge charged = charge(kObjectBytes + text.size() + text.runs().size() * sizeof(Run));
  return Value::Data(std::make_shared<const String>(String{std::move(text), std::move(charged)}));
}

Value Heap::list(std::vector<Value> items, List::Form form) {
  List list;
  list.form = form;
  list.depth = depth_of(items);
  list.charge = charge(kObjectBytes + items.size() * sizeof(Value));
  list.items = std::move(items);
  return Value::Data(std::make_shared<const List>(std::move(list)));
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items) {
  Dict dict;
  for (const auto& [key, value] : items) dict.depth = std::max({dict.depth, key.depth() + 1, value.depth() + 1});
  checked_depth(dict.depth);
  dict.charge = charge(kObjectBytes + items.size() * 2 * sizeof(Value));
  dict.items = std::move(items);
  return Value::Data(std::make_shared<const Dict>(std::move(dict)));
}

Value Heap::space(Variables attributes) {
  charge(kObjectBytes);
  budget_.used += kObjectBytes + attributes.size() * 2 * sizeof(Value);  // until the render ends
  spaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(attributes)}));
  return Value::Data(spaces_.back());
}

Value Heap::function(std::string name) {
  Callable callable{Callable::Kind::kFunction, std::move(name)};
  return Value::Data(std::make_shared<const Callable>(std::move(callable)));
}

Value Heap::method(Value self, std::string name) {
  Callable callable{Callable::Kind::kMethod, std::move(name)};
  callable.depth = checked_depth(self.depth() + 1);
  callable.self = std::move(self);
  callable.charge = charge(kObjectBytes);
  return Value::Data(std::make_shared<const Callable>(std::move(callable)));
}

Value Heap::macro(std::shared_ptr<const Macro> macro, std::shared_ptr<Scope> scope) {
  require(2 * kObjectBytes);
  budget_.used += 2 * kObjectBytes;  // until the render ends
  auto callable = std::make_shared<Callable>(Callable{Callable::Kind::kMacro});
  callable->macro = std::move(macro);
  callable->scope = std::move(scope);
  macros_.push_back(callable);
  return Value::Data(std::shared_ptr<const Callable>(std::move(callable)));
}

std::shared_ptr<Loop> Heap::loop(std::vector<Value> items) {
  auto loop = std::make_shared<Loop>();
  loop->charge = charge(kObjectBytes + items.size() * sizeof(Value));
  loop->items = std::move(items);
  return loop;
}

Value Heap::loop_value(std::shared_ptr<const Loop> loop) {
  Callable callable{Callable::Kind::kLoop};
  callable.depth = depth_of(loop->items);
  callable.loop = std::move(loop);
  return Value::Data(std::make_shared<const Callable>(std::move(callable)));
}

}  // namespace kvasir::jinja
