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
    EXPECT_EQ(trunk->group().first_column()->pages[0], (*branch)->group().first_column()->pages[0]) << "nothing is shared";
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

}  // namespace
}  // namespace kvasir::test
