// GGUF files written byte by byte from the published format, without the library's Writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvasir::gguf::test {

class Bytes {
 public:
  Bytes() = default;
  // The header of a file.
  Bytes(std::uint32_t version, std::uint64_t tensors, std::uint64_t metadata) {
    text("GGUF").u32(version).u64(tensors).u64(metadata);
  }

  Bytes& text(std::string_view raw) {
    for (const char c : raw) data_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  Bytes& u8(std::uint8_t value) { return integer(value, 1); }
  Bytes& u16(std::uint16_t value) { return integer(value, 2); }
  Bytes& u32(std::uint32_t value) { return integer(value, 4); }
  Bytes& u64(std::uint64_t value) { return integer(value, 8); }
  Bytes& string(std::string_view value) { return u64(value.size()).text(value); }
  Bytes& key(std::string_view name, std::uint32_t type) { return string(name).u32(type); }
  Bytes& array(std::uint32_t type, std::uint64_t count) { return u32(type).u64(count); }
  Bytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                std::uint64_t offset) {
    string(name).u32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) u64(dim);
    return u32(type).u64(offset);
  }
  Bytes& pad(std::size_t alignment) {
    while (data_.size() % alignment != 0) data_.push_back(std::byte{0});
    return *this;
  }
  Bytes& fill(std::size_t count, std::uint8_t value) {
    data_.insert(data_.end(), count, std::byte{value});
    return *this;
  }

  std::size_t size() const { return data_.size(); }
  // A copy without spare capacity, so that the address sanitizer sees a read past the end.
  std::vector<std::byte> exact() const { return {data_.begin(), data_.end()}; }

 private:
  Bytes& integer(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) data_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
    return *this;
  }
  std::vector<std::byte> data_;
};

}  // namespace kvasir::gguf::test
