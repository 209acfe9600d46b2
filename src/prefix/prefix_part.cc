#include "prefix/prefix_part.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'A', 'S', 'I', 'R', 'P', '1'};
constexpr std::size_t kHashBytes = 16;

// The most bytes of a part: a value of this size is no trouble for a server in the network.
constexpr std::size_t kMostPageBytes = std::size_t{8} << 20;
constexpr std::int64_t kMostTokens = 256;

struct Head {
  char magic[8];
  Hash128 lineage, salt, text;
  std::uint64_t tokens;
  std::uint64_t page_bytes;
};
static_assert(sizeof(Head) == 72);

Hash128 hash_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.digest();
}

}  // namespace

std::size_t PartShape::bytes(std::int64_t part) const {
  return sizeof(Head) + static_cast<std::size_t>((part + 1) * tokens()) * sizeof(TokenId) + pages_bytes() + kHashBytes;
}

PartShape part_shape(std::string_view model, const PageFormat& format, int lanes) {
  PartShape shape;
  shape.slots = format.slots;
  shape.lanes = static_cast<std::size_t>(lanes);
  shape.page_bytes = format.bytes();
  shape.blocks = std::max<std::int64_t>(kMostTokens / format.slots, 1);
  while (shape.blocks > 1 && shape.pages_bytes() > kMostPageBytes) shape.blocks /= 2;
  const std::string lineage =
      fmt::format("kvasir prefix 1\n{}\n{} slots={} dim={} lanes={} part={}", model, stored_codec_name(format),
                  format.slots, format.head_dim, lanes, shape.blocks);
  shape.lineage = hash_of(std::as_bytes(std::span(lineage)));
  return shape;
}

BlobKey text_key(const Hash128& lineage, std::string_view salt, std::span<const TokenId> tokens) {
  BlobKey key;
  key.lineage = lineage;
  key.salt = hash_of(std::as_bytes(std::span(salt)));
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(&key.lineage, 1)));
  hasher.add(std::as_bytes(std::span(&key.salt, 1)));
  hasher.add(std::as_bytes(tokens));
  key.text = hasher.digest();
  return key;
}

BlobKey part_key(const PartShape& shape, std::string_view salt, std::span<const TokenId> text, std::int64_t part) {
  BlobKey key = text_key(shape.lineage, salt, text.first(static_cast<std::size_t>((part + 1) * shape.tokens())));
  key.order = static_cast<std::uint32_t>(part);
  return key;
}

std::span<std::byte> begin_part(const PartShape& shape, const BlobKey& key, std::span<const TokenId> text,
                                std::int64_t part, std::span<std::byte> out) {
  KVASIR_CHECK(out.size() == shape.bytes(part));
  const std::span<const TokenId> tokens = text.first(static_cast<std::size_t>((part + 1) * shape.tokens()));
  Head head{{}, key.lineage, key.salt, key.text, tokens.size(), shape.pages_bytes()};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  std::memcpy(out.data(), &head, sizeof head);
  std::memcpy(out.data() + sizeof head, tokens.data(), tokens.size_bytes());
  return out.subspan(sizeof head + tokens.size_bytes(), shape.pages_bytes());
}

void seal_part(std::span<std::byte> bytes) {
  const Hash128 hash = hash_of(bytes.first(bytes.size() - kHashBytes));
  std::memcpy(bytes.data() + bytes.size() - kHashBytes, &hash, kHashBytes);
}

Status check_seal(std::span<const std::byte> bytes) {
  const Hash128 hash = hash_of(bytes.first(bytes.size() - kHashBytes));
  if (std::memcmp(bytes.data() + bytes.size() - kHashBytes, &hash, kHashBytes) != 0)
    return data_loss("a checksum is wrong");
  return {};
}

Result<std::span<const std::byte>> read_part(const PartShape& shape, const BlobKey& key, std::span<const TokenId> text,
                                             std::span<const std::byte> bytes) {
  const std::size_t expected = sizeof(Head) + text.size_bytes() + shape.pages_bytes() + kHashBytes;
  if (bytes.size() != expected) return data_loss("it has {} bytes in place of {}", bytes.size(), expected);
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) return data_loss("it is not a part of a prefix");
  KVASIR_RETURN_IF_ERROR(check_seal(bytes));
  if (head.lineage != key.lineage || head.salt != key.salt || head.text != key.text)
    return data_loss("it is of another model, format or owner");
  if (head.tokens != text.size() || head.page_bytes != shape.pages_bytes() ||
      std::memcmp(bytes.data() + sizeof head, text.data(), text.size_bytes()) != 0)
    return data_loss("it is of another text");
  return bytes.subspan(sizeof head + text.size_bytes(), shape.pages_bytes());
}

}  // namespace kvasir
