// The page's way of reading arrays of floats, written anew: base64 of three bytes per value, least significant first.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace kvasir::report::test {

inline std::vector<float> decode_floats(std::string_view base64) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<float> out;
  for (std::size_t at = 0; at + 4 <= base64.size(); at += 4) {
    std::uint32_t bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = kDigits.find(base64[at + i]);
      if (digit == std::string_view::npos) throw std::runtime_error("not base64");
      bytes = bytes << 6 | static_cast<std::uint32_t>(digit);
    }
    const std::uint32_t bits = (bytes >> 16 & 0xff) << 8 | (bytes >> 8 & 0xff) << 16 | (bytes & 0xff) << 24;
    out.push_back(std::bit_cast<float>(bits));
  }
  return out;
}

}  // namespace kvasir::report::test
