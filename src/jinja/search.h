// Search for a part of a text in linear time, whatever the two are.
// Errors: Failure where the steps are used up. Thread-safety: as the heap.
#pragma once

#include <string_view>

#include "jinja/heap.h"

namespace kvasir::jinja {

// Returns the offset of the first `part` at or behind `from`, or npos. Counts the bytes it has looked at.
std::size_t find_part(Heap& heap, std::string_view text, std::string_view part, std::size_t from = 0);

}  // namespace kvasir::jinja
