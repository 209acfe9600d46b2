// The parser. Time and memory are linear in the size of the bytes, except for two sorts by name and one by offset.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "gguf/cursor.h"
#include "gguf/file_impl.h"
#include "tensor/dtype.h"

namespace kvasir::gguf {
namespace {

constexpr std::uint64_t kLeastEntryBytes = 13;   // length of the key, type, a value of one byte
constexpr std::uint64_t kLeastTensorBytes = 32;  // length of the name, count of dims, one dim, type, offset
constexpr std::uint64_t kLeastStringBytes = 8;
constexpr std::uint64_t kLeastArrayBytes = 12;  // element type, count
constexpr int kDeepestArray = 4;
constexpr std::uint32_t kDefaultAlignment = 32;
constexpr std::uint32_t kLeastAlignment = 8;
constexpr std::uint32_t kMostDims = 4;
// Most elements reserved ahead. A count has been checked against the bytes left, but elements are larger in memory than
// in a file, so larger vectors grow only as elements are read.
constexpr std::uint64_t kMostReserved = 1 << 16;

std::size_t reserved(std::uint64_t count) {
  return static_cast<std::size_t>(std::min(count, kMostReserved));
}

bool add_overflows(std::uint64_t a, std::uint64_t b, std::uint64_t* sum) {
  return __builtin_add_overflow(a, b, sum);
}
bool mul_overflows(std::uint64_t a, std::uint64_t b, std::uint64_t* out) {
  return __builtin_mul_overflow(a, b, out);
}

// Returns 0 for strings and arrays, whose size varies; nullopt for an unknown type number.
std::optional<std::uint64_t> scalar_bytes(std::uint32_t type) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool: return 1;
    case ValueType::kUint16:
    case ValueType::kInt16: return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32: return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64: return 8;
    case ValueType::kString:
    case ValueType::kArray: return 0;
  }
  return std::nullopt;
}

// The parser's position; formatted only when a message needs it.
struct Place {
  enum Kind { kHeader, kKey, kMetadata, kTensorName, kTensor } kind;
  std::uint64_t index = 0;
  std::string_view name = {};

  std::string text() const {
    switch (kind) {
      case kHeader: break;
      case kKey: return fmt::format("the key of metadata entry {}", index);
      case kMetadata: return fmt::format("metadata {}", quoted(name));
      case kTensorName: return fmt::format("the name of tensor {}", index);
      case kTensor: return fmt::format("the description of tensor {}", quoted(name));
    }
    return "its header";
  }
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const OpenOptions& options)
      : bytes_(bytes), options_(options), cursor_(bytes) {}

  Result<Contents> run() {
    KVASIR_RETURN_IF_ERROR(read_header());
    KVASIR_RETURN_IF_ERROR(read_metadata());
    KVASIR_RETURN_IF_ERROR(read_tensors());
    KVASIR_RETURN_IF_ERROR(place_tensors());
    return std::move(contents_);
  }

 private:
  Status truncated(const Place& place) const {
    return data_loss("the file is truncated: it ends inside {} at byte {}; download it again", place.text(),
                     bytes_.size());
  }

  // Fails unless `count` items of at least `least` bytes each can follow.
  Status check_count(std::uint64_t count, std::uint64_t least, const char* what, const Place& place) const {
    if (count <= cursor_.remaining() / least) return {};
    return data_loss(
        "the file is truncated or damaged: {} announces {} {}, but only {} bytes follow; download it again",
        place.text(), count, what, cursor_.remaining());
  }

  template <class T>
  Status read(T* out, const Place& place) {
    return cursor_.read(out) ? Status() : truncated(place);
  }

  Status read_string(std::string_view* out, const Place& place) {
    std::uint64_t size = 0;
    KVASIR_RETURN_IF_ERROR(read(&size, place));
    std::span<const std::byte> raw;
    if (!cursor_.take(size, &raw))
      return data_loss(
          "the file is truncated or damaged: a string of {} has {} bytes, but only {} follow; download it again",
          place.text(), size, cursor_.remaining());
    *out = std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
    return {};
  }

  Status read_header();
  Status read_metadata();
  Status read_value(std::uint32_t type, Value* value, const Place& place);
  template <class T, class Wide>
  Status read_scalar(Value* value, const Place& place) {
    T scalar{};
    KVASIR_RETURN_IF_ERROR(read(&scalar, place));
    value->data = static_cast<Wide>(scalar);
    return {};
  }
  Status read_array(Array* array, int depth, const Place& place);
  Status read_alignment();
  Status read_tensors();
  Status read_tensor(Tensor* tensor, std::uint64_t index);
  Status place_tensors();
  Status place_tensor(Tensor* tensor, std::uint64_t data_start);
  Status check_overlaps() const;

  std::span<const std::byte> bytes_;
  OpenOptions options_;
  Cursor cursor_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t metadata_count_ = 0;
  Contents contents_;
};

Status check_magic(std::span<const std::byte> bytes) {
  if (bytes.empty()) return data_loss("the file is empty; download it again");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view magic = text.substr(0, 4);
  if (magic == "GGUF") return {};
  if (text.starts_with("version https://git-lfs"))
    return data_loss("this is a Git LFS pointer, not the model itself; fetch the model with 'git lfs pull'");
  if (std::string_view("GGUF").starts_with(magic))
    return data_loss("the file is truncated: it has {}; download it again",
                     counted(static_cast<std::int64_t>(bytes.size()), "byte"));
  return data_loss("this is not a GGUF file: it begins with {} instead of 'GGUF'; convert the model to GGUF first",
                   quoted(magic));
}

Status check_version(std::uint32_t version) {
  if (version == 2 || version == 3) return {};
  const std::uint32_t swapped = version << 24 | (version & 0xff00u) << 8 | (version >> 8 & 0xff00u) | version >> 24;
  if (version == 1)
    return unsupported("GGUF version 1 is no longer supported; convert the model again with a current converter");
  if (version != 0 && swapped <= 0xffffu)
    return unsupported("this is a big-endian GGUF file (version {}); convert it to little-endian", swapped);
  return unsupported("GGUF version {} is unknown, versions 2 and 3 can be read; update Kvasir or convert again",
                     version);
}

Status Parser::read_header() {
  const Place place{Place::kHeader};
  KVASIR_RETURN_IF_ERROR(check_magic(bytes_));
  std::uint32_t magic = 0;
  KVASIR_RETURN_IF_ERROR(read(&magic, place));
  KVASIR_RETURN_IF_ERROR(read(&contents_.version, place));
  KVASIR_RETURN_IF_ERROR(check_version(contents_.version));
  KVASIR_RETURN_IF_ERROR(read(&tensor_count_, place));
  KVASIR_RETURN_IF_ERROR(read(&metadata_count_, place));
  KVASIR_RETURN_IF_ERROR(check_count(tensor_count_, kLeastTensorBytes, "tensors", place));
  return check_count(metadata_count_, kLeastEntryBytes, "metadata entries", place);
}

Status Parser::read_metadata() {
  contents_.metadata.reserve(reserved(metadata_count_));
  for (std::uint64_t i = 0; i < metadata_count_; ++i) {
    Entry entry;
    const std::uint64_t begin = cursor_.position();
    KVASIR_RETURN_IF_ERROR(read_string(&entry.key, {Place::kKey, i}));
    const Place place{Place::kMetadata, i, entry.key};
    std::uint32_t type = 0;
    KVASIR_RETURN_IF_ERROR(read(&type, place));
    KVASIR_RETURN_IF_ERROR(read_value(type, &entry.value, place));
    contents_.metadata.push_back(std::move(entry));
    contents_.entry_bytes.push_back(bytes_.subspan(begin, cursor_.position() - begin));
  }
  const auto& all = contents_.metadata;
  const std::size_t twice = sort_by_name(all, &contents_.metadata_by_key, [](const Entry& e) { return e.key; });
  if (twice < all.size())
    return data_loss("metadata {} occurs twice; the file is damaged or badly converted", quoted(all[twice].key));
  return read_alignment();
}

Status Parser::read_value(std::uint32_t type, Value* value, const Place& place) {
  value->type = static_cast<ValueType>(type);
  switch (value->type) {
    case ValueType::kUint8: return read_scalar<std::uint8_t, std::uint64_t>(value, place);
    case ValueType::kInt8: return read_scalar<std::int8_t, std::int64_t>(value, place);
    case ValueType::kUint16: return read_scalar<std::uint16_t, std::uint64_t>(value, place);
    case ValueType::kInt16: return read_scalar<std::int16_t, std::int64_t>(value, place);
    case ValueType::kUint32: return read_scalar<std::uint32_t, std::uint64_t>(value, place);
    case ValueType::kInt32: return read_scalar<std::int32_t, std::int64_t>(value, place);
    case ValueType::kUint64: return read_scalar<std::uint64_t, std::uint64_t>(value, place);
    case ValueType::kInt64: return read_scalar<std::int64_t, std::int64_t>(value, place);
    case ValueType::kFloat32: return read_scalar<float, double>(value, place);
    case ValueType::kFloat64: return read_scalar<double, double>(value, place);
    case ValueType::kBool: {
      KVASIR_RETURN_IF_ERROR((read_scalar<std::uint8_t, std::uint64_t>(value, place)));
      const auto bit = std::get<std::uint64_t>(value->data);
      if (bit > 1) return data_loss("{} is a bool with the value {}; the file is damaged", place.text(), bit);
      return {};
    }
    case ValueType::kString: {
      std::string_view text;
      KVASIR_RETURN_IF_ERROR(read_string(&text, place));
      value->data = text;
      return {};
    }
    case ValueType::kArray: {
      Array array;
      KVASIR_RETURN_IF_ERROR(read_array(&array, 1, place));
      value->data = std::move(array);
      return {};
    }
  }
  return data_loss("{} has the value type {}, which GGUF does not define; the file is damaged", place.text(), type);
}

Status Parser::read_array(Array* array, int depth, const Place& place) {
  if (depth > kDeepestArray)
    return unsupported("{} nests arrays more than {} levels deep", place.text(), kDeepestArray);
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  KVASIR_RETURN_IF_ERROR(read(&type, place));
  KVASIR_RETURN_IF_ERROR(read(&count, place));
  const auto scalar = scalar_bytes(type);
  if (!scalar)
    return data_loss("{} is an array of type {}, which GGUF does not define; the file is damaged", place.text(), type);
  array->type = static_cast<ValueType>(type);
  array->count = static_cast<std::size_t>(count);
  if (array->type == ValueType::kString) {
    KVASIR_RETURN_IF_ERROR(check_count(count, kLeastStringBytes, "strings", place));
    array->strings.reserve(reserved(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      KVASIR_RETURN_IF_ERROR(read_string(&text, place));
      array->strings.push_back(text);
    }
    return {};
  }
  if (array->type == ValueType::kArray) {
    KVASIR_RETURN_IF_ERROR(check_count(count, kLeastArrayBytes, "arrays", place));
    array->arrays.reserve(reserved(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      Array inner;
      KVASIR_RETURN_IF_ERROR(read_array(&inner, depth + 1, place));
      array->arrays.push_back(std::move(inner));
    }
    return {};
  }
  KVASIR_RETURN_IF_ERROR(check_count(count, *scalar, "array elements", place));
  if (!cursor_.take(count * *scalar, &array->raw)) return truncated(place);
  if (array->type == ValueType::kBool) {
    const auto bad = std::find_if(array->raw.begin(), array->raw.end(), [](std::byte b) { return b > std::byte{1}; });
    if (bad != array->raw.end())
      return data_loss("{} holds a bool with the value {}; the file is damaged", place.text(),
                       std::to_integer<unsigned>(*bad));
  }
  return {};
}

Status Parser::read_alignment() {
  contents_.alignment = kDefaultAlignment;
  for (const Entry& entry : contents_.metadata) {
    if (entry.key != "general.alignment") continue;
    if (entry.value.type != ValueType::kUint32)
      return data_loss("general.alignment must be of type u32, but is {}", value_type_name(entry.value.type));
    const auto alignment = static_cast<std::uint32_t>(std::get<std::uint64_t>(entry.value.data));
    if (!std::has_single_bit(alignment) || alignment < kLeastAlignment)
      return data_loss("general.alignment is {}, but must be a power of two and at least {}", alignment,
                       kLeastAlignment);
    contents_.alignment = alignment;
  }
  return {};
}

Status Parser::read_tensors() {
  KVASIR_RETURN_IF_ERROR(check_count(tensor_count_, kLeastTensorBytes, "tensors", {Place::kHeader}));
  contents_.tensors.reserve(reserved(tensor_count_));
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    Tensor tensor;
    KVASIR_RETURN_IF_ERROR(read_tensor(&tensor, i));
    contents_.tensors.push_back(std::move(tensor));
  }
  const auto& all = contents_.tensors;
  const std::size_t twice = sort_by_name(all, &contents_.tensors_by_name, [](const Tensor& t) { return t.name; });
  if (twice < all.size())
    return data_loss("tensor {} occurs twice; the file is damaged or badly converted", quoted(all[twice].name));
  return {};
}

// Leaves the offset as stored: from the start of the data section.
Status Parser::read_tensor(Tensor* tensor, std::uint64_t index) {
  KVASIR_RETURN_IF_ERROR(read_string(&tensor->name, {Place::kTensorName, index}));
  const Place place{Place::kTensor, index, tensor->name};
  std::uint32_t dim_count = 0;
  KVASIR_RETURN_IF_ERROR(read(&dim_count, place));
  if (dim_count < 1 || dim_count > kMostDims)
    return data_loss("tensor {} has {} dimensions, but must have 1 to {}", quoted(tensor->name), dim_count, kMostDims);
  tensor->dims.resize(dim_count);
  tensor->elements = 1;
  for (std::uint32_t d = 0; d < dim_count; ++d) {
    std::uint64_t& dim = tensor->dims[d];
    KVASIR_RETURN_IF_ERROR(read(&dim, place));
    if (dim == 0) return data_loss("dimension {} of tensor {} is 0; the file is damaged", d, quoted(tensor->name));
    if (mul_overflows(tensor->elements, dim, &tensor->elements))
      return data_loss("tensor {} has more than 2^64 elements; the file is damaged", quoted(tensor->name));
  }
  KVASIR_RETURN_IF_ERROR(read(&tensor->type, place));
  return read(&tensor->offset, place);
}

Status Parser::place_tensors() {
  // Cannot overflow: the position lies within memory and the alignment is at most 2^31.
  const std::uint64_t mask = contents_.alignment - 1;
  const std::uint64_t data_start = (cursor_.position() + mask) & ~mask;
  for (Tensor& tensor : contents_.tensors) KVASIR_RETURN_IF_ERROR(place_tensor(&tensor, data_start));
  return check_overlaps();
}

// Sets the data's size in bytes; returns true on overflow. REQUIRES: the row length is a multiple of the block.
bool size_overflows(const Tensor& tensor, const DTypeTraits& traits, std::uint64_t* size) {
  return mul_overflows(tensor.elements / traits.block_elements, traits.block_bytes, size);
}

Status Parser::place_tensor(Tensor* tensor, std::uint64_t data_start) {
  const auto traits = foreign_dtype(tensor->type);
  if (!traits)
    return unsupported("tensor {} has type number {}, which is unknown or withdrawn; convert the model to F16 or Q8_0",
                       quoted(tensor->name), tensor->type);
  if (tensor->dims[0] % traits->block_elements != 0)
    return data_loss("tensor {} has rows of {} elements, but {} stores blocks of {}; the file is damaged",
                     quoted(tensor->name), tensor->dims[0], traits->name, traits->block_elements);
  std::uint64_t size = 0;
  if (size_overflows(*tensor, *traits, &size))
    return data_loss("tensor {} has more than 2^64 bytes; the file is damaged", quoted(tensor->name));
  if (tensor->offset % contents_.alignment != 0)
    return data_loss("tensor {} starts at offset {}, which is no multiple of the alignment {}; the file is damaged",
                     quoted(tensor->name), tensor->offset, contents_.alignment);
  std::uint64_t end = 0;
  if (add_overflows(tensor->offset, data_start, &tensor->offset) || add_overflows(tensor->offset, size, &end))
    return data_loss("tensor {} ends beyond 2^64 bytes; the file is damaged", quoted(tensor->name));
  // No overlaps, so the sum is at most the greatest end; check_overlaps() discards it otherwise.
  contents_.tensor_bytes += size;
  if (options_.header_only) return {};
  if (end > bytes_.size())
    return data_loss("the file is truncated: tensor {} ends at byte {}, but the file has {}; download it again",
                     quoted(tensor->name), end, bytes_.size());
  tensor->bytes = bytes_.subspan(tensor->offset, size);
  return {};
}

Status Parser::check_overlaps() const {
  const auto& tensors = contents_.tensors;
  std::vector<const Tensor*> by_offset;
  by_offset.reserve(tensors.size());
  for (const Tensor& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const Tensor& before = *by_offset[i - 1];
    const Tensor& after = *by_offset[i];
    std::uint64_t size = 0;
    if (size_overflows(before, *foreign_dtype(before.type), &size) || after.offset - before.offset < size)
      return data_loss("tensors {} and {} overlap; the file is damaged", quoted(before.name), quoted(after.name));
  }
  return {};
}

}  // namespace

std::uint64_t data_bytes(const Tensor& tensor) {
  std::uint64_t size = 0;
  const auto traits = foreign_dtype(tensor.type);
  KVASIR_CHECK(traits && !size_overflows(tensor, *traits, &size));
  return size;
}

Result<Contents> parse_contents(std::span<const std::byte> bytes, const OpenOptions& options) {
  return Parser(bytes, options).run();
}

}  // namespace kvasir::gguf
