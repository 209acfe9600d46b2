// Parts of a split file, made of any bytes: an error, or a file that can be walked wholly. A file opened in full also
// opens with header_only. Input: the length of each part but the last as 32-bit numbers ending in 0, then the parts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "gguf/walk.h"

namespace {

constexpr std::size_t kMostParts = 8;

std::vector<std::span<const std::byte>> parts_of(std::span<const std::byte> input) {
  std::vector<std::uint32_t> lengths;
  while (input.size() >= 4) {
    std::uint32_t length = 0;
    std::memcpy(&length, input.data(), sizeof length);
    input = input.subspan(sizeof length);
    if (length == 0 || lengths.size() + 1 == kMostParts) break;
    lengths.push_back(length);
  }
  std::vector<std::span<const std::byte>> parts;
  for (const std::uint32_t length : lengths) {
    parts.push_back(input.first(std::min<std::size_t>(length, input.size())));
    input = input.subspan(parts.back().size());
  }
  parts.push_back(input);
  return parts;
}

bool parse_and_walk_parts(const std::vector<std::span<const std::byte>>& parts, bool header_only) {
  using namespace kvasir::gguf;
  const auto file = File::parse_parts(parts, {.header_only = header_only});
  if (!file.ok()) {
    test::check_message(file.status());
    return false;
  }
  test::walk(*file, parts, header_only);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(std::as_bytes(std::span(data, size)));
  const bool header = parse_and_walk_parts(parts, true);
  const bool whole = parse_and_walk_parts(parts, false);
  KVASIR_CHECK(header || !whole);
  return 0;
}
