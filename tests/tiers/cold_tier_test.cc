// The cold tier: what was written comes back, part by part, whatever goes wrong around it.
#include "tiers/cold_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <random>

#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

using Fault = FaultyFile::Fault;

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

ColdTier::Make real_file(TransferMethod method) {
  return [method] { return create_scratch_file(std::filesystem::temp_directory_path().string(), method); };
}

TEST(ColdTier, WhatWasWrittenComesBack) {
  for (const TransferMethod method : {TransferMethod::kCaller, TransferMethod::kThreads, TransferMethod::kAuto}) {
    ColdTier tier(real_file(method), std::uint64_t{1} << 30);
    std::mt19937_64 random(7);
    struct Held {
      std::shared_ptr<ColdBlock> block;
      std::vector<std::byte> bytes;
      std::size_t part_bytes;
    };
    std::vector<Held> held;
    double waited = 0;
    std::uint64_t most = 0;
    for (int round = 0; round < 200; ++round) {
      const std::size_t part = round % 3 == 0 ? 4096 : 640;
      std::vector<std::byte> bytes = random_bytes(random, 1 + random() % 20000);
      auto block = tier.write(bytes, part, &waited);
      held.push_back({std::move(block), std::move(bytes), part});
      if (held.size() > 20) held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
      most = std::max(most, tier.used());
      // Some parts of some blocks, in any order, while others are written.
      std::vector<ColdTier::Item> items;
      std::vector<std::size_t> which;
      std::size_t wanted = 0;
      for (std::size_t i = 0; i < held.size(); ++i) {
        if (random() % 3 != 0) continue;
        std::vector<std::uint32_t> parts;
        const std::size_t count = (held[i].bytes.size() + held[i].part_bytes - 1) / held[i].part_bytes;
        for (std::uint32_t p = 0; p < count; ++p)
          if (random() % 2 == 0) parts.push_back(p);
        std::ranges::shuffle(parts, random);
        wanted += parts.size();
        items.push_back({held[i].block, parts});
        which.push_back(i);
      }
      std::map<std::pair<std::size_t, std::uint32_t>, std::vector<std::byte>> got;
      const auto fetch = tier.fetch(items, [&](std::size_t item, std::uint32_t part, std::span<const std::byte> from) {
        const bool fresh = got.try_emplace({item, part}, from.begin(), from.end()).second;
        EXPECT_TRUE(fresh);
      });
      fetch->wait();
      ASSERT_TRUE(fetch->status().ok()) << fetch->status().message();
      EXPECT_EQ(got.size(), wanted);
      for (const auto& [key, bytes] : got) {
        const Held& from = held[which[key.first]];
        const std::size_t first = key.second * from.part_bytes;
        const std::size_t size = std::min(from.part_bytes, from.bytes.size() - first);
        ASSERT_TRUE(std::ranges::equal(bytes, std::span(from.bytes).subspan(first, size)));
      }
    }
    tier.settle();
    std::uint64_t used = 0;
    for (const Held& of : held) used += (of.bytes.size() + of.part_bytes - 1) / of.part_bytes * of.part_bytes;
    EXPECT_EQ(tier.used(), used);
    held.clear();
    EXPECT_EQ(tier.used(), 0u);
    EXPECT_GT(most, 0u);
  }
}

TEST(ColdTier, AFailureIsThatOfItsBlock) {
  std::mt19937_64 random(3);
  int failed = 0;
  for (const bool reads : {false, true})
    for (const Fault fault : {Fault::kError, Fault::kDamaged})
      for (const int number : {0, 5, 11}) {
        ColdTier tier(
            [=]() -> Result<std::unique_ptr<AsyncFile>> {
              return {std::make_unique<FaultyFile>(
                  [=](bool is_read, int n) { return is_read == reads && n == number ? fault : Fault::kNone; }, 3)};
            },
            std::uint64_t{1} << 20);
        double waited = 0;
        std::vector<std::shared_ptr<ColdBlock>> blocks;
        std::vector<std::vector<std::byte>> bytes;
        for (int i = 0; i < 4; ++i) {
          bytes.push_back(random_bytes(random, 4 * 256));
          blocks.push_back(tier.write(bytes.back(), 256, &waited));
        }
        int bad = 0;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          std::vector<std::byte> got(4 * 256);
          const auto fetch = tier.fetch({{blocks[i], {0, 1, 2, 3}}},
                                        [&](std::size_t, std::uint32_t part, std::span<const std::byte> b) {
                                          std::ranges::copy(b, got.begin() + part * 256);
                                        });
          fetch->wait();
          if (fetch->status().ok()) {
            EXPECT_EQ(got, bytes[i]);
          } else {
            ++bad;
          }
          // A write that failed is known to have.
          EXPECT_EQ(blocks[i]->state() == ColdBlock::State::kFailed,
                    !fetch->status().ok() && !reads && fault == Fault::kError);
        }
        EXPECT_EQ(bad, 1);
        failed += bad;
      }
  EXPECT_EQ(failed, 12);
}

TEST(ColdTier, HoldsNoMoreThanItMay) {
  ColdTier tier(real_file(TransferMethod::kCaller), 1000);
  double waited = 0;
  auto first = tier.write(std::vector<std::byte>(600), 200, &waited);
  auto second = tier.write(std::vector<std::byte>(600), 200, &waited);
  tier.settle();
  EXPECT_EQ(first->state(), ColdBlock::State::kWritten);
  ASSERT_EQ(second->state(), ColdBlock::State::kFailed);
  EXPECT_THAT(std::string(second->status().message()), ::testing::HasSubstr("may have 1000 bytes, 600 are in use"));
  first.reset();
  EXPECT_EQ(tier.used(), 0u);
  auto third = tier.write(std::vector<std::byte>(600), 200, &waited);
  tier.settle();
  EXPECT_EQ(third->state(), ColdBlock::State::kWritten);
}

TEST(ColdTier, AFolderThatIsMissingFailsWrites) {
  ColdTier tier([] { return create_scratch_file("/nowhere/at/all"); }, 1000);
  double waited = 0;
  const auto block = tier.write(std::vector<std::byte>(600), 200, &waited);
  tier.settle();
  ASSERT_EQ(block->state(), ColdBlock::State::kFailed);
  EXPECT_EQ(block->status().code(), StatusCode::kInvalidArgument);
  const auto fetch = tier.fetch({{block, {0}}}, [](std::size_t, std::uint32_t, std::span<const std::byte>) { FAIL(); });
  fetch->wait();
  EXPECT_FALSE(fetch->status().ok());
}

}  // namespace
}  // namespace kvasir::test
