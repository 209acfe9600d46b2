// Reads and writes moments. All are UTC, in whole seconds since 1970.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::tenants {

// Reads "2027-01-31" (its first second) or "2027-01-31T12:00:00Z". Returns nullopt for any other text, and for a day
// that does not exist.
std::optional<std::int64_t> parse_moment(std::string_view text);

// Reads a number of hours or days such as "12h" or "90d", in seconds. Returns nullopt for any other text, for 0, and
// for more than 36,500 days.
std::optional<std::int64_t> parse_span(std::string_view text);

// Returns whether a text has the form of a moment or of a span, so that only its numbers can be wrong.
bool has_form_of_moment(std::string_view text);
bool has_form_of_span(std::string_view text);

// Returns "2027-01-31T12:00:00Z". REQUIRES: years 0 to 9999.
std::string moment_text(std::int64_t moment);

}  // namespace kvasir::tenants
