// Formats of strings that JSON Schema names.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace kvasir::grammar {

// Returns a regular expression whose matches all have the format; "" for one that any string has; nullopt if unknown.
std::optional<std::string_view> regex_of_format(std::string_view format);

}  // namespace kvasir::grammar
