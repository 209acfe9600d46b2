// Random names that nobody can guess, and that reveal nothing of each other.
// Thread-safety: any thread.
#pragma once

#include <fmt/core.h>

#include <random>
#include <string>

namespace kvasir::server {

// Returns `words` times 8 random hexadecimal digits.
inline std::string random_name(int words) {
  std::random_device random;
  std::string name;
  for (int word = 0; word < words; ++word) name += fmt::format("{:08x}", random());
  return name;
}

}  // namespace kvasir::server
