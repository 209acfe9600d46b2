// Internal to gguf: bounds-checked reading of untrusted bytes, and quoting of untrusted names in messages.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace kvasir::gguf {

static_assert(std::endian::native == std::endian::little, "scalars are copied from little-endian files unchanged");

// Reads a little-endian scalar at `p`, which need not be aligned.
template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Steps through bytes; a read that does not fit changes nothing and returns false.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return bytes_.size() - position_; }

  bool take(std::uint64_t size, std::span<const std::byte>* out) {
    if (size > remaining()) return false;
    *out = bytes_.subspan(position_, size);
    position_ += size;
    return true;
  }

  template <class T>
  bool read(T* out) {
    std::span<const std::byte> raw;
    if (!take(sizeof(T), &raw)) return false;
    *out = load<T>(raw.data());
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

// Quotes a key or name for one line of a terminal: printable ASCII unchanged, other bytes as \xNN, cut at 64 bytes.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= 0x20 && c < 0x7f && c != '\\')
      out += c;
    else
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace kvasir::gguf
