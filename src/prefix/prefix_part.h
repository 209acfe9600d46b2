// The format of prefixes that are stored outside memory, in parts, and their keys.
//
// A part holds the exact pages of consecutive blocks of a text, on a grid anchored at the text's first token, and all
// tokens of the text up to its end, so that a reader compares tokens and trusts no hash. Format 1, little-endian:
//
//   magic "KVASIRP1", lineage, salt and text of the key (16 bytes each),
//   tokens u64, bytes of pages u64, tokens [i32], pages [block][lane] in their physical layout,
//   XXH3-128 of all before
//
// Keys are hashes (XXH3-128): of the lineage (model, arithmetic, format of pages), of the salt, and of both and the
// tokens. So no salt is readable in a file or on a server.
//
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backend/page_format.h"
#include "kvasir/status.h"
#include "prefix/prefix_cache.h"
#include "tiers/blob_store.h"

namespace kvasir {

// The parts of all texts of one lineage.
struct PartShape {
  Hash128 lineage;
  std::int64_t slots = 0;   // tokens of a block
  std::int64_t blocks = 0;  // of a part
  std::size_t lanes = 0;    // pages of a block
  std::size_t page_bytes = 0;

  std::int64_t tokens() const { return slots * blocks; }
  std::size_t pages_bytes() const { return static_cast<std::size_t>(blocks) * lanes * page_bytes; }
  // Returns the bytes of the part with this number.
  std::size_t bytes(std::int64_t part) const;
};

// `model`: names everything besides the pages' format that decides the bits of keys and values: fingerprint and
// arithmetic id.
PartShape part_shape(std::string_view model, const PageFormat& format, int lanes);

// Returns the key of what is stored for exactly these tokens.
BlobKey text_key(const Hash128& lineage, std::string_view salt, std::span<const TokenId> tokens);

// Returns the key of a part. REQUIRES: text.size() >= (part + 1) * shape.tokens().
BlobKey part_key(const PartShape& shape, std::string_view salt, std::span<const TokenId> text, std::int64_t part);

// Writes a part, except for its pages and checksum, into `out` of shape.bytes(part) bytes. Returns where the pages
// belong; once they are there, seal_part writes the checksum. REQUIRES: as part_key.
std::span<std::byte> begin_part(const PartShape& shape, const BlobKey& key, std::span<const TokenId> text,
                                std::int64_t part, std::span<std::byte> out);
void seal_part(std::span<std::byte> bytes);
// Checks the checksum at the end. Errors: kDataLoss. REQUIRES: there are 16 bytes or more.
Status check_seal(std::span<const std::byte> bytes);

// Returns the pages of a part. `text`: the text up to the part's end. Errors: kDataLoss with the reason, for bytes that
// are not exactly that part.
Result<std::span<const std::byte>> read_part(const PartShape& shape, const BlobKey& key, std::span<const TokenId> text,
                                             std::span<const std::byte> bytes);

}  // namespace kvasir
