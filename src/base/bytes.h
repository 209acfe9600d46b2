// Writes values into a byte buffer and reads them back: the state of policies, snapshots and session files. Values are
// little-endian and packed; counts are 64-bit.
//
// The reader trusts none of its input: no read goes past the end, and a count is accepted only if enough bytes follow
// it. Failure is sticky: after a failed read every other read fails and left() is 0, so a caller may check once at the
// end of a series.
//
// Thread-safety: none; one object, one thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvasir {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

// Types that may be copied byte by byte: integers, floats, enums, and structs of integers without padding. bool is
// excluded, because only two of its 256 byte values are valid; it has its own overloads.
template <class T>
concept PlainValue = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_same_v<T, bool> &&
                     (std::is_floating_point_v<T> || std::has_unique_object_representations_v<T>);

class ByteWriter {
 public:
  // Appends to *out, which outlives the writer.
  explicit ByteWriter(std::vector<std::byte>* out) : out_(*out) {}

  template <PlainValue T>
  void put(const T& value) {
    append(&value, sizeof value);
  }
  void put(bool value) { put(static_cast<std::uint8_t>(value)); }

  // Writes the values without a count: the reader must know how many there are.
  template <PlainValue T>
  void put_values(std::span<const T> values) {
    append(values.data(), values.size_bytes());
  }
  // Writes a count, then the values.
  template <PlainValue T>
  void put_span(std::span<const T> values) {
    put(static_cast<std::uint64_t>(values.size()));
    put_values(values);
  }
  template <PlainValue T>
  void put_vector(const std::vector<T>& values) {
    put_span(std::span<const T>(values));
  }
  void put_string(std::string_view text) { put_span(std::span<const char>(text.data(), text.size())); }

 private:
  void append(const void* data, std::size_t bytes);

  std::vector<std::byte>& out_;
};

class ByteReader {
 public:
  // The bytes outlive the reader.
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  std::size_t left() const { return left_.size(); }  // bytes not yet read; 0 after a failure
  void fail();                                       // marks the input as invalid: the caller rejected a value

  // Each returns false and leaves its argument unchanged if too few bytes are left.
  template <PlainValue T>
  bool get(T& value) {
    return copy(&value, sizeof value);
  }
  // Also returns false for bytes other than 0 and 1.
  bool get(bool& value);

  template <PlainValue T>
  bool get_values(std::span<T> values) {
    return copy(values.data(), values.size_bytes());
  }

  // Reads a count of elements of `element_bytes` (at least 1) each. Returns false if it is above `most`, or if the
  // bytes left cannot hold that many elements.
  bool get_count(std::uint64_t& count, std::uint64_t most, std::size_t element_bytes);

  // Reads what put_span or put_vector wrote, at most `most` elements. Never allocates more than the bytes left can
  // fill.
  template <PlainValue T>
  bool get_vector(std::vector<T>& values, std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    std::uint64_t count = 0;
    if (!get_count(count, most, sizeof(T))) return false;
    values.resize(static_cast<std::size_t>(count));
    return get_values(std::span<T>(values));
  }
  bool get_string(std::string& text, std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

  // Returns a view of the next `count` bytes.
  bool get_bytes(std::span<const std::byte>& bytes, std::uint64_t count);

 private:
  bool copy(void* to, std::size_t bytes);

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace kvasir
