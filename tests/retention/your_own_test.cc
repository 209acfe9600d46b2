// The policy of docs/policies/your-own.md, registered as that page says: it is what the page promises.
#include <cmath>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

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

}  // namespace
}  // namespace kvasir
