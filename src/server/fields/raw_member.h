// Parts of a body as the client wrote them. Parsed objects have lost the order of their keys, which says in which order
// a model writes the properties of a schema, and reads those of a tool. Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvasir::server {

// Returns the text of the value behind these names; "" if there is none. Of a body that is not valid JSON it returns
// any part, or "".
std::string_view raw_member(std::string_view body, std::span<const std::string> path);

}  // namespace kvasir::server
