// Reusable buffers between stores outside memory and pages.
// Thread-safety: one caller at a time; others may hold buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/blob_queue.h"

namespace kvasir {

class BlobBuffers {
 public:
  // Returns a buffer of `bytes` bytes. Frees idle ones if all together would have more than `most` bytes; callers bound
  // those in use.
  std::shared_ptr<BlobBuffer> take(std::size_t bytes, std::uint64_t most);
  // Keeps a buffer for later: it is idle once nobody else holds it.
  void keep(std::shared_ptr<BlobBuffer> buffer);
  // Returns the bytes of all buffers, idle ones included.
  std::uint64_t bytes() const;

 private:
  std::vector<std::shared_ptr<BlobBuffer>> idle_;
  std::vector<std::weak_ptr<BlobBuffer>> all_;
};

}  // namespace kvasir
