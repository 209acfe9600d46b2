// Splits a GGUF file as the usual tools do: metadata in the first part, split.no from 0, tensors in order.
#pragma once

#include <string>
#include <vector>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/part_name.h"
#include "base/status.h"
#include "gguf/reader.h"
#include "support/gguf_writer.h"

namespace kvasir::test {

// REQUIRES: an array of strings, i32 or f32, or a scalar.
inline void copy_entry(const gguf::File& file, const gguf::Entry& entry, gguf::Writer* writer) {
  const auto integer = [&] { return *file.get_uint(entry.key); };
  switch (entry.value.type) {
    case gguf::ValueType::kUint8: return writer->set_uint8(entry.key, static_cast<std::uint8_t>(integer()));
    case gguf::ValueType::kUint16: return writer->set_uint16(entry.key, static_cast<std::uint16_t>(integer()));
    case gguf::ValueType::kUint32: return writer->set_uint32(entry.key, static_cast<std::uint32_t>(integer()));
    case gguf::ValueType::kUint64: return writer->set_uint64(entry.key, integer());
    case gguf::ValueType::kInt32:
      return writer->set_int32(entry.key, static_cast<std::int32_t>(std::get<std::int64_t>(entry.value.data)));
    case gguf::ValueType::kFloat32:
      return writer->set_float32(entry.key, static_cast<float>(*file.get_float(entry.key)));
    case gguf::ValueType::kBool: return writer->set_bool(entry.key, *file.get_bool(entry.key));
    case gguf::ValueType::kString: return writer->set_string(entry.key, *file.get_string(entry.key));
    case gguf::ValueType::kArray: {
      const auto& array = std::get<gguf::Array>(entry.value.data);
      if (array.type == gguf::ValueType::kString)
        return writer->set_strings(entry.key, {array.strings.begin(), array.strings.end()});
      if (array.type == gguf::ValueType::kFloat32) return writer->set_float32s(entry.key, *file.get_floats(entry.key));
      KVASIR_CHECK(array.type == gguf::ValueType::kInt32);
      const std::vector<std::int64_t> values = *file.get_ints(entry.key);
      return writer->set_int32s(entry.key, {values.begin(), values.end()});
    }
    default: KVASIR_CHECK(false);
  }
}

// `empty_first`: the first part has no tensors.
inline std::vector<std::vector<std::byte>> split_model(const gguf::File& whole, int count, bool empty_first = false) {
  const auto& tensors = whole.tensors();
  std::vector<std::vector<std::byte>> parts;
  std::size_t next = 0;
  for (int i = 0; i < count; ++i) {
    gguf::Writer writer;
    if (i == 0)
      for (const gguf::Entry& entry : whole.metadata()) copy_entry(whole, entry, &writer);
    writer.set_uint16("split.no", static_cast<std::uint16_t>(i));
    writer.set_uint16("split.count", static_cast<std::uint16_t>(count));
    writer.set_int32("split.tensors.count", static_cast<std::int32_t>(tensors.size()));
    const int shares = empty_first ? count - 1 : count;
    const int share = empty_first ? i : i + 1;
    for (; next < tensors.size() * static_cast<std::size_t>(share) / static_cast<std::size_t>(shares); ++next)
      writer.add_tensor(tensors[next].name, tensors[next].type, tensors[next].dims, tensors[next].bytes);
    parts.push_back(writer.finish());
  }
  return parts;
}

// Writes the parts as STEM-00001-of-0000N.gguf and so on. Returns their paths.
inline Result<std::vector<std::string>> write_parts(const std::string& stem,
                                                    const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    paths.push_back(part_path(stem, {i + 1, parts.size()}));
    KVASIR_RETURN_IF_ERROR(kvasir::write_file(paths.back(), parts[i]));
  }
  return paths;
}

// Splits the file at `path`. Returns the paths of the parts. REQUIRES: it can be read, and they can be written.
inline std::vector<std::string> split_file(const std::string& path, const std::string& stem, int count,
                                           bool empty_first = false) {
  const auto whole = gguf::File::open(path);
  KVASIR_CHECK(whole.ok());
  const auto paths = write_parts(stem, split_model(*whole, count, empty_first));
  KVASIR_CHECK(paths.ok());
  return *paths;
}

}  // namespace kvasir::test
