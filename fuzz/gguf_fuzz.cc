// Any bytes are an error or a file that can be walked wholly; a file opened in full also opens with header_only.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "gguf/walk.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const bool header = kvasir::gguf::test::parse_and_walk(bytes, true);
  const bool whole = kvasir::gguf::test::parse_and_walk(bytes, false);
  KVASIR_CHECK(header || !whole);
  return 0;
}
