#include "prefix_store/blob_buffers.h"

#include <algorithm>
#include <utility>

namespace kvasir {

std::shared_ptr<BlobBuffer> BlobBuffers::take(std::size_t bytes, std::uint64_t most) {
  // A buffer that two stores write is idle once both have written it.
  const auto is_free = [](const auto& each) { return each.use_count() == 1; };
  const auto found =
      std::ranges::find_if(idle_, [&](const auto& each) { return is_free(each) && each->size() == bytes; });
  if (found != idle_.end()) {
    std::shared_ptr<BlobBuffer> buffer = std::move(*found);
    idle_.erase(found);
    return buffer;
  }
  while (this->bytes() + bytes > most) {
    const auto oldest = std::ranges::find_if(idle_, is_free);
    if (oldest == idle_.end()) break;
    idle_.erase(oldest);
  }
  auto buffer = std::make_shared<BlobBuffer>(bytes);
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(buffer);
  return buffer;
}

void BlobBuffers::keep(std::shared_ptr<BlobBuffer> buffer) {
  if (std::ranges::find(idle_, buffer) == idle_.end()) idle_.push_back(std::move(buffer));
}

std::uint64_t BlobBuffers::bytes() const {
  std::uint64_t bytes = 0;
  for (const std::weak_ptr<BlobBuffer>& each : all_)
    if (const auto buffer = each.lock()) bytes += buffer->size();
  return bytes;
}

}  // namespace kvasir
