// Touches everything a parsed file offers and aborts where it breaks its contract. Shared by tests and fuzz targets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gguf/reader.h"

namespace kvasir::gguf::test {

inline std::uint64_t touch(std::string_view text) {
  return text.empty() ? 0 : static_cast<unsigned char>(text.front()) + static_cast<unsigned char>(text.back());
}

inline std::uint64_t touch(std::span<const std::byte> bytes) {
  return bytes.empty() ? 0 : std::to_integer<unsigned>(bytes.front()) + std::to_integer<unsigned>(bytes.back());
}

inline std::uint64_t walk(const Array& array, int depth = 1) {
  KVASIR_CHECK(depth <= 4);
  std::uint64_t sum = array.count + touch(array.raw);
  if (array.type == ValueType::kString) {
    KVASIR_CHECK(array.strings.size() == array.count && array.arrays.empty() && array.raw.empty());
    for (const std::string_view text : array.strings) sum += touch(text);
  } else if (array.type == ValueType::kArray) {
    KVASIR_CHECK(array.arrays.size() == array.count && array.strings.empty() && array.raw.empty());
    for (const Array& inner : array.arrays) sum += walk(inner, depth + 1);
  } else {
    KVASIR_CHECK(array.strings.empty() && array.arrays.empty());
    KVASIR_CHECK(array.count == 0 ? array.raw.empty() : array.raw.size() % array.count == 0);
  }
  return sum;
}

// What every message of the library promises: one printable line.
inline std::uint64_t check_message(const Status& status) {
  KVASIR_CHECK(!status.ok() && !status.message().empty());
  for (const char c : status.message()) KVASIR_CHECK(c >= 0x20 && c < 0x7f);
  return status.message().size();
}

template <class T>
std::uint64_t seen(const Result<T>& result) {
  return result.ok() ? 1 : check_message(result.status());
}

inline std::uint64_t walk_entry(const File& file, const Entry& entry) {
  KVASIR_CHECK(file.find(entry.key) == &entry.value);
  std::uint64_t sum = touch(entry.key) + value_type_name(entry.value.type).size();
  sum += seen(file.get_uint(entry.key)) + seen(file.get_bool(entry.key)) + seen(file.get_ints(entry.key));
  if (const auto text = file.get_string(entry.key); text.ok()) sum += touch(*text);
  if (const auto texts = file.get_strings(entry.key); texts.ok())
    for (const std::string_view text : *texts) sum += touch(text);
  const auto number = file.get_float(entry.key);
  KVASIR_CHECK(!number.ok() || std::isfinite(*number));
  const auto numbers = file.get_floats(entry.key);
  if (numbers.ok())
    for (const float f : *numbers) KVASIR_CHECK(std::isfinite(f));
  if (const auto* array = std::get_if<Array>(&entry.value.data)) sum += walk(*array);
  return sum;
}

// REQUIRES: `file` was parsed from `parts`.
inline std::uint64_t walk(const File& file, std::span<const std::span<const std::byte>> parts, bool header_only) {
  std::uint64_t sum = file.version() + file.alignment() + touch(file.header_bytes());
  std::uint64_t size_bytes = 0;
  for (const auto& part : parts) size_bytes += part.size();
  KVASIR_CHECK(file.size_bytes() == size_bytes && file.parts().size() == parts.size());
  for (const Entry& entry : file.metadata()) sum += walk_entry(file, entry);
  std::uint64_t tensor_bytes = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const Tensor& tensor : file.tensors()) {
    KVASIR_CHECK(file.find_tensor(tensor.name) == &tensor);
    KVASIR_CHECK(!tensor.dims.empty() && tensor.dims.size() <= 4 && tensor.elements > 0);
    KVASIR_CHECK(tensor.offset % file.alignment() == 0);
    KVASIR_CHECK(tensor.bytes.empty() == header_only);
    KVASIR_CHECK(tensor.part < parts.size());
    if (!header_only) {
      const std::span<const std::byte> part = parts[tensor.part];
      const auto start = static_cast<std::uint64_t>(tensor.bytes.data() - part.data());
      KVASIR_CHECK(start <= part.size() && tensor.bytes.size() <= part.size() - start);
      KVASIR_CHECK(parts.size() > 1 || start == tensor.offset);
      KVASIR_CHECK(tensor.offset >= file.header_bytes().size());
      ranges.emplace_back(tensor.offset, tensor.offset + tensor.bytes.size());
      tensor_bytes += tensor.bytes.size();
    }
    sum += touch(tensor.name) + touch(tensor.bytes);
    file.release(tensor, 0, tensor.bytes.size());
  }
  KVASIR_CHECK(header_only || tensor_bytes == file.tensor_bytes());
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) KVASIR_CHECK(ranges[i - 1].second <= ranges[i].first);
  return sum;
}

// REQUIRES: `file` was parsed from `bytes`.
inline std::uint64_t walk(const File& file, std::span<const std::byte> bytes, bool header_only) {
  return walk(file, std::span(&bytes, 1), header_only);
}

// Parses `bytes` and walks what comes of it; true if it was a file.
inline bool parse_and_walk(std::span<const std::byte> bytes, bool header_only) {
  const auto file = File::parse(bytes, {.header_only = header_only});
  if (!file.ok()) {
    check_message(file.status());
    return false;
  }
  walk(*file, bytes, header_only);
  return true;
}

}  // namespace kvasir::gguf::test
