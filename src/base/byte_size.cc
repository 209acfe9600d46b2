#include "base/byte_size.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace kvasir {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 63;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view take_digits(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  const std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  return digits;
}

// Returns how many bytes a unit stands for; "" is one byte.
std::optional<std::uint64_t> unit_bytes(std::string_view text) {
  std::string unit(text);
  std::ranges::transform(unit, unit.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = std::string_view("kmgtpe").find(unit.front());
  const std::string_view rest = std::string_view(unit).substr(1);
  const bool binary = rest == "i" || rest == "ib";
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || binary)) return std::nullopt;
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= binary ? 1024 : 1000;
  return bytes;
}

// A size split as written.
struct Parts {
  std::string_view whole, fraction;  // digits
  std::uint64_t unit = 1;            // bytes
};

std::optional<Parts> parts_of(std::string_view text) {
  Parts parts;
  parts.whole = take_digits(text);
  const bool has_point = text.starts_with('.');
  if (has_point) {
    text.remove_prefix(1);
    parts.fraction = take_digits(text);
    if (parts.fraction.empty()) return std::nullopt;
  }
  if (parts.whole.empty() && parts.fraction.empty()) return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::optional<std::uint64_t> unit = unit_bytes(text);
  if (!unit || (has_point && *unit == 1)) return std::nullopt;
  parts.unit = *unit;
  return parts;
}

}  // namespace

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  const std::optional<Parts> parts = parts_of(text);
  if (!parts) return std::nullopt;
  std::uint64_t number = 0;
  for (const char digit : parts->whole) {
    const auto value = static_cast<std::uint64_t>(digit - '0');
    if (number > (kMost - value) / 10) return std::nullopt;
    number = number * 10 + value;
  }
  if (number > kMost / parts->unit) return std::nullopt;
  // Goes from the last digit, since rounding down after each step rounds the whole down. 10 * 1024^6 is less than 2^64.
  std::uint64_t part = 0;
  for (auto digit = parts->fraction.rbegin(); digit != parts->fraction.rend(); ++digit)
    part = (static_cast<std::uint64_t>(*digit - '0') * parts->unit + part) / 10;
  const std::uint64_t bytes = number * parts->unit + part;  // at most 2^63 + 2^60
  return bytes > kMost ? std::nullopt : std::optional(bytes);
}

bool is_too_large_size(std::string_view text) {
  return parts_of(text) && !parse_byte_size(text);
}

std::string byte_size_text(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + std::string(kUnits[unit]);
}

}  // namespace kvasir
