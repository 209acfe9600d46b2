// Reads JSON.
// Thread-safety: pure function.
#pragma once

#include <optional>
#include <string_view>

#include "jinja/value.h"

namespace kvasir::jinja {

// Returns the value that `text` is in JSON, its strings as the caller's; nothing if it is not JSON, or nested deeper
// than 100. Of equal keys in an object the last counts. Integers beyond 64 bits become floats.
std::optional<Value> parse_json(std::string_view text);

}  // namespace kvasir::jinja
