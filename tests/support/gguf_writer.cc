#include "support/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "tensor/dtype.h"

namespace kvasir::gguf {
namespace {

constexpr std::size_t kAlignment = 32;

std::size_t align_up(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

void append(std::vector<std::byte>* out, const void* data, std::size_t size) {
  const std::size_t before = out->size();
  out->resize(before + size);
  if (size > 0) std::memcpy(out->data() + before, data, size);
}

template <class T>
void append(std::vector<std::byte>* out, T value) {
  append(out, &value, sizeof value);
}

void append_string(std::vector<std::byte>* out, std::string_view text) {
  append(out, static_cast<std::uint64_t>(text.size()));
  append(out, text.data(), text.size());
}

std::uint64_t data_bytes(std::uint32_t type, const std::vector<std::uint64_t>& dims) {
  const auto traits = foreign_dtype(type);
  KVASIR_CHECK(traits.has_value());
  KVASIR_CHECK(!dims.empty() && dims.size() <= 4 && dims[0] % traits->block_elements == 0);
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : dims) elements *= dim;
  return elements / traits->block_elements * traits->block_bytes;
}

}  // namespace

void Writer::key(std::string_view key, ValueType type) {
  KVASIR_CHECK(key != "general.alignment" && keys_.emplace(key).second);
  put_string(key);
  const auto number = static_cast<std::uint32_t>(type);
  put(&number, sizeof number);
}

void Writer::put(const void* data, std::size_t size) {
  append(&metadata_, data, size);
}
void Writer::put_string(std::string_view text) {
  append_string(&metadata_, text);
}

void Writer::set_uint8(std::string_view name, std::uint8_t value) {
  key(name, ValueType::kUint8);
  put(&value, sizeof value);
}

void Writer::set_int8(std::string_view name, std::int8_t value) {
  key(name, ValueType::kInt8);
  put(&value, sizeof value);
}

void Writer::set_uint16(std::string_view name, std::uint16_t value) {
  key(name, ValueType::kUint16);
  put(&value, sizeof value);
}

void Writer::set_int16(std::string_view name, std::int16_t value) {
  key(name, ValueType::kInt16);
  put(&value, sizeof value);
}

void Writer::set_uint32(std::string_view name, std::uint32_t value) {
  key(name, ValueType::kUint32);
  put(&value, sizeof value);
}

void Writer::set_int32(std::string_view name, std::int32_t value) {
  key(name, ValueType::kInt32);
  put(&value, sizeof value);
}

void Writer::set_uint64(std::string_view name, std::uint64_t value) {
  key(name, ValueType::kUint64);
  put(&value, sizeof value);
}

void Writer::set_int64(std::string_view name, std::int64_t value) {
  key(name, ValueType::kInt64);
  put(&value, sizeof value);
}

void Writer::set_float32(std::string_view name, float value) {
  key(name, ValueType::kFloat32);
  put(&value, sizeof value);
}

void Writer::set_float64(std::string_view name, double value) {
  key(name, ValueType::kFloat64);
  put(&value, sizeof value);
}

void Writer::set_bool(std::string_view name, bool value) {
  key(name, ValueType::kBool);
  const std::uint8_t byte = value ? 1 : 0;
  put(&byte, sizeof byte);
}

void Writer::set_string(std::string_view name, std::string_view value) {
  key(name, ValueType::kString);
  put_string(value);
}

void Writer::array(std::string_view name, ValueType type, std::uint64_t count) {
  key(name, ValueType::kArray);
  const auto number = static_cast<std::uint32_t>(type);
  put(&number, sizeof number);
  put(&count, sizeof count);
}

void Writer::set_strings(std::string_view name, const std::vector<std::string>& values) {
  array(name, ValueType::kString, values.size());
  for (const std::string& value : values) put_string(value);
}

void Writer::set_int32s(std::string_view name, const std::vector<std::int32_t>& values) {
  array(name, ValueType::kInt32, values.size());
  put(values.data(), values.size() * sizeof(std::int32_t));
}

void Writer::set_float32s(std::string_view name, const std::vector<float>& values) {
  array(name, ValueType::kFloat32, values.size());
  put(values.data(), values.size() * sizeof(float));
}

void Writer::add_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> dims,
                        std::span<const std::byte> data) {
  KVASIR_CHECK(std::none_of(tensors_.begin(), tensors_.end(), [&](const Pending& t) { return t.name == name; }));
  KVASIR_CHECK(data.size() == data_bytes(type, dims));
  KVASIR_CHECK(tensors_.empty() || !tensors_.back().data.empty());
  tensors_.push_back({std::string(name), type, std::move(dims), {data.begin(), data.end()}});
}

void Writer::declare_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> dims) {
  KVASIR_CHECK(std::none_of(tensors_.begin(), tensors_.end(), [&](const Pending& t) { return t.name == name; }));
  tensors_.push_back({std::string(name), type, std::move(dims), {}});
}

std::uint64_t Writer::file_bytes() const {
  std::uint64_t bytes = header().size();
  for (const Pending& tensor : tensors_) bytes += align_up(data_bytes(tensor.type, tensor.dims));
  return bytes;
}

std::vector<std::byte> Writer::header() const {
  std::vector<std::byte> out;
  append(&out, "GGUF", 4);
  append(&out, std::uint32_t{3});
  append(&out, static_cast<std::uint64_t>(tensors_.size()));
  append(&out, static_cast<std::uint64_t>(keys_.size()));
  append(&out, metadata_.data(), metadata_.size());
  std::uint64_t offset = 0;
  for (const Pending& tensor : tensors_) {
    append_string(&out, tensor.name);
    append(&out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) append(&out, dim);
    append(&out, tensor.type);
    append(&out, offset);
    offset += align_up(data_bytes(tensor.type, tensor.dims));
  }
  if (!tensors_.empty()) out.resize(align_up(out.size()));
  return out;
}

std::vector<std::byte> Writer::finish() const {
  std::vector<std::byte> out = header();
  // The last tensor is padded too: some readers expect the data section to be whole multiples of the alignment.
  for (const Pending& tensor : tensors_) {
    if (tensor.data.empty()) break;
    append(&out, tensor.data.data(), tensor.data.size());
    out.resize(align_up(out.size()));
  }
  return out;
}

Status Writer::write(const std::string& path) const {
  return write_file(path, finish());
}

}  // namespace kvasir::gguf
