// How the parts of a split GGUF file are named: NAME-00001-of-00005.gguf to NAME-00005-of-00005.gguf, in one folder.
//
// Each part is a GGUF file of its own. Its keys say which one: split.no (from 0, where names count from 1),
// split.count, and split.tensors.count (over all parts). Only the first part has the other metadata; it may have no
// tensors. A file with no split.count, or one of 0 or 1, is whole, whatever its name. File::open reads split files.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::gguf {

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

// nullopt: not the name of a part. `path` is taken as it is written: symbolic links are not followed.
std::optional<PartName> parse_part_name(std::string_view path);

// Returns the path of a part. REQUIRES: 1 <= number <= count <= kMostParts.
std::string part_path(std::string_view stem, const PartPlace& place);

}  // namespace kvasir::gguf
