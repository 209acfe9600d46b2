#include "base/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace kvasir {
namespace {

constexpr std::size_t kMostLength = 64;  // longer names are not taken for typing errors

std::string folded(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return out;
}

}  // namespace

int edit_distance(std::string_view first, std::string_view second) {
  const std::string a = folded(first);
  const std::string b = folded(second);
  // Rows of the table of distances between prefixes: for the last two lengths of `a`, and for this one.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> nearest_name(std::string_view typed, std::span<const std::string_view> names) {
  if (typed.size() < 2 || typed.size() > kMostLength) return std::nullopt;
  std::optional<std::string_view> nearest;
  int least = 0;
  for (const std::string_view name : names) {
    if (name.size() < 2) continue;
    const int distance = edit_distance(typed, name);
    const auto most = static_cast<int>(std::max<std::size_t>(std::max(typed.size(), name.size()) / 3, 1));
    if (distance > most || (nearest && distance >= least)) continue;
    nearest = name;
    least = distance;
  }
  if (nearest && least <= 1) return nearest;
  for (const std::string_view name : names) {
    const std::string a = folded(typed);
    const std::string b = folded(name);
    if ((a.size() >= 3 && b.starts_with(a)) || (b.size() >= 4 && a.starts_with(b))) return name;
  }
  return nearest;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string_view> names) {
  const std::optional<std::string_view> name = nearest_name(typed, names);
  return name ? fmt::format("; did you mean '{}'?", *name) : std::string();
}

}  // namespace kvasir
