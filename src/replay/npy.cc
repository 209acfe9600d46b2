#include "replay/npy.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMostHeader = 65535;  // version 1's limit; longer headers describe records, not floats

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view text) {
  return std::string(text.substr(0, 60)) + (text.size() > 60 ? "..." : "");
}

// Removes and returns the text before the first `stop` outside brackets and quotes, and removes the stop; takes all of
// `rest` if there is none.
std::string_view take_until(std::string_view& rest, char stop) {
  int depth = 0;
  char quote = 0;
  std::size_t end = 0;
  for (; end < rest.size(); ++end) {
    const char c = rest[end];
    if (quote != 0) {
      if (c == quote) quote = 0;
      continue;
    }
    if (depth == 0 && c == stop) break;
    if (c == '\'' || c == '"') quote = c;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
  }
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(end + (end < rest.size() ? 1 : 0));
  return trimmed(taken);
}

// Returns the text between the given brackets or quotes; nullopt if `text` is not enclosed by them.
std::optional<std::string_view> inside(std::string_view text, char open, char close) {
  if (text.size() < 2 || text.front() != open || text.back() != close) return std::nullopt;
  return text.substr(1, text.size() - 2);
}

std::optional<std::string_view> string_of(std::string_view text) {
  const auto plain = inside(text, '\'', '\'');
  return plain ? plain : inside(text, '"', '"');
}

struct Entries {
  std::optional<std::string_view> descr, fortran_order, shape;

  std::optional<std::string_view>* find(std::string_view key) {
    if (key == "descr") return &descr;
    if (key == "fortran_order") return &fortran_order;
    return key == "shape" ? &shape : nullptr;
  }
};

// Returns the three entries of the dictionary as source text; nullopt if it has other entries.
std::optional<Entries> parse_dictionary(std::string_view text) {
  const auto body = inside(trimmed(text), '{', '}');
  if (!body) return std::nullopt;
  Entries entries;
  for (std::string_view rest = trimmed(*body); !rest.empty(); rest = trimmed(rest)) {
    std::string_view value = take_until(rest, ',');
    const auto key = string_of(take_until(value, ':'));
    auto* entry = key ? entries.find(*key) : nullptr;
    if (entry == nullptr || entry->has_value()) return std::nullopt;
    *entry = trimmed(value);
  }
  if (!entries.descr || !entries.fortran_order || !entries.shape) return std::nullopt;
  return entries;
}

// Returns the numbers of a tuple; nullopt if it is not a tuple or a number does not fit.
std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  const auto body = inside(text, '(', ')');
  if (!body) return std::nullopt;
  std::vector<std::int64_t> shape;
  std::string_view rest = trimmed(*body);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view number = trimmed(rest.substr(0, comma));
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value < 0) return std::nullopt;
    shape.push_back(value);
    rest = comma == std::string_view::npos ? std::string_view() : trimmed(rest.substr(comma + 1));
  }
  return shape;
}

// Returns the dictionary's text. It follows the magic, two version bytes, and a length of two or four bytes.
Result<std::string_view> find_dictionary(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.empty() || text.substr(0, kMagic.size()) != kMagic.substr(0, text.size()))
    return data_loss("'{}' is not a NumPy file (it does not begin with \\x93NUMPY); write it with numpy.save", name);
  const auto cut = [&] { return data_loss("'{}' is truncated: it ends inside its header", name); };
  if (text.size() < kMagic.size() + 2) return cut();
  const int major = static_cast<unsigned char>(text[6]);
  const int minor = static_cast<unsigned char>(text[7]);
  if (major < 1 || major > 3 || minor != 0)
    return unsupported("'{}' is of NumPy's file format version {}.{}; versions 1.0, 2.0 and 3.0 are read", name, major,
                       minor);
  const std::size_t width = major == 1 ? 2 : 4;
  const std::size_t begin = kMagic.size() + 2 + width;
  if (text.size() < begin) return cut();
  std::size_t length = 0;
  for (std::size_t i = 0; i < width; ++i)
    length |= std::size_t{static_cast<unsigned char>(text[kMagic.size() + 2 + i])} << (8 * i);
  if (length > kMostHeader)
    return unsupported("'{}' has a header of {} bytes; an array of float32 needs less than {}", name, length,
                       kMostHeader);
  if (text.size() - begin < length) return cut();
  return text.substr(begin, length);
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::span<const std::byte> file, const std::string& name) {
  KVASIR_ASSIGN_OR_RETURN(const std::string_view text, find_dictionary(file, name));
  const auto entries = parse_dictionary(text);
  if (!entries)
    return data_loss("'{}' is damaged: its header is not a dictionary of descr, fortran_order and shape, but {}", name,
                     shown(trimmed(text)));
  if (string_of(*entries->descr) != "<f4")
    return unsupported("'{}' holds elements of type {}; float32 ('<f4') is needed: save array.astype('<f4')", name,
                       shown(*entries->descr));
  if (*entries->fortran_order != "False")
    return unsupported("'{}' has fortran_order {}; C order is needed: save numpy.ascontiguousarray(array)", name,
                       shown(*entries->fortran_order));
  const auto shape = parse_shape(*entries->shape);
  if (!shape) return data_loss("'{}' is damaged: its shape is {}", name, shown(*entries->shape));
  NpyHeader header;
  header.shape = *shape;
  header.data_offset = static_cast<std::size_t>(text.data() + text.size() - reinterpret_cast<const char*>(file.data()));
  std::int64_t bytes = sizeof(float);
  bool fits = true;
  bool none = false;
  for (const std::int64_t size : header.shape) {
    none = none || size == 0;
    fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!fits && !none)
    return data_loss("'{}' is damaged: its shape {} is more than a file can hold", name, shown(*entries->shape));
  header.data_bytes = none ? 0 : static_cast<std::uint64_t>(bytes);
  return header;
}

std::string npy_shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

std::string npy_header(std::span<const std::int64_t> shape) {
  std::string dictionary =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", npy_shape_text(shape));
  const std::size_t before = kMagic.size() + 4;
  const std::size_t length = (before + dictionary.size() + 1 + 63) / 64 * 64 - before;
  KVASIR_CHECK(length <= kMostHeader);
  dictionary.resize(length - 1, ' ');
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  return header + dictionary + '\n';
}

}  // namespace kvasir
