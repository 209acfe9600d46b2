// Forked sequences share pages until they diverge, and then neither disturbs the other.
#include <gtest/gtest.h>

#include <cstring>

#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

std::vector<float> continue_with(SequenceRunner& runner, std::uint64_t seed) {
  return all_logits(runner, random_tokens(150, 320, seed), 1);
}

TEST(Fork, BothBranchesEqualFreshRuns) {
  const TemporaryFile file(make_random_model({}));
  const auto model = load(file.path());
  for (const char* policy : {"full", "streaming:sinks=4,window=60", "streaming:sinks=4,window=60,realign=rotate"}) {
    const auto prompt = random_tokens(170, 320, 1);
    const auto fresh = [&](std::uint64_t seed) {
      const auto runner = new_runner(model, policy);
      all_logits(*runner, prompt, 64);
      return continue_with(*runner, seed);
    };
    const auto first = fresh(2);
    const auto second = fresh(3);
    EXPECT_NE(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);

    const auto trunk = new_runner(model, policy);
    all_logits(*trunk, prompt, 64);
    auto branch = trunk->fork();
    ASSERT_TRUE(branch.ok()) << branch.status().message();
    EXPECT_EQ(trunk->sequence().only_table().pages().all().front(),
              (*branch)->sequence().only_table().pages().all().front())
        << "nothing is shared";
    const auto in_branch = continue_with(**branch, 2);
    const auto in_trunk = continue_with(*trunk, 3);
    EXPECT_EQ(std::memcmp(in_branch.data(), first.data(), first.size() * sizeof(float)), 0) << policy;
    EXPECT_EQ(std::memcmp(in_trunk.data(), second.data(), second.size() * sizeof(float)), 0) << policy;
  }
}

TEST(Fork, SurvivesTheTrunk) {
  const TemporaryFile file(make_random_model({}));
  const auto model = load(file.path());
  const auto prompt = random_tokens(100, 320, 1);
  auto trunk = new_runner(model, "full");
  all_logits(*trunk, prompt, 64);
  auto branch = trunk->fork();
  ASSERT_TRUE(branch.ok());
  trunk.reset();
  const auto fresh = new_runner(model, "full");
  all_logits(*fresh, prompt, 64);
  const auto want = continue_with(*fresh, 5);
  const auto got = continue_with(**branch, 5);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

// A pass that finds no room for its own copies is refused before anything changes, at every size of memory.
TEST(Fork, RefusedPassesLeaveNoTrace) {
  const TemporaryFile file(make_random_model({}));
  const auto model = load(file.path());
  const auto prompt = random_tokens(300, 320, 1);
  const auto more = random_tokens(120, 320, 2);
  const std::string policy = "streaming:sinks=4,window=200,realign=rotate,every=16";
  const auto fresh = new_runner(model, policy);
  const auto want = all_logits(*fresh, prompt, 16);
  const auto want_more = all_logits(*fresh, more, 16);
  int refused = 0;
  for (int columns = 9; columns < 22; ++columns) {
    const auto runner = new_runner(model, policy, KvCache::cost(model->kv_shape, {}, columns));
    all_logits(*runner, prompt, 16);
    const auto branch = runner->fork();
    if (!branch.ok()) continue;
    std::vector<float> got;
    const Status status =
        (*branch)->feed(more, 16, SequenceRunner::Logits::kAll, [&](std::int64_t, int, std::span<const float> logits) {
          got.insert(got.end(), logits.begin(), logits.end());
          return true;
        });
    refused += status.ok() ? 0 : 1;
    const auto rows = static_cast<std::int64_t>(got.size() / 320);
    EXPECT_EQ((*branch)->sequence().only_table().next_index(), 300 + rows)
        << "tokens entered whose logits were never given";
    std::vector<IndexRange> held;
    (*branch)->policy().retained(0, 0, held);
    std::int64_t length = 0;
    for (const IndexRange& range : held) length += range.size();
    EXPECT_EQ((*branch)->policy().seen(), 300 + rows);
    EXPECT_EQ(length, (*branch)->sequence().only_table().length());
    EXPECT_TRUE(got.empty() || std::memcmp(got.data(), want_more.data(), got.size() * sizeof(float)) == 0);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kResourceExhausted);
  }
  EXPECT_GT(refused, 2);
}

}  // namespace
}  // namespace kvasir::test
