#include "base/bytes.h"

namespace kvasir {

void ByteWriter::append(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* first = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), first, first + bytes);
}

void ByteReader::fail() {
  ok_ = false;
  left_ = {};
}

bool ByteReader::copy(void* to, std::size_t bytes) {
  std::span<const std::byte> from;
  if (!get_bytes(from, bytes)) return false;
  if (bytes > 0) std::memcpy(to, from.data(), bytes);
  return true;
}

bool ByteReader::get_bytes(std::span<const std::byte>& bytes, std::uint64_t count) {
  if (!ok_ || count > left_.size()) {
    fail();
    return false;
  }
  bytes = left_.first(static_cast<std::size_t>(count));
  left_ = left_.subspan(static_cast<std::size_t>(count));
  return true;
}

bool ByteReader::get(bool& value) {
  std::uint8_t byte = 0;
  if (!get(byte)) return false;
  if (byte > 1) {
    fail();
    return false;
  }
  value = byte == 1;
  return true;
}

bool ByteReader::get_count(std::uint64_t& count, std::uint64_t most, std::size_t element_bytes) {
  std::uint64_t found = 0;
  if (!get(found)) return false;
  if (found > most || found > left_.size() / element_bytes) {
    fail();
    return false;
  }
  count = found;
  return true;
}

bool ByteReader::get_string(std::string& text, std::uint64_t most) {
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;
  if (!get_count(count, most, 1) || !get_bytes(bytes, count)) return false;
  text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace kvasir
