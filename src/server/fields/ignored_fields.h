// Names, in a header of the answer, the fields of a body that no reader knows.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

inline constexpr std::string_view kIgnoredHeader = "X-Kvasir-Ignored";

// Returns the value of the header: at most 16 names of up to 64 bytes, "..." for the others, and '?' for each byte that
// no name of a field has. "" without names.
std::string ignored_header(const std::vector<std::string>& ignored);

}  // namespace kvasir::server
