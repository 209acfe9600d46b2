// Writes GGUF version 3 files. Keeps the whole file in memory.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir::gguf {

class Writer {
 public:
  // REQUIRES: a key is set once, and is not general.alignment (the writer aligns by the format's default).
  void set_uint8(std::string_view key, std::uint8_t value);
  void set_int8(std::string_view key, std::int8_t value);
  void set_uint16(std::string_view key, std::uint16_t value);
  void set_int16(std::string_view key, std::int16_t value);
  void set_uint32(std::string_view key, std::uint32_t value);
  void set_int32(std::string_view key, std::int32_t value);
  void set_uint64(std::string_view key, std::uint64_t value);
  void set_int64(std::string_view key, std::int64_t value);
  void set_float32(std::string_view key, float value);
  void set_float64(std::string_view key, double value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, const std::vector<std::string>& values);
  void set_int32s(std::string_view key, const std::vector<std::int32_t>& values);
  void set_float32s(std::string_view key, const std::vector<float>& values);

  // dims[0] is the row length. REQUIRES: a new name, a type that foreign_dtype knows, and exactly the bytes that
  // type and dims ask for.
  void add_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> dims,
                  std::span<const std::byte> data);

  // Declares a tensor without data. The caller writes the data after the bytes of finish(), or leaves a hole in a
  // sparse file. REQUIRES: as add_tensor; no tensor with data is added after it.
  void declare_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> dims);

  // Returns the whole file, tensors aligned to 32 bytes; if tensors were declared, up to the first one's data.
  std::vector<std::byte> finish() const;
  // Returns the size in bytes of the whole file, the data of declared tensors included.
  std::uint64_t file_bytes() const;
  Status write(const std::string& path) const;

 private:
  struct Pending {
    std::string name;
    std::uint32_t type;
    std::vector<std::uint64_t> dims;
    std::vector<std::byte> data;  // empty: declared only
  };
  std::vector<std::byte> header() const;
  void key(std::string_view key, ValueType type);
  void array(std::string_view key, ValueType type, std::uint64_t count);
  void put(const void* data, std::size_t size);
  void put_string(std::string_view text);

  std::set<std::string, std::less<>> keys_;
  std::vector<std::byte> metadata_;
  std::vector<Pending> tensors_;
};

}  // namespace kvasir::gguf
