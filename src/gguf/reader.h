// Reads GGUF files, versions 2 and 3 (little-endian). No knowledge of models.
//
// A split file (base/part_name.h) is opened by the name of any of its parts and reads as the whole file that was split:
// the first part's metadata without the keys split.*, and the tensors of all parts in order. Each part is a GGUF file
// with the keys split.no (from 0), split.count and split.tensors.count (over all parts); the first may have no tensors.
// A file with no split.count, or one of 0 or 1, is whole, whatever its name. header_bytes() and Tensor::offset are
// those of the whole file as converters lay it out: version 3, tensors in this order, each padded to the alignment. So
// fingerprints and packed weights are the same for the parts and for the whole file.
//
// Files are untrusted:
//   - every length is checked against the bytes that remain before memory is allocated for it;
//   - every tensor lies inside the data section and overlaps no other;
//   - each defect has its own message: kUnsupported for version 1, unknown versions, big-endian files, unknown tensor
//     types and arrays nested too deep, kDataLoss for all others;
//   - strings may hold any bytes, not only UTF-8; names in messages are escaped.
// Ownership: a File owns its mapping; string views and tensor bytes point into it and must not outlive it.
// Thread-safety: immutable after open; const members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::gguf {

// GGUF's metadata value types, numbered as in the format.
enum class ValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string_view value_type_name(ValueType type);  // "u8", "string", "array", ...

struct Value;

// An array of elements of one type: scalars are in `raw`, strings in `strings`, nested arrays in `arrays`.
struct Array {
  ValueType type = ValueType::kUint8;  // of the elements
  std::size_t count = 0;
  std::span<const std::byte> raw;  // scalars, as in the file (little-endian, unaligned); empty for others
  std::vector<std::string_view> strings;
  std::vector<Array> arrays;  // at most 4 levels deep in all
};

struct Value {
  ValueType type = ValueType::kUint8;
  // Unsigned scalars and bool as uint64, signed as int64, f32 and f64 as double.
  std::variant<std::uint64_t, std::int64_t, double, std::string_view, Array> data;
};

struct Entry {
  std::string_view key;
  Value value;
};

struct Tensor {
  std::string_view name;
  std::uint32_t type = 0;            // GGUF's number; see tensor/dtype.h
  std::vector<std::uint64_t> dims;   // dims[0] is the fastest-varying (the row length); 1 to 4 of them, none 0
  std::uint64_t elements = 0;        // their product
  std::uint64_t offset = 0;          // of the data, from the start of the file
  std::span<const std::byte> bytes;  // the data; empty when opened with header_only
  std::uint32_t part = 0;            // index into File::parts()
};

// The source of a File: a file on disk, or bytes in memory.
struct Part {
  std::string path;              // as it was opened; empty: bytes in memory
  std::uint64_t size_bytes = 0;  // of the whole file
  std::int64_t modified = 0;     // MappedFile::modified; 0 for bytes in memory
};

struct OpenOptions {
  // Accept a file whose tensor data is missing or truncated: enough for `info` and `plan`.
  bool header_only = false;
};

class File {
 public:
  // Opens a file, or all parts of a split file by the name of one. Errors, each naming the file: kNotFound for a
  // missing part, kInvalidArgument for a part with another kind of name, kDataLoss for parts that do not belong
  // together; see also above.
  static Result<File> open(const std::string& path, const OpenOptions& options = {});
  // Parses bytes that the caller owns. They must outlive the File. kUnsupported for a part of a split file.
  static Result<File> parse(std::span<const std::byte> bytes, const OpenOptions& options = {});
  // Parses all parts of a split file, the first one first. As parse().
  static Result<File> parse_parts(std::span<const std::span<const std::byte>> parts, const OpenOptions& options = {});

  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  std::uint32_t version() const;
  std::uint32_t alignment() const;
  const std::vector<Part>& parts() const;                  // one, unless the file is split
  std::uint64_t size_bytes() const;                        // sum over parts
  std::uint64_t tensor_bytes() const;                      // sum over tensors, without padding
  const std::vector<Entry>& metadata() const;              // in file order; keys are unique
  const std::vector<Tensor>& tensors() const;              // in file order; names are unique
  const Value* find(std::string_view key) const;           // nullptr if absent
  const Tensor* find_tensor(std::string_view name) const;  // nullptr if absent

  // Typed look-ups. kNotFound when the key is absent; kDataLoss when it has another type or does not fit. Integers of
  // any width and sign are accepted where their value fits. Messages name the key.
  Result<std::uint64_t> get_uint(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;  // f32, f64 or any integer; finite
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<std::int64_t>> get_ints(std::string_view key) const;  // array of any integers or bools
  Result<std::vector<float>> get_floats(std::string_view key) const;       // array of f32 or f64; finite

  // Returns the bytes before the first tensor's data: metadata (vocabulary included) and the tensor table.
  std::span<const std::byte> header_bytes() const;

  // Hints that `size` bytes of a tensor from `begin` on will not be read again, so they need not stay resident.
  // REQUIRES: a tensor of this file.
  void release(const Tensor& tensor, std::uint64_t begin, std::uint64_t size) const;

 private:
  struct Impl;
  explicit File(std::unique_ptr<Impl> impl);
  // Opens or parses one file, whole or a part.
  static Result<File> open_one(const std::string& path, const OpenOptions& options);
  static Result<File> parse_one(std::span<const std::byte> bytes, const OpenOptions& options);
  // Makes one File of all parts. REQUIRES: at least one.
  static Result<File> join(std::vector<File> parts);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::gguf
