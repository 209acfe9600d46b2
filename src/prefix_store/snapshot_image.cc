#include "prefix_store/snapshot_image.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/status.h"
#include "sequence/sequence_state.h"

namespace kvasir {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'A', 'S', 'I', 'R', 'N', '1'};

struct Head {
  char magic[8];
  Hash128 lineage, salt, text;
  std::uint64_t tokens;
  std::uint64_t state_bytes;
  std::uint64_t page_bytes;
};
static_assert(sizeof(Head) == 80);

std::uint64_t bytes_of(const Head& head) {
  return sizeof head + head.tokens * sizeof(TokenId) + head.state_bytes + head.page_bytes + sizeof(Hash128);
}

}  // namespace

Hash128 image_lineage(const LoadedModel& model, const KvCacheShape& shape, std::string_view lineage) {
  const std::string name =
      fmt::format("kvasir snapshot 1\n{} {}\n{} slots={} dim={} lanes={}\n{}", model.fingerprint.hex(),
                  model.arithmetic_id(shape.page), stored_codec_name(shape.codec()), shape.page.slots,
                  shape.page.head_dim, shape.all_lanes(), lineage);
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(name)));
  return hasher.digest();
}

ImageWriter::ImageWriter(const Sequence& sequence) : sequence_(sequence), pages_(pages_in_order(sequence)) {
  ByteWriter out(&state_);
  write_sequence(sequence, out);
  page_bytes_ = sequence.tables().states().memory().size();
  for (const PageId page : pages_) page_bytes_ += sequence.cache()->pool().format(page_class(page)).bytes();
}

std::size_t ImageWriter::bytes(std::span<const TokenId> text) const {
  return sizeof(Head) + text.size_bytes() + state_.size() + static_cast<std::size_t>(page_bytes_) + sizeof(Hash128);
}

void ImageWriter::write(const BlobKey& key, std::span<const TokenId> text, std::span<std::byte> out) const {
  KVASIR_CHECK(out.size() == bytes(text));
  Head head{{}, key.lineage, key.salt, key.text, text.size(), state_.size(), page_bytes_};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  std::span<std::byte> left = out;
  const auto put = [&](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(left.data(), from, bytes);
    left = left.subspan(bytes);
  };
  put(&head, sizeof head);
  put(text.data(), text.size_bytes());
  put(state_.data(), state_.size());
  const PagePool& pool = sequence_.cache()->pool();
  for (const PageId page : pages_) {
    const std::size_t bytes = pool.format(page_class(page)).bytes();
    pool.store()->read(page, left.first(bytes));
    left = left.subspan(bytes);
  }
  put(sequence_.tables().states().memory().data(), sequence_.tables().states().memory().size());
  seal_part(out);
}

Result<ImageParts> read_image(const BlobKey& key, std::span<const TokenId> text, std::span<const std::byte> bytes) {
  Head head;
  if (bytes.size() < sizeof head + sizeof(Hash128)) return data_loss("it is cut off");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) return data_loss("it is not a snapshot");
  KVASIR_RETURN_IF_ERROR(check_seal(bytes));
  if (head.lineage != key.lineage || head.salt != key.salt || head.text != key.text)
    return data_loss("it is of another model, policy, format or owner");
  // Each is checked to be at most the size of the image, so that their sum cannot overflow.
  if (head.tokens > bytes.size() || head.state_bytes > bytes.size() || head.page_bytes > bytes.size() ||
      bytes_of(head) != bytes.size())
    return data_loss("its parts do not have the bytes that it says");
  std::span<const std::byte> left = bytes.subspan(sizeof head);
  if (head.tokens != text.size() || std::memcmp(left.data(), text.data(), text.size_bytes()) != 0)
    return data_loss("it is of another text");
  left = left.subspan(text.size_bytes());
  return ImageParts{left.first(head.state_bytes), left.subspan(head.state_bytes, head.page_bytes)};
}

Result<std::unique_ptr<Sequence>> restore_image(const ImageParts& parts, std::int64_t tokens,
                                                const std::shared_ptr<LoadedModel>& model,
                                                const std::shared_ptr<KvCache>& cache,
                                                std::unique_ptr<RetentionPolicy> policy, const KvCodec& codec,
                                                std::vector<AppliedAdapter> adapters) {
  auto sequence = std::make_unique<Sequence>(model, cache, std::move(policy), codec, std::move(adapters));
  ByteReader in(parts.state);
  KVASIR_RETURN_IF_ERROR(read_sequence(in, sequence.get()));
  if (!in.ok() || in.left() != 0) return data_loss("its state is longer than it should be");
  if (sequence->tables().next_index() != tokens || !policy_agrees(*sequence))
    return data_loss("its policy and its page tables contradict each other");
  const PagePool& pool = cache->pool();
  std::span<const std::byte> left = parts.pages;
  for (const PageId page : pages_in_order(*sequence)) {
    const std::size_t bytes = pool.format(page_class(page)).bytes();
    if (bytes > left.size()) return data_loss("it has fewer pages than its tables");
    pool.store()->write(page, left.first(bytes));
    left = left.subspan(bytes);
  }
  const std::span<std::byte> states = sequence->mutable_tables().states().memory();
  if (left.size() != states.size()) return data_loss("its pages and states are not those of its tables and layers");
  std::ranges::copy(left, states.begin());
  return sequence;
}

}  // namespace kvasir
