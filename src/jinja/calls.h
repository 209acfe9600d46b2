// Filters, tests, methods and functions by name, and how their arguments are bound.
// Errors: each throws Failure. Thread-safety: as the heap.
#pragma once

#include <ctime>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/heap.h"
#include "jinja/value.h"

namespace kvasir::jinja {

struct Given {
  std::vector<Value> positional;
  Variables named;
};

// Returns the argument of each parameter, null where it is left out. Throws where `given` does not fit, or one of the
// first `required` parameters has no argument. The pointers refer to `given`.
std::vector<const Value*> bind(std::string_view callee, const Given& given,
                               std::initializer_list<std::string_view> parameters, std::size_t required = 0);
bool flag(const Value* argument, bool otherwise);
std::int64_t whole(const Value* argument, std::int64_t otherwise);
// REQUIRES: not null. Throws where the argument is no string.
const Text& string_argument(const Value* argument, std::string_view callee);

Value apply_filter(Heap& heap, std::string_view name, const Value& value, const Given& given);
// Of sequence_filters.cc. Returns false where no filter of sequences has this name.
bool apply_sequence_filter(Heap& heap, std::string_view name, const Value& value, const Given& given, Value* result);
bool apply_test(Heap& heap, std::string_view name, const Value& value, const Given& given);

bool is_function(std::string_view name);
Value call_function(Heap& heap, std::string_view name, const Given& given, std::time_t now);

// Whether Python's type of this value has such a method; some are refused when they are called.
bool has_method(const Value& value, std::string_view name);
Value call_method(Heap& heap, const Value& self, std::string_view name, const Given& given);
Value loop_attribute(Heap& heap, const Value& self, std::string_view name);

// str.replace(), at most `count` times if that is not negative.
Text replace(Heap& heap, const Text& text, const Text& old, const Text& with, std::int64_t count);
// json.dumps() as transformers calls it; options of the filter.
Value to_json(Heap& heap, const Value& value, const Given& given);

}  // namespace kvasir::jinja
