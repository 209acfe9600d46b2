// A place outside memory that holds blobs by key: a folder, or a server in the network.
//
// It is a cache: a blob that was written may be gone or damaged later. Readers check the content.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kvasir/status.h"

namespace kvasir {

struct BlobKey {
  Hash128 lineage;  // identifies writers whose blobs are interchangeable
  Hash128 salt;     // identifies the readers that share it
  Hash128 text;     // identifies the blob; depends on the other two
  // Among blobs last used in the same second, higher orders are evicted first.
  std::uint32_t order = 0;
};

struct BlobRead {
  BlobKey key;
  std::span<std::byte> into;
  Status status;
};

struct BlobUsage {
  std::uint64_t blobs = 0;
  std::uint64_t bytes = 0;
  std::uint64_t capacity = 0;  // bytes; 0: unknown
};

// Thread-safety: one thread may call sizes(), read() and read_all(), another write() and remove(), any thread all
// others.
class BlobStore {
 public:
  virtual ~BlobStore() = default;

  // Returns the bytes of each blob, 0 if there is none. Errors: the place cannot be reached.
  virtual Result<std::vector<std::uint64_t>> sizes(std::span<const BlobKey> keys) = 0;
  // Reads a blob of exactly into.size() bytes. Errors: kNotFound, kDataLoss, others with the system's reason.
  virtual Status read(const BlobKey& key, std::span<std::byte> into) = 0;
  // Reads several blobs in order; calls done(i) after each, with its status set. A store in the network asks for all at
  // once.
  virtual void read_all(std::span<BlobRead> reads, const std::function<void(std::size_t)>& done) {
    for (std::size_t i = 0; i < reads.size(); ++i) {
      reads[i].status = read(reads[i].key, reads[i].into);
      done(i);
    }
  }
  // Writes or replaces a blob. After an error there is none. Errors: kResourceExhausted, kIo.
  virtual Status write(const BlobKey& key, std::span<const std::byte> from) = 0;
  virtual void remove(const BlobKey& key) = 0;

  // Returns whether sizes() never waits, so that any thread may call it at any time.
  virtual bool answers_at_once() const = 0;
  // Returns false while the place does not answer; calls then fail at once.
  virtual bool usable() const = 0;
  // Marks a blob as used now, without waiting.
  virtual void touch(const BlobKey& key) = 0;
  virtual BlobUsage usage() const = 0;
  virtual std::string_view name() const = 0;  // "disk", "redis"
};

}  // namespace kvasir
