// Policy specs from anywhere: an error or a policy whose own spec makes an equal one.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "retention/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = kvasir::make_policy(text);
  if (!policy.ok()) {
    KVASIR_CHECK(!policy.status().message().empty());
    return 0;
  }
  const auto again = kvasir::make_policy((*policy)->spec());
  KVASIR_CHECK(again.ok() && (*again)->spec() == (*policy)->spec() && (*again)->bound() == (*policy)->bound());
  for (int i = 0; i < 100; ++i) KVASIR_CHECK((*policy)->advance().end == (*again)->advance().end);
  return 0;
}
