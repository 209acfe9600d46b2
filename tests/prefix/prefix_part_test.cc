#include "prefix/prefix_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

namespace kvasir::test {
namespace {

PageFormat format_of(int head_dim, int slots, KvType key, KvType value) {
  PageFormat format;
  format.head_dim = head_dim;
  format.slots = slots;
  format.key = key;
  format.value = value;
  return format;
}

std::vector<TokenId> text_of(std::size_t tokens, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> text(tokens);
  for (TokenId& token : text) token = static_cast<TokenId>(random() % 50000);
  return text;
}

std::vector<std::byte> part_of(const PartShape& shape, const BlobKey& key, std::span<const TokenId> text,
                               std::int64_t part, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(shape.bytes(part));
  for (std::byte& byte : begin_part(shape, key, text, part, bytes)) byte = static_cast<std::byte>(random());
  seal_part(bytes);
  return bytes;
}

// Every codec, page size and some head dimensions: what comes back is what was written, and no changed byte passes.
TEST(PrefixPart, RoundTrips) {
  std::mt19937 random(1);
  for (const KvType type :
       {KvType::kF32, KvType::kF16, KvType::kQ8, KvType::kQ4, KvType::kQ4O, KvType::kQ3, KvType::kQ2})
    for (const int slots : {16, 32, 64})
      for (const int head_dim : {32, 64, 80, 128}) {
        const PartShape shape = part_shape("model", format_of(head_dim, slots, type, KvType::kQ8), 3);
        EXPECT_EQ(shape.tokens(), 256);
        const auto text = text_of(700, static_cast<std::uint32_t>(random()));
        for (const std::int64_t part : {0, 1}) {
          const BlobKey key = part_key(shape, "salt", text, part);
          const std::span<const TokenId> of_part = std::span(text).first(static_cast<std::size_t>(part + 1) * 256);
          std::vector<std::byte> bytes = part_of(shape, key, text, part, 5);
          const auto pages = read_part(shape, key, of_part, bytes);
          ASSERT_TRUE(pages.ok()) << pages.status().message();
          ASSERT_EQ(pages->size(), 256 / static_cast<std::size_t>(slots) * 3 * shape.page_bytes);
          std::mt19937 same(5);
          EXPECT_TRUE(
              std::ranges::all_of(*pages, [&](std::byte byte) { return byte == static_cast<std::byte>(same()); }));
          for (int i = 0; i < 20; ++i) {
            std::byte& byte = bytes[random() % bytes.size()];
            const std::byte before = std::exchange(byte, byte ^ static_cast<std::byte>(1 << random() % 8));
            EXPECT_EQ(read_part(shape, key, of_part, bytes).status().code(), StatusCode::kDataLoss);
            byte = before;
          }
          bytes.resize(bytes.size() - 1);
          EXPECT_EQ(read_part(shape, key, of_part, bytes).status().code(), StatusCode::kDataLoss);
        }
      }
}

// A sound part under the name of another is refused: by tokens, owner and kind, whatever its checksum.
TEST(PrefixPart, AnotherTextOwnerOrKindIsRefused) {
  const PageFormat f16 = format_of(64, 32, KvType::kF16, KvType::kF16);
  const PartShape shape = part_shape("model", f16, 3);
  const auto text = text_of(600, 1);
  const std::span<const TokenId> first = std::span(text).first(256);
  const BlobKey key = part_key(shape, "salt", text, 0);
  const std::vector<std::byte> bytes = part_of(shape, key, text, 0, 1);
  ASSERT_TRUE(read_part(shape, key, first, bytes).ok());
  auto other = text;
  other[200] ^= 1;
  // A hash that happens to be equal, with another text behind it.
  EXPECT_THAT(read_part(shape, key, std::span(other).first(256), bytes).status().message(),
              testing::HasSubstr("another text"));
  std::set<std::string> names;
  const auto expect_refused = [&](const PartShape& of, const BlobKey& named) {
    EXPECT_TRUE(names.insert(named.text.hex()).second) << "each has a name of its own";
    EXPECT_FALSE(read_part(of, named, first, bytes).ok());
  };
  names.insert(key.text.hex());
  expect_refused(shape, part_key(shape, "salt2", text, 0));
  expect_refused(shape, part_key(shape, "", text, 0));
  expect_refused(shape, part_key(shape, "salt", other, 0));
  for (const PartShape& kind :
       {part_shape("model2", f16, 3), part_shape("model", format_of(64, 32, KvType::kBF16, KvType::kF16), 3),
        part_shape("model", format_of(64, 16, KvType::kF16, KvType::kF16), 3), part_shape("model", f16, 4)})
    expect_refused(kind, part_key(kind, "salt", text, 0));
  PageFormat rotated = f16;
  rotated.hadamard_keys = true;
  const PartShape turned = part_shape("model", rotated, 3);
  expect_refused(turned, part_key(turned, "salt", text, 0));
}

TEST(PrefixPart, IsNoLargerThanAServerTakesAtOnce) {
  const PartShape large = part_shape("model", format_of(128, 32, KvType::kF16, KvType::kF16), 80 * 8);
  EXPECT_EQ(large.blocks, 1);
  EXPECT_GT(large.pages_bytes(), 8u << 20) << "a block that is larger alone is a part";
  const PartShape middle = part_shape("model", format_of(64, 32, KvType::kF16, KvType::kF16), 16 * 8);
  EXPECT_EQ(middle.tokens(), 256);
  EXPECT_EQ(middle.pages_bytes(), 8u << 20);
  EXPECT_EQ(part_shape("model", format_of(64, 32, KvType::kF32, KvType::kF32), 16 * 8).tokens(), 128);
}

}  // namespace
}  // namespace kvasir::test
