// The policy of docs/policies/your-own.md, registered as that page says: it is what the page promises.
#include <cmath>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

#include "recent_reads.inc"

struct NaiveFading {
  std::int64_t budget = 0;
  std::int64_t recent = 0;
  double halflife = 0;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, double> score;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      for (const TokenIndex key : seen) score[key] = std::exp2(-1.0 / halflife) * score[key] + mass(id, key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      if (std::ssize(kept) <= budget) continue;
      const auto last = kept.end() - recent;
      kept.erase(std::min_element(kept.begin(), last, [&](TokenIndex a, TokenIndex b) { return score[a] < score[b]; }));
    }
  }
};

TEST(YourOwn, IsListedAndKeepsWhatThePageSays) {
  const PolicyInfo* info = find_policy("fading");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->options.size(), 6u);
  for (const auto& schedule : test::schedules())
    for (const auto& mass : {test::random_mass(1), test::skewed_mass(2)})
      test::compare_with("fading:budget=20,recent=6,halflife=30", mass, schedule,
                         [](int) { return NaiveFading{.budget = 20, .recent = 6, .halflife = 30}; });
}

TEST(YourOwn, IsAPolicyLikeTheOthers) {
  for (const char* spec : {"fading:budget=20,recent=6", "fading:budget=30%,recent=2,every=3,halflife=10.5",
                           "snapkv:budget=20,window=6+fading:budget=25,recent=5"})
    test::check_scored_policy(spec);
  EXPECT_EQ(test::policy_of_tables("fading:halflife=512.0")->traits().spec, "fading:budget=1024,recent=256");
  EXPECT_EQ(test::policy_of_tables("fading:budget=300")->bound(), 301);
  EXPECT_FALSE(make_policy("fading:halflife=0.5").ok());
  EXPECT_FALSE(make_policy("fading:budget=100").ok());
  EXPECT_NE(make_policy("nothing").status().message().find("fading"), std::string::npos);
}

TEST(YourOwn, WithoutTheBaseItHasTheCoreAndOneCapability) {
  RecentReadsPolicy policy({.spec = "recent_reads:size=4"}, 4);
  policy.begin({});
  EXPECT_EQ(policy.observes_masses(), nullptr);
  EXPECT_EQ(policy.hides_ranges(), nullptr);
  KeepPlan plan;
  policy.end_chunk({.first = 0, .rows = 6, .prompt = true}, 0, plan);
  EXPECT_TRUE(plan.empty() && all_read(policy));
  std::vector<IndexRange> ranges;
  EXPECT_FALSE(policy.reads({.first = 0, .rows = 6, .prompt = true}, 0, ranges));
  EXPECT_TRUE(policy.reads({.first = 6, .rows = 1}, 0, ranges));
  EXPECT_EQ(ranges, (std::vector<IndexRange>{{3, 7}}));
  policy.end_chunk({.first = 6, .rows = 1}, 0, plan);
  EXPECT_FALSE(all_read(policy));
  std::vector<std::byte> saved;
  ByteWriter out(&saved);
  policy.save(out);
  RecentReadsPolicy other({.spec = "recent_reads:size=4"}, 4);
  ByteReader in(saved);
  ASSERT_TRUE(other.restore(in).ok());
  EXPECT_EQ(other.seen(), 7);
  EXPECT_FALSE(other.all_read());
}

}  // namespace
}  // namespace kvasir
