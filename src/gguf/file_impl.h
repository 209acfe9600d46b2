// Internal to gguf: what a File holds, and the parser that fills it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/reader.h"

namespace kvasir::gguf {

struct Contents {
  std::uint32_t version = 0;
  std::uint32_t alignment = 0;
  std::uint64_t tensor_bytes = 0;
  std::vector<Entry> metadata;
  std::vector<Tensor> tensors;
  // Indices into the vectors above, sorted by key and by name. Sorted rather than hashed: a file can be made to
  // collide.
  std::vector<std::size_t> metadata_by_key;
  std::vector<std::size_t> tensors_by_name;
};

// May throw std::bad_alloc.
Result<Contents> parse_contents(std::span<const std::byte> bytes, const OpenOptions& options);

struct File::Impl {
  std::optional<MappedFile> mapping;  // absent when the bytes are the caller's
  std::span<const std::byte> bytes;
  Contents contents;
};

}  // namespace kvasir::gguf
