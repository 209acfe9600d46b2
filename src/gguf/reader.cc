#include "gguf/reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "base/status.h"
#include "gguf/cursor.h"
#include "gguf/file_impl.h"

namespace kvasir::gguf {
namespace {

Result<Contents> parse_or_exhausted(std::span<const std::byte> bytes, const OpenOptions& options) {
  try {
    return parse_contents(bytes, options);
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory for the metadata of a GGUF file of {} bytes", bytes.size());
  }
}

// Returns the index in `items` of the item named `name` (by `name_of`), or items.size().
template <class T, class NameOf>
std::size_t find_sorted(const std::vector<T>& items, const std::vector<std::size_t>& order, std::string_view name,
                        NameOf name_of) {
  const auto it = std::lower_bound(order.begin(), order.end(), name,
                                   [&](std::size_t i, std::string_view wanted) { return name_of(items[i]) < wanted; });
  return it != order.end() && name_of(items[*it]) == name ? *it : items.size();
}

Status missing(std::string_view key) {
  return make_status(StatusCode::kNotFound, "metadata {} is missing from the file", quoted(key));
}

Status wrong_type(std::string_view key, const Value& value, std::string_view wanted) {
  if (const auto* array = std::get_if<Array>(&value.data))
    return data_loss("metadata {} is an array of {}, not {}", quoted(key), value_type_name(array->type), wanted);
  return data_loss("metadata {} is of type {}, not {}", quoted(key), value_type_name(value.type), wanted);
}

// Returns the array in `value` if its element type is one of `types`.
template <class... Types>
const Array* array_of(const Value& value, Types... types) {
  const auto* array = std::get_if<Array>(&value.data);
  return array != nullptr && ((array->type == types) || ...) ? array : nullptr;
}

// Returns nullopt for a u64 beyond int64. REQUIRES: `type` is an integer or bool.
std::optional<std::int64_t> load_int(ValueType type, const std::byte* p) {
  switch (type) {
    case ValueType::kInt8: return load<std::int8_t>(p);
    case ValueType::kUint16: return load<std::uint16_t>(p);
    case ValueType::kInt16: return load<std::int16_t>(p);
    case ValueType::kUint32: return load<std::uint32_t>(p);
    case ValueType::kInt32: return load<std::int32_t>(p);
    case ValueType::kInt64: return load<std::int64_t>(p);
    case ValueType::kUint64: {
      const auto value = load<std::uint64_t>(p);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return load<std::uint8_t>(p);
  }
}

}  // namespace

std::string_view value_type_name(ValueType type) {
  switch (type) {
    case ValueType::kUint8: return "u8";
    case ValueType::kInt8: return "i8";
    case ValueType::kUint16: return "u16";
    case ValueType::kInt16: return "i16";
    case ValueType::kUint32: return "u32";
    case ValueType::kInt32: return "i32";
    case ValueType::kFloat32: return "f32";
    case ValueType::kBool: return "bool";
    case ValueType::kString: return "string";
    case ValueType::kArray: return "array";
    case ValueType::kUint64: return "u64";
    case ValueType::kInt64: return "i64";
    case ValueType::kFloat64: return "f64";
  }
  return "unknown";
}

Result<File> File::open_one(const std::string& path, const OpenOptions& options) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return invalid_argument("'{}' is a directory; give the .gguf file in it", path);
  KVASIR_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::open(path));
  auto contents = parse_or_exhausted(mapping.bytes(), options);
  if (!contents.ok()) return make_status(contents.status().code(), "'{}': {}", path, contents.status().message());
  auto impl = std::make_unique<Impl>();
  impl->bytes = mapping.bytes();
  impl->parts.push_back({path, mapping.bytes().size(), mapping.modified()});
  impl->mappings.push_back(std::move(mapping));
  impl->contents = std::move(*contents);
  return File(std::move(impl));
}

Result<File> File::parse_one(std::span<const std::byte> bytes, const OpenOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(Contents contents, parse_or_exhausted(bytes, options));
  auto impl = std::make_unique<Impl>();
  impl->bytes = bytes;
  impl->parts.push_back({"", bytes.size(), 0});
  impl->contents = std::move(contents);
  return File(std::move(impl));
}

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

std::uint32_t File::version() const {
  return impl_->contents.version;
}
std::uint32_t File::alignment() const {
  return impl_->contents.alignment;
}
const std::vector<Part>& File::parts() const {
  return impl_->parts;
}
std::uint64_t File::size_bytes() const {
  std::uint64_t sum = 0;
  for (const Part& part : impl_->parts) sum += part.size_bytes;
  return sum;
}
std::uint64_t File::tensor_bytes() const {
  return impl_->contents.tensor_bytes;
}
const std::vector<Entry>& File::metadata() const {
  return impl_->contents.metadata;
}
const std::vector<Tensor>& File::tensors() const {
  return impl_->contents.tensors;
}

const Value* File::find(std::string_view key) const {
  const Contents& c = impl_->contents;
  const std::size_t i = find_sorted(c.metadata, c.metadata_by_key, key, [](const Entry& e) { return e.key; });
  return i < c.metadata.size() ? &c.metadata[i].value : nullptr;
}

const Tensor* File::find_tensor(std::string_view name) const {
  const Contents& c = impl_->contents;
  const std::size_t i = find_sorted(c.tensors, c.tensors_by_name, name, [](const Tensor& t) { return t.name; });
  return i < c.tensors.size() ? &c.tensors[i] : nullptr;
}

std::span<const std::byte> File::header_bytes() const {
  if (!impl_->joined_header.empty()) return impl_->joined_header;
  std::uint64_t end = impl_->bytes.size();
  for (const Tensor& tensor : tensors()) end = std::min(end, tensor.offset);
  return impl_->bytes.first(static_cast<std::size_t>(end));
}

void File::release(const Tensor& tensor, std::uint64_t begin, std::uint64_t size) const {
  const std::uint64_t bytes = tensor.bytes.size();
  if (impl_->mappings.empty() || begin >= bytes) return;
  const MappedFile& mapping = impl_->mappings[tensor.part];
  const auto offset = static_cast<std::uint64_t>(tensor.bytes.data() - mapping.bytes().data());
  mapping.release(offset + begin, std::min(size, bytes - begin));
}

Result<std::uint64_t> File::get_uint(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (value->type != ValueType::kBool) {
    if (const auto* u = std::get_if<std::uint64_t>(&value->data)) return *u;
    if (const auto* i = std::get_if<std::int64_t>(&value->data)) {
      if (*i < 0) return data_loss("metadata {} is {}, but must not be negative", quoted(key), *i);
      return static_cast<std::uint64_t>(*i);
    }
  }
  return wrong_type(key, *value, "an integer");
}

Result<double> File::get_float(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (value->type != ValueType::kBool) {
    if (const auto* u = std::get_if<std::uint64_t>(&value->data)) return static_cast<double>(*u);
    if (const auto* i = std::get_if<std::int64_t>(&value->data)) return static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&value->data)) {
      if (!std::isfinite(*d)) return data_loss("metadata {} is {}, not a finite number", quoted(key), *d);
      return *d;
    }
  }
  return wrong_type(key, *value, "a number");
}

Result<bool> File::get_bool(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  if (value->type != ValueType::kBool) return wrong_type(key, *value, "a bool");
  return std::get<std::uint64_t>(value->data) != 0;
}

Result<std::string_view> File::get_string(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  const auto* text = std::get_if<std::string_view>(&value->data);
  if (text == nullptr) return wrong_type(key, *value, "a string");
  return *text;
}

Result<std::vector<std::string_view>> File::get_strings(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  const Array* array = array_of(*value, ValueType::kString);
  if (array == nullptr) return wrong_type(key, *value, "an array of strings");
  return array->strings;
}

Result<std::vector<std::int64_t>> File::get_ints(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  const Array* array =
      array_of(*value, ValueType::kUint8, ValueType::kInt8, ValueType::kUint16, ValueType::kInt16, ValueType::kUint32,
               ValueType::kInt32, ValueType::kUint64, ValueType::kInt64, ValueType::kBool);
  if (array == nullptr) return wrong_type(key, *value, "an array of integers");
  std::vector<std::int64_t> out;
  if (array->count == 0) return out;
  out.reserve(array->count);
  const std::size_t size = array->raw.size() / array->count;
  for (std::size_t i = 0; i < array->count; ++i) {
    const auto element = load_int(array->type, array->raw.data() + i * size);
    if (!element) return data_loss("element {} of metadata {} is too large for 63 bits", i, quoted(key));
    out.push_back(*element);
  }
  return out;
}

Result<std::vector<float>> File::get_floats(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return missing(key);
  const Array* array = array_of(*value, ValueType::kFloat32, ValueType::kFloat64);
  if (array == nullptr) return wrong_type(key, *value, "an array of floats");
  std::vector<float> out;
  out.reserve(array->count);
  for (std::size_t i = 0; i < array->count; ++i) {
    const double element = array->type == ValueType::kFloat32 ? load<float>(array->raw.data() + i * sizeof(float))
                                                              : load<double>(array->raw.data() + i * sizeof(double));
    // Also false for NaN.
    if (!(std::fabs(element) <= std::numeric_limits<float>::max()))
      return data_loss("element {} of metadata {} is {}, not a finite float", i, quoted(key), element);
    out.push_back(static_cast<float>(element));
  }
  return out;
}

}  // namespace kvasir::gguf
