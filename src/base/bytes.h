// Writing values into a buffer of bytes and reading them back: the state of policies, snapshots and session files. All
// values are little-endian and packed; counts are 64-bit.
//
// A reader's bytes may come from anywhere: no read goes past the end, and no count is believed before the bytes behind
// it were seen to be there. Failure is sticky: after a read that failed, every other fails and left() is 0, so that a
// caller may check once at the end of a series.
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

// Types whose bytes are their value: integers, floats, enums, and structs of integers without padding. Not bool, of
// which most bytes are no value: it has overloads of its own.
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

  // The values alone: what reads them knows how many there are.
  template <PlainValue T>
  void put_values(std::span<const T> values) {
    append(values.data(), values.size_bytes());
  }
  // A count, then the values.
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
  void fail();                                       // what was read is not what it should be

  // Each returns false and leaves its argument as it was if too few bytes are left.
  template <PlainValue T>
  bool get(T& value) {
    return copy(&value, sizeof value);
  }
  // False for bytes other than 0 and 1 too.
  bool get(bool& value);

  template <PlainValue T>
  bool get_values(std::span<T> values) {
    return copy(values.data(), values.size_bytes());
  }

  // A count of elements of `element_bytes` (at least 1) each. False if it is above `most`, or if the bytes left do not
  // hold as many.
  bool get_count(std::uint64_t& count, std::uint64_t most, std::size_t element_bytes);

  // What put_span and put_vector wrote, of at most `most` elements. Allocates what the bytes left can hold at most.
  template <PlainValue T>
  bool get_vector(std::vector<T>& values, std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    std::uint64_t count = 0;
    if (!get_count(count, most, sizeof(T))) return false;
    values.resize(static_cast<std::size_t>(count));
    return get_values(std::span<T>(values));
  }
  bool get_string(std::string& text, std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

  // The next `count` bytes, in place.
  bool get_bytes(std::span<const std::byte>& bytes, std::uint64_t count);

 private:
  bool copy(void* to, std::size_t bytes);

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace kvasir
