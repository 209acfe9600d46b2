// The state of all policies: saved, restored, damaged, measured; and what they need of a prompt.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "retention/growth.h"
#include "retention/state_checks.h"

namespace kvasir {
namespace {

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all = {
      "full",
      "window:size=12",
      "streaming:sinks=4,window=20",
      "streaming:sinks=3,window=20,every=9,slack=2",
      "streaming:sinks=0,window=20,every=9,max_drop=4",
      "streaming:sinks=2,window=15,every=5,realign=rotate",
      "cascade:size=24,n=3,sinks=2",
      "cascade:size=20,n=4,sinks=5,accept=3,heads=independent",
      "cascade:size=16,n=1,sinks=0,reduce=max",
      "h2o:budget=20,recent=5",
      "h2o:budget=30%,recent=4,sinks=2,every=5,heads=independent",
      "h2o:budget=24,recent=5,agg=max,value=wo",
      "snapkv:budget=18,window=4,value=wo,every=6",
      "snapkv:budget=18,window=4,value=wo+h2o:budget=20,recent=5,value=wo",
      "expected:budget=20,norm=wo+h2o:budget=24,recent=3,value=wo",
      "expected:budget=24,norm=wo,every=5",
      "tova:budget=20",
      "tova:budget=25,every=6",
      "lethe:tau=2,start=16,sinks=2,recent=0.1",
      "lethe:tau=4,start=16,max=30,heads=independent",
      "lethe:tau=60,start=10,sinks=2,segments=5",
      "lethe:tau=300,start=10,max=60,segments=20",
      "random:budget=20",
      "random:budget=20%,recent=3,sinks=2",
      "random:budget=20,every=7,heads=independent",
      "snapkv:budget=16,window=4",
      "snapkv:budget=16,window=4,share=ada,every=7",
      "snapkv:budget=18,window=4,chunk=3,gate=on",
      "snapkv:budget=16,window=4,prompt=blocks,every=5,agg=max",
      "pyramidkv:budget=20,window=6,beta=5,prompt=blocks,every=4",
      "pyramidkv:budget=20,window=6,beta=5",
      "cake:budget=18,window=5",
      "cake:budget=18,window=5,prompt=blocks,every=4,most=1.5",
      "keydiff:budget=20",
      "keydiff:budget=20,sinks=2,recent=5,every=7,measure=distance,span=16,prompt=blocks",
      "keydiff:budget=30%,measure=norm,every=0",
      "keydiff:budget=18,protect=5+tova:budget=16",
      "lagkv:budget=20,sinks=2,lag=6",
      "lagkv:budget=24,lag=8,rank=all,every=5,prompt=blocks",
      "expected:budget=20,future=32",
      "expected:budget=30%,sinks=2,spread=off,norm=off,every=5,prompt=blocks",
      "vase:budget=20,recent=4,sinks=2,every=5",
      "vase:budget=30%,recent=3,wide=6,draw=off,kernel=1,every=3",
      "vase:budget=22,recent=4,every=6,prompt=blocks",
      "triattention:budget=20,recent=4,every=5",
      "triattention:budget=30%,recent=3,sinks=2,prompt=blocks,every=6",
      "rkv:budget=20,window=4,every=5",
      "rkv:budget=24,window=6,prompt=blocks,every=3,alike=0.1",
      "matching:budget=20,recent=4,every=5",
      "matching:budget=24,recent=3,fit=mass,queries=2,prompt=blocks,every=3",
      "kvzip:budget=20,recent=4",
      "quest:budget=48",
      "quest:budget=30%",
      "synckv:budget=9,recent=2,stride=3",
      "synckv:mem=60%,recent=4,static=0.2",
      "snapkv:budget=30,window=25",
      "pyramidkv:budget=30%,window=22,kernel=3",
      "cake:budget=30,window=25,gamma=20",
      "cake:budget=28,window=24,tau1=1,tau2=1",
      "snapkv:budget=16,window=4+lethe:tau=2,start=16",
      "cake:budget=18,window=5+tova:budget=20",
      "h2o:budget=20,recent=5+tova:budget=18",
      "tova:budget=20+h2o:budget=18,recent=3",
      "snapkv:budget=16,window=4+streaming:sinks=2,window=14",
      "streaming:sinks=2,window=20+random:budget=15",
      "random:budget=20+window:size=18",
      "tova:budget=24+full",
      "streaming:sinks=4,window=20,protect=9",
      "window:size=12,protect=5",
      "cascade:size=24,n=3,sinks=2,protect=7",
      "h2o:budget=20,recent=5,protect=6",
      "lethe:tau=4,start=16,max=30,protect=7",
      "random:budget=20,protect=7",
      "snapkv:budget=16,window=4,protect=5",
      "pyramidkv:budget=20,window=6,beta=5,protect=7",
      "cake:budget=18,window=5,protect=6+tova:budget=20,protect=6",
  };
  return all;
}

class PolicyState : public ::testing::TestWithParam<std::string> {};

TEST_P(PolicyState, RestoredItContinues) {
  test::check_restored(GetParam());
}
TEST_P(PolicyState, DamagedItDoesNoHarm) {
  test::check_damaged(GetParam());
}
TEST_P(PolicyState, PassesWithinAChunkChangeNothing) {
  test::check_splits(GetParam());
}
TEST_P(PolicyState, TheExactPrefixIsWhatItsDefinitionSays) {
  test::check_exact_prefix(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, PolicyState, ::testing::ValuesIn(specs()), [](const auto& tested) {
  std::string name = std::to_string(tested.index) + "_";
  for (const char c : tested.param.substr(0, tested.param.find(':'))) name += c == '+' ? '_' : c;
  return name;
});

TEST(PolicyStates, EveryPolicyIsAmongThoseTested) {
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only) continue;
    const bool tested =
        std::ranges::any_of(specs(), [&](const std::string& spec) { return spec.starts_with(info->name); });
    EXPECT_TRUE(tested) << info->name;
  }
}

// What the specification says of each.
TEST(PolicyStates, ExactPrefixes) {
  const auto prefix = [](const std::string& spec, std::int64_t n) {
    return test::BegunPolicy(spec).policy->exact_prefix(n);
  };
  EXPECT_EQ(prefix("full", 1'000'000), 1'000'000);
  EXPECT_EQ(prefix("streaming:sinks=4,window=100", 1000), 104);  // the 105th token makes the first go
  EXPECT_EQ(prefix("streaming:sinks=4,window=100,every=64", 1000), 167);
  EXPECT_EQ(prefix("streaming:sinks=4,window=100", 50), 50);
  EXPECT_EQ(prefix("streaming:window=100,every=0", 1000), 1000);
  EXPECT_EQ(prefix("window:size=100", 1000), 100);
  for (const std::string name : {"snapkv", "pyramidkv", "cake"}) {
    EXPECT_EQ(prefix(name, 1000), 984);
    EXPECT_EQ(prefix(name + ":window=10,budget=500", 1000), 990);
    EXPECT_EQ(prefix(name, 16), 0);
    EXPECT_EQ(prefix(name + "+streaming", 1000), 984);
    EXPECT_EQ(prefix(name + "+random", 1000), 984);
    EXPECT_EQ(prefix(name + "+tova", 1000), 984);
    EXPECT_EQ(prefix(name + "+h2o", 1000), 0);
    EXPECT_EQ(prefix(name + "+lethe", 1000), 0);
  }
  for (const std::string name : {"h2o", "tova", "lethe", "cascade"}) EXPECT_EQ(prefix(name, 1000), 0);
  EXPECT_EQ(prefix("random:budget=300", 1000), 300);
  EXPECT_EQ(prefix("random:budget=300,every=50", 1000), 349);
  EXPECT_EQ(prefix("random:budget=30%", std::int64_t{1} << 40), 1);
  EXPECT_EQ(prefix("random:budget=30%,recent=90,sinks=10", std::int64_t{1} << 40), 100);
  EXPECT_EQ(prefix("random:budget=100%", std::int64_t{1} << 40), std::int64_t{1} << 40);
  EXPECT_EQ(prefix("random:budget=300,every=0", 1000), 1000);
}

// The bound on the state is never exceeded over random streams (the driver asserts that wherever it looks), and where a
// policy keeps as many tokens as it may, it is close to what is used.
TEST(PolicyStates, TheBoundOnMemoryIsTight) {
  const TableLayout layout{.layers = 2, .per_layer = 2, .heads = 2};
  constexpr std::int64_t kTokens = 2400;
  struct Case {
    std::string spec;
    bool one_prompt = false;  // what uses most
  };
  for (const Case& c :
       {Case{"h2o:budget=1000,recent=10"}, Case{"tova:budget=1000"}, Case{"tova:budget=1000,every=300"},
        Case{"random:budget=40%"}, Case{"h2o:budget=40%,recent=3,heads=independent"}, Case{"lethe:start=3000"},
        Case{"cascade:size=900,n=3,sinks=20"}, Case{"random:budget=800,every=100"},
        Case{"lethe:tau=1e300,start=100,max=900"}, Case{"snapkv:budget=500", true}, Case{"cake:budget=500", true},
        Case{"snapkv:budget=500+h2o:budget=400,recent=20", true}, Case{"tova:budget=500+random:budget=400", true}}) {
    SCOPED_TRACE(c.spec);
    for (const bool one_prompt : {true, false}) {
      std::mt19937_64 random(3);
      const auto policy = test::policy_of_tables(c.spec, layout);
      test::TableDriver driver(*policy, layout, test::skewed_mass(1));
      driver.split_chunks(4);
      if (one_prompt) driver.prompt(kTokens, 64);
      while (driver.next_id() < kTokens) {
        if (random() % 2 == 0) {
          driver.prompt(1 + static_cast<std::int64_t>(random() % 700), 64);
        } else {
          driver.generate(static_cast<std::int64_t>(random() % 60));
        }
        ASSERT_FALSE(HasFatalFailure());
      }
      const std::uint64_t most = policy->most_state_bytes(layout, driver.next_id(), 64);
      if (one_prompt || !c.one_prompt) {
        EXPECT_LE(most, driver.most_state_bytes() * 5 / 4) << one_prompt;
      }
      EXPECT_LE(policy->clone()->state_bytes(), policy->state_bytes());
    }
  }
}

TEST(PolicyStates, WithoutABoundMemoryGrowsWithTheText) {
  const TableLayout layout{.layers = 32, .per_layer = 8, .heads = 4};
  const auto bytes = [&](const std::string& spec, std::int64_t tokens) {
    return static_cast<double>(test::policy_of_tables(spec, layout)->most_state_bytes(layout, tokens, 256));
  };
  EXPECT_NEAR(bytes("snapkv", 1 << 20) / bytes("snapkv", 1 << 19), 2, 0.01);
  EXPECT_EQ(bytes("tova:heads=independent", 1 << 20), bytes("tova:heads=independent", 1 << 19));
  EXPECT_NEAR(bytes("h2o:budget=1024,recent=0", 1 << 20), 256.0 * (1024 + 256) * 16, 256 * 4096);
  for (const char* spec : {"full", "window", "streaming"}) {
    const test::BegunPolicy range(spec);
    EXPECT_EQ(range.policy->most_state_bytes({}, 1 << 20, 512), 0u);
    EXPECT_EQ(range.policy->state_bytes(), 0u);
  }
}

TEST(Growth, StaysWithinItsBoundWhateverTheSizes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t limit = random() % 3 == 0 ? kNoLimit : 1 + random() % 2000;
    const std::size_t most = std::min<std::size_t>(1 + random() % 3000, limit);
    std::vector<char> values;
    for (int step = 0; step < 200; ++step) {
      const std::size_t size = 1 + random() % most;
      grow_to(values, size, random() % 2 == 0 ? limit : std::min(limit, size + random() % 100));
      ASSERT_GE(values.capacity(), size);
      ASSERT_LE(values.capacity(), most_capacity(most, limit));
    }
    std::vector<char> one_by_one;
    std::size_t moved = 0;
    for (std::size_t size = 1; size <= most; ++size) {
      const std::size_t capacity = one_by_one.capacity();
      grow_to(one_by_one, size, limit);
      if (one_by_one.capacity() != capacity) moved += size;
    }
    ASSERT_LE(moved, 9 * most + 200) << "amortised";
  }
  EXPECT_EQ(most_capacity(800, 850), 850u);
  EXPECT_EQ(most_capacity(800, 10), 800u);
  EXPECT_EQ(most_capacity(800, kNoLimit), 900u);
}

}  // namespace
}  // namespace kvasir
