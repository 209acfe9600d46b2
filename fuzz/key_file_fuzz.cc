// Any text as a keys file: it is refused with one line, or says the same after it was written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tenants/key_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir::tenants;
  const kvasir::Result<KeyFile> file = parse_key_file({reinterpret_cast<const char*>(data), size});
  if (!file.ok()) {
    KVASIR_CHECK(!file.status().message().empty() && file.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const kvasir::Result<KeyFile> again = parse_key_file(key_file_text(*file));
  KVASIR_CHECK(again.ok() && again->keys == file->keys && again->secret == file->secret);
  KVASIR_CHECK(again->tenants.size() == file->tenants.size());
  return 0;
}
