// The format of snapshots of sequences that are stored outside memory.
//
// It includes all tokens that the sequence has seen, so that a reader compares tokens and trusts no hash. Format 1,
// little-endian:
//
//   magic "KVASIRN1", lineage, salt and text of the key (16 bytes each),
//   tokens u64, bytes of state u64, bytes of pages and layers' states u64,
//   tokens [i32], state (sequence/sequence_state.h), pages in their physical layout and in the order of pages_in_order,
//   the states of layers that hold one, XXH3-128 of all before
//
// Thread-safety: plain values; read_image may be called by any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "prefix/prefix_part.h"
#include "sequence/sequence.h"

namespace kvasir {

// Returns the hash of everything that decides the bits of a snapshot: model, arithmetic, format of pages, and
// `lineage`, which is the policy, and its grid of chunks where that matters.
Hash128 image_lineage(const LoadedModel& model, const KvCacheShape& shape, std::string_view lineage);

// Writes the image of one sequence. Saves the state at construction, and reads the pages in write(). REQUIRES: the
// sequence is whole, is between two chunks, and outlives write().
class ImageWriter {
 public:
  explicit ImageWriter(const Sequence& sequence);

  // Returns the bytes of the image. `text`: the tokens that the sequence has seen.
  std::size_t bytes(std::span<const TokenId> text) const;
  // REQUIRES: out has bytes(text).
  void write(const BlobKey& key, std::span<const TokenId> text, std::span<std::byte> out) const;

 private:
  const Sequence& sequence_;
  std::vector<std::byte> state_;
  std::vector<PageId> pages_;
  std::uint64_t page_bytes_ = 0;  // of all pages and of the layers' states
};

struct ImageParts {
  std::span<const std::byte> state;
  std::span<const std::byte> pages;  // and behind them the layers' states
};

// Returns the parts of an image of exactly this text. Errors: kDataLoss with the reason, for any other bytes.
Result<ImageParts> read_image(const BlobKey& key, std::span<const TokenId> text, std::span<const std::byte> bytes);

// Makes the sequence. `policy`: the policy of the image's lineage, in its initial state. Errors: kDataLoss if state and
// pages contradict each other, kResourceExhausted.
Result<std::unique_ptr<Sequence>> restore_image(const ImageParts& parts, std::int64_t tokens,
                                                const std::shared_ptr<LoadedModel>& model,
                                                const std::shared_ptr<KvCache>& cache,
                                                std::unique_ptr<RetentionPolicy> policy, const KvCodec& codec,
                                                std::vector<AppliedAdapter> adapters = {});

}  // namespace kvasir
