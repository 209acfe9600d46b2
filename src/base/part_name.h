// Names of the parts of a split GGUF file: NAME-00001-of-00005.gguf to NAME-00005-of-00005.gguf, in one folder.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

inline constexpr std::uint64_t kMostParts = 99'999;  // names have five digits

// A part's place: `number` counts from 1 to `count`.
struct PartPlace {
  std::uint64_t number = 0;
  std::uint64_t count = 0;

  bool operator==(const PartPlace&) const = default;
};

struct PartName {
  std::string stem;  // what precedes -00001-of-00005.gguf, folder included
  PartPlace place;
};

// Returns nullopt for a path that is not named as a part. Does not follow symbolic links.
std::optional<PartName> parse_part_name(std::string_view path);

// Returns the path of a part. REQUIRES: 1 <= number <= count <= kMostParts.
std::string part_path(std::string_view stem, const PartPlace& place);

}  // namespace kvasir
