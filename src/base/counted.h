// Numbers with their nouns, for messages.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir {

// Returns a number with its noun, such as "1 token" or "2 tokens".
inline std::string counted(std::int64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace kvasir
