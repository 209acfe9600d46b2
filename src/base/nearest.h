// Finds the name that a misspelt one was meant to be.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Returns how many characters must be inserted, removed, replaced or swapped with their neighbour to make one name of
// the other. Case does not count, and '_' equals '-'.
int edit_distance(std::string_view a, std::string_view b);

// Returns the name most likely meant: one at an edit distance of 1; else the first of which `typed` is the beginning
// (from 3 characters on) or that is the beginning of `typed` (from 4 on); else the one of smallest edit distance, the
// first on a tie, if that is at most a third of the longer name's length. Names shorter than 2 characters resemble
// nothing.
std::optional<std::string_view> nearest_name(std::string_view typed, std::span<const std::string_view> names);

// Returns "; did you mean 'NAME'?", or "" where no name is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string_view> names);

}  // namespace kvasir
