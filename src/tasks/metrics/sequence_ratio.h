// Similarity of two texts as Python's difflib computes it.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir::metrics {

// Returns difflib.SequenceMatcher(None, a, b).ratio(), by characters: twice the characters in matching blocks, over the
// characters of both. Blocks are found by the longest match first, and recursively on both its sides. In a `b` of 200
// characters or more, one that makes up over 1 % of it cannot start a match (difflib's autojunk).
// The search is cubic at worst. After `steps` steps what is not yet matched counts as different; the default, one to
// two seconds, suffices for two lines of 5,000 characters whatever they are, and for far longer ones of ordinary text.
// REQUIRES: valid UTF-8.
double sequence_ratio(std::string_view a, std::string_view b, std::int64_t steps = std::int64_t{1} << 29);

}  // namespace kvasir::metrics
