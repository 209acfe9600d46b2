// Any bytes as a head profile: they are refused with one line, or say the same after they were written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "retention/head_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir;
  std::string text(reinterpret_cast<const char*>(data), size);
  // Fuzzers do not guess checksums: a last line "checksum ?" stands for the right one.
  if (constexpr std::string_view kAny = "checksum ?\n"; text.ends_with(kAny)) {
    text.resize(text.size() - kAny.size());
    Hasher hasher;
    hasher.add(std::as_bytes(std::span(text)));
    text += "checksum " + hasher.digest().hex() + "\n";
  }
  const Result<HeadProfile> profile = parse_head_profile(text, "x");
  if (!profile.ok()) {
    KVASIR_CHECK(!profile.status().message().empty() && profile.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const Result<HeadProfile> again = parse_head_profile(format_head_profile(*profile), "x");
  KVASIR_CHECK(again.ok() && *again == *profile);
  const auto agreement = compare_profiles(*profile, *again);
  KVASIR_CHECK(agreement.ok() && agreement->mean.same_cluster > 0.999 && agreement->mean.same_representative > 0.999);
  return 0;
}
