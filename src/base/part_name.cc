#include "base/part_name.h"

#include <fmt/core.h>

#include <charconv>

#include "base/check.h"

namespace kvasir {

std::optional<PartName> parse_part_name(std::string_view path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";  // a 0 stands for any digit
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string_view end = path.substr(path.size() - kPattern.size());
  for (std::size_t i = 0; i < end.size(); ++i)
    if (kPattern[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != kPattern[i]) return std::nullopt;
  PartName name{std::string(path.substr(0, path.size() - end.size())), {}};
  if (name.stem.back() == '/') return std::nullopt;
  std::from_chars(end.data() + 1, end.data() + 6, name.place.number);
  std::from_chars(end.data() + 10, end.data() + 15, name.place.count);
  if (name.place.number < 1 || name.place.number > name.place.count) return std::nullopt;
  return name;
}

std::string part_path(std::string_view stem, const PartPlace& place) {
  KVASIR_CHECK(place.number >= 1 && place.number <= place.count && place.count <= kMostParts);
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, place.number, place.count);
}

}  // namespace kvasir
