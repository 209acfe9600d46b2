// Finds the name that a misspelt one was meant to be.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Returns the least number of characters to insert, remove, replace or swap with their neighbour to turn one name into
// the other. Ignores case; '_' equals '-'.
int edit_distance(std::string_view a, std::string_view b);

// Returns the name most likely meant: one at an edit distance of 1; else the first that starts with `typed` (of at
// least 3 characters) or starts `typed` (at least 4); else the one of smallest edit distance, the first on a tie, if
// that is at most a third of the longer name's length. Names shorter than 2 characters resemble nothing.
std::optional<std::string_view> nearest_name(std::string_view typed, std::span<const std::string_view> names);

// Returns "; did you mean 'NAME'?", or "" where no name is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string_view> names);

}  // namespace kvasir
