// Python's operators on values.
// Errors: each throws Failure where Python raises. Thread-safety: as the heap.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "jinja/heap.h"
#include "jinja/value.h"

namespace kvasir::jinja {

bool truth(const Value& value);
bool equals(Heap& heap, const Value& left, const Value& right);
// Returns left < right.
bool less(Heap& heap, const Value& left, const Value& right);
bool contains(Heap& heap, const Value& container, const Value& item);
// `sign` is one of + - * / // % **.
Value binary(Heap& heap, std::string_view sign, const Value& left, const Value& right);
Value negative(const Value& value);
// One of == != < <= > >= in, not in.
bool compare(Heap& heap, std::string_view sign, const Value& left, const Value& right);

// str(). What is computed from a container counts as the caller's if any string in it does.
Text to_text(Heap& heap, const Value& value);

// What a loop over the value sees; throws where it is not iterable. Uses up an iterator.
std::vector<Value> iterate(Heap& heap, const Value& value);
bool is_iterable(const Value& value);
// len(); throws where there is none.
std::int64_t length(const Value& value);

// Returns the value of a key of a dictionary, or null. Throws where the key cannot be one.
const Value* find(Heap& heap, const Dict& dict, const Value& key);
const Value* find(Heap& heap, const Dict& dict, std::string_view key);
// Adds or replaces the value of a key.
void put(Heap& heap, std::vector<std::pair<Value, Value>>* items, Value key, Value value);

// value.name, value[key] and value[from:to:step], as jinja2 looks them up: undefined where there is nothing.
Value get_attribute(Heap& heap, const Value& value, std::string_view name);
Value get_item(Heap& heap, const Value& value, const Value& key);
Value get_slice(Heap& heap, const Value& value, const Value& from, const Value& to, const Value& step);

Value undefined(std::string_view name);
// Throws where the value is undefined.
void require_defined(const Value& value);

}  // namespace kvasir::jinja
