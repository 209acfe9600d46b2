// The buffers between stores outside memory and pages, which are used again.
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
  // Returns one of so many bytes. Idle ones are given up for a new one where all together would have more than `most`
  // bytes; those in use are their users' to bound.
  std::shared_ptr<BlobBuffer> take(std::size_t bytes, std::uint64_t most);
  // Keeps a buffer for later: it is idle once nobody else holds it.
  void keep(std::shared_ptr<BlobBuffer> buffer);
  // Of all buffers, idle ones included.
  std::uint64_t bytes() const;

 private:
  std::vector<std::shared_ptr<BlobBuffer>> idle_;
  std::vector<std::weak_ptr<BlobBuffer>> all_;
};

}  // namespace kvasir
