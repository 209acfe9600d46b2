// English words for keys, lists and passages. No word is in both lists.
//
// The first 33 adjectives and 32 nouns are those of eval/needle.cc: the bundled model was trained on them.
// Thread-safety: constants.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kvasir::generated {

inline constexpr std::size_t kTrainedAdjectives = 33;
inline constexpr std::size_t kTrainedNouns = 32;

std::span<const std::string_view> adjectives();
std::span<const std::string_view> nouns();

}  // namespace kvasir::generated
