// Makes the values of one render, and counts its steps and its memory.
// Thread-safety: belongs to one render.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/parse/syntax.h"
#include "jinja/value.h"

namespace kvasir::jinja {

// Variables of one block of the template. A name is looked up here, then in the scope around.
struct Scope {
  Variables variables;
  std::shared_ptr<Scope> around;
};

// What `loop` stands for.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  Charge charge;
};

struct Callable {
  enum class Kind { kFunction, kMethod, kMacro, kLoop };
  Kind kind;
  std::string name;                    // kFunction, kMethod
  Value self;                          // kMethod
  std::shared_ptr<const Macro> macro;  // kMacro
  std::shared_ptr<Scope> scope;        // kMacro: where it was defined
  std::shared_ptr<const Loop> loop;    // kLoop
  int depth = 1;
  Charge charge;
};

class Heap {
 public:
  // Containers nested deeper than this are refused, so that no walk over one exhausts the stack.
  static constexpr int kMaxDepth = 200;

  Heap(std::int64_t steps, std::size_t memory_bytes) : steps_(steps), budget_{0, memory_bytes} {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Count; they throw Failure where the limit is exceeded.
  void step(std::size_t steps = 1);
  void copy(const Text& text) { step(text.size() / 64 + text.runs().size() / 8); }
  // Refuses what is about to be made if so many bytes more are too much.
  void require(std::size_t bytes) const;

  Value string(Text text);
  Value string(std::string_view bytes, Origin origin) { return string(Text(bytes, origin)); }
  Value list(std::vector<Value> items, List::Form form = List::Form::kList);
  // REQUIRES: distinct keys.
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value space(Variables attributes);
  Value function(std::string name);
  Value method(Value self, std::string name);
  Value macro(std::shared_ptr<const Macro> macro, std::shared_ptr<Scope> scope);
  std::shared_ptr<Loop> loop(std::vector<Value> items);
  Value loop_value(std::shared_ptr<const Loop> loop);

 private:
  Charge charge(std::size_t bytes);

  std::int64_t steps_;
  Budget budget_;
  // Namespaces and macros may refer to each other in circles, which the end of the render breaks.
  std::vector<std::shared_ptr<Namespace>> spaces_;
  std::vector<std::shared_ptr<Callable>> macros_;
};

}  // namespace kvasir::jinja
