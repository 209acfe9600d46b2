// Attributes, items and slices of values.
#include <algorithm>
#include <limits>
#include <optional>

#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

using Form = List::Form;

bool has_positions(const List& list) {
  return list.form == Form::kList || list.form == Form::kTuple || list.form == Form::kRange;
}

// The offsets of a slice of `size` elements, as Python's slice.indices() gives them.
struct Slice {
  std::int64_t from;
  std::int64_t to;
  std::int64_t step;

  std::int64_t count() const {
    if (step > 0) return from < to ? (to - from - 1) / step + 1 : 0;
    return to < from ? static_cast<std::int64_t>((static_cast<std::uint64_t>(from - to) - 1) /
                                                 (0 - static_cast<std::uint64_t>(step))) +
                           1
                     : 0;
  }
};

std::optional<std::int64_t> bound(const Value& value, std::optional<std::int64_t> otherwise) {
  if (value.is_none()) return otherwise;
  return value.is_integral() ? std::optional(value.as_int()) : std::nullopt;
}

std::optional<Slice> slice_of(std::int64_t size, const Value& from, const Value& to, const Value& step) {
  const auto by = bound(step, 1);
  if (!by) return std::nullopt;
  if (*by == 0) fail("a slice's step is zero");
  const std::int64_t low = *by > 0 ? 0 : -1;
  const std::int64_t high = *by > 0 ? size : size - 1;
  const auto clamped = [&](std::int64_t at) {
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, std::max(low, high));
  };
  const auto first = from.is_none() ? std::optional(*by > 0 ? low : high) : bound(from, 0);
  const auto last = to.is_none() ? std::optional(*by > 0 ? high : low) : bound(to, 0);
  if (!first || !last) return std::nullopt;
  return Slice{from.is_none() ? *first : clamped(*first), to.is_none() ? *last : clamped(*last), *by};
}

}  // namespace

Value get_attribute(Heap& heap, const Value& value, std::string_view name) {
  require_defined(value);
  if (value.space() != nullptr) {
    const Value* found = find(value.space()->attributes, name);
    return found != nullptr ? *found : undefined(name);
  }
  if (value.callable() != nullptr && value.callable()->kind == Callable::Kind::kLoop)
    return loop_attribute(heap, value, name);
  if (value.callable() != nullptr && value.callable()->kind == Callable::Kind::kMacro && name == "name")
    return heap.string(value.callable()->macro->name, Origin::kTemplate);
  if (has_method(value, name)) return heap.method(value, std::string(name));
  if (value.dict() != nullptr)
    if (const Value* found = find(heap, *value.dict(), name)) return *found;
  return undefined(name);
}

Value get_item(Heap& heap, const Value& value, const Value& key) {
  require_defined(value);
  if (value.dict() != nullptr) {
    const bool hashable = key.dict() == nullptr && (key.list() == nullptr || key.list()->form != Form::kList);
    if (hashable)
      if (const Value* found = find(heap, *value.dict(), key)) return *found;
  } else if (key.is_integral()) {
    std::int64_t at = key.as_int();
    if (value.list() != nullptr && has_positions(*value.list())) {
      const auto size = static_cast<std::int64_t>(value.list()->items.size());
      if (at < 0) at += size;
      if (at >= 0 && at < size) return value.list()->items[static_cast<std::size_t>(at)];
    } else if (const Text* text = value.text()) {
      heap.step(text->size() / 16);
      if (at < 0) at += length(value);
      if (at >= 0) {
        const std::size_t offset = character_offset(text->bytes(), static_cast<std::size_t>(at));
        if (offset < text->size())
          return heap.string(text->substring(offset, character_size(std::string_view(text->bytes()).substr(offset))));
      }
    }
    return undefined("[" + std::to_string(key.as_int()) + "]");
  }
  if (key.text() == nullptr) return Value();
  return value.dict() != nullptr && !has_method(value, key.text()->bytes())
             ? undefined(key.text()->bytes())
             : get_attribute(heap, value, key.text()->bytes());
}

Value get_slice(Heap& heap, const Value& value, const Value& from, const Value& to, const Value& step) {
  require_defined(value);
  if (value.list() != nullptr && has_positions(*value.list())) {
    const auto& items = value.list()->items;
    const auto slice = slice_of(static_cast<std::int64_t>(items.size()), from, to, step);
    if (!slice) fail("a slice needs integers");
    heap.step(static_cast<std::size_t>(slice->count()));
    heap.require(static_cast<std::size_t>(slice->count()) * sizeof(Value));
    std::vector<Value> part;
    for (std::int64_t i = 0; i < slice->count(); ++i)
      part.push_back(items[static_cast<std::size_t>(slice->from + i * slice->step)]);
    return heap.list(std::move(part), value.list()->form);
  }
  const Text* text = value.text();
  if (text == nullptr) fail("{} has no slices", value.type_name());
  heap.step(text->size() / 16);
  const std::string_view bytes = text->bytes();
  const auto slice = slice_of(length(value), from, to, step);
  if (!slice) fail("a slice needs integers");
  if (slice->step == 1) {
    const std::size_t start = character_offset(bytes, static_cast<std::size_t>(slice->from));
    const std::size_t size = character_offset(bytes.substr(start), static_cast<std::size_t>(slice->count()));
    return heap.string(text->substring(start, size));
  }
  heap.require(bytes.size() * sizeof(std::size_t));
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < bytes.size(); at += character_size(bytes.substr(at))) offsets.push_back(at);
  Text part;
  for (std::int64_t i = 0; i < slice->count(); ++i) {
    const std::size_t at = offsets[static_cast<std::size_t>(slice->from + i * slice->step)];
    part.append(*text, at, character_size(bytes.substr(at)));
  }
  return heap.string(std::move(part));
}

}  // namespace kvasir::jinja
