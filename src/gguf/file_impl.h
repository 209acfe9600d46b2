// Internal to gguf: what a File holds, and the parser that fills it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
  std::vector<std::span<const std::byte>> entry_bytes;  // of each metadata entry, as in the file
};

// Fills `order` with the indices of `items` sorted by name. Returns the index of a duplicate name, or items.size().
template <class T, class NameOf>
std::size_t sort_by_name(const std::vector<T>& items, std::vector<std::size_t>* order, NameOf name_of) {
  order->resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) (*order)[i] = i;
  std::sort(order->begin(), order->end(),
            [&](std::size_t a, std::size_t b) { return name_of(items[a]) < name_of(items[b]); });
  const auto twice = std::adjacent_find(order->begin(), order->end(), [&](std::size_t a, std::size_t b) {
    return name_of(items[a]) == name_of(items[b]);
  });
  return twice == order->end() ? items.size() : *twice;
}

// Returns the data's size in bytes. REQUIRES: a tensor of a File.
std::uint64_t data_bytes(const Tensor& tensor);

// May throw std::bad_alloc.
Result<Contents> parse_contents(std::span<const std::byte> bytes, const OpenOptions& options);

struct File::Impl {
  std::vector<MappedFile> mappings;  // of each part; empty when the bytes are the caller's
  std::vector<Part> parts;
  std::span<const std::byte> bytes;      // of a file that is not split
  std::vector<std::byte> joined_header;  // header_bytes() of a split file
  Contents contents;
};

}  // namespace kvasir::gguf
