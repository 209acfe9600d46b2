// protect=N: the first tokens of a text stay, whatever else a policy drops; and how a chat's system message becomes N.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "retention/naive.h"
#include "retention/table_driver.h"

namespace kvasir {
namespace {

constexpr std::int64_t kProtect = 9;

// Under masses that make the first tokens the least wanted of all.
double against_the_first(int table, TokenIndex query, TokenIndex key) {
  return key < kProtect ? 0 : test::skewed_mass(3)(table, query, key);
}

const std::vector<std::string>& dropping_any() {
  static const std::vector<std::string> all = {
      "h2o:budget=20,recent=5",
      "h2o:budget=20",
      "h2o:budget=30%,recent=4,heads=independent",
      "tova:budget=20",
      "tova:budget=25,every=6",
      "random:budget=20",
      "random:budget=20,sinks=3,every=7",
      "lethe:tau=2,start=16,sinks=2,recent=0.1",
      "lethe:tau=4,start=16,max=30",
      "cascade:size=24,n=3,sinks=2",
      "snapkv:budget=20,window=4",
      "pyramidkv:budget=20,window=6,beta=5",
      "cake:budget=20,window=5",
      "snapkv:budget=20,window=4+lethe:tau=2,start=16",
      "cake:budget=20,window=5+tova:budget=20",
      "snapkv:budget=20,window=4+streaming:sinks=2,window=18",
      "random:budget=20+window:size=18",
  };
  return all;
}

std::string with_protection(const std::string& spec, std::int64_t tokens) {
  return kvasir::with_protection(*PolicySpec::parse(spec), tokens).text();
}

std::vector<TokenIndex> first_tokens() {
  std::vector<TokenIndex> tokens(kProtect);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<TokenIndex> held_of_first(const test::TableDriver& driver, int table) {
  std::vector<TokenIndex> held = driver.held(table);
  std::erase_if(held, [](TokenIndex token) { return token >= kProtect; });
  return held;
}

TEST(Protect, KeepsTheFirstTokensOfPoliciesThatDropAny) {
  const TableLayout layout{.layers = 2, .per_layer = 2, .heads = 1};
  for (const std::string& spec : dropping_any()) {
    bool drops_without = false;
    for (const std::int64_t protect : {kProtect, std::int64_t{0}}) {
      const std::string protecting = with_protection(spec, protect);
      auto policy = test::policy_of_tables(protecting, layout);
      ASSERT_NE(policy, nullptr) << protecting;
      TableLayout own = layout;
      if (policy->traits().scope != PolicyScope::kHead) own.per_layer = 1;
      policy = test::policy_of_tables(protecting, own);
      test::TableDriver driver(*policy, own, against_the_first);
      driver.prompt(90, 16);
      driver.generate(60);
      driver.prompt(30, 16);
      driver.generate(20);
      EXPECT_GT(driver.drops(), 0) << protecting;
      for (int table = 0; table < own.tables(); ++table) {
        if (protect > 0) {
          EXPECT_EQ(held_of_first(driver, table), first_tokens()) << protecting << ", table " << table;
        }
        drops_without = drops_without || held_of_first(driver, table) != first_tokens();
      }
    }
    EXPECT_TRUE(drops_without) << spec << " keeps the first tokens anyway";
  }
}

TEST(Protect, KeepsTheFirstTokensOfPoliciesByRange) {
  for (const std::string spec :
       {"streaming:cap=20", "streaming:sinks=0,window=20,every=5", "streaming:sinks=12,window=20",
        "streaming:sinks=2,window=18,realign=rotate", "window:size=20"}) {
    const auto policy = std::move(*make_policy(with_protection(spec, kProtect)));
    const auto without = std::move(*make_policy(spec));
    for (int i = 0; i < 100; ++i) {
      test::end_chunk(*policy, 1);
      test::end_chunk(*without, 1);
    }
    std::vector<IndexRange> kept, usual;
    policy->retained(0, 0, kept);
    without->retained(0, 0, usual);
    ASSERT_EQ(kept.size(), 2U) << spec;
    const std::int64_t sinks = spec.find("sinks=12") == std::string::npos ? kProtect : 12;
    EXPECT_EQ(kept[0], (IndexRange{0, sinks})) << spec;
    // Within the size, but for `window`, which keeps as many of the newest as ever.
    const auto tokens = [](const std::vector<IndexRange>& ranges) {
      std::int64_t sum = 0;
      for (const IndexRange& range : ranges) sum += range.size();
      return sum;
    };
    EXPECT_EQ(tokens(kept), tokens(usual) + (spec.starts_with("window") ? kProtect : 0)) << spec;
  }
}

TEST(Protect, IsPartOfTheSpecOnlyWhereItSaysSomething) {
  EXPECT_EQ((*make_policy("streaming:cap=100,protect=20"))->traits().spec, "streaming:sinks=4,window=96,protect=20");
  EXPECT_EQ((*make_policy("streaming:cap=100,protect=0"))->traits().spec, "streaming:sinks=4,window=96");
  EXPECT_EQ((*make_policy("window:size=50,protect=7"))->traits().spec, "window:size=50,protect=7");
  EXPECT_EQ((*make_policy("streaming:cap=100,protect=20"))->bound(), (*make_policy("streaming:cap=100"))->bound());
  EXPECT_EQ(*(*make_policy("window:size=50,protect=7"))->bound(), *(*make_policy("window:size=50"))->bound() + 7);
  EXPECT_EQ(*(*make_policy("cascade:size=48,n=4,sinks=4,protect=7"))->bound(),
            *(*make_policy("cascade:size=48,n=4,sinks=4"))->bound() + 3);
}

TEST(Protect, MoreThanHalfOfTheSizeIsRefusedWithBothNumbers) {
  for (const std::string spec :
       {"streaming:cap=40", "window:size=40", "cascade:size=40", "h2o:budget=40", "tova:budget=40", "random:budget=40",
        "lethe:max=40", "snapkv:budget=40,window=8", "pyramidkv:budget=40,window=8", "cake:budget=40,window=8"}) {
    EXPECT_TRUE(make_policy(spec + ",protect=20").ok()) << spec;
    const Status refused = make_policy(spec + ",protect=21").status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_NE(refused.message().find("protect=21 is more than half of the 40 tokens"), std::string::npos)
        << refused.message();
  }
  EXPECT_NE(make_policy("snapkv:budget=40,window=32,protect=20")
                .status()
                .message()
                .find("protect=20 and window=32 together are above budget=40"),
            std::string::npos);
}

TEST(Protect, AChatAddsItWhereTheSpecDoesNotSay) {
  const auto with = [](const char* spec) { return with_protection(spec, 12); };
  EXPECT_EQ(with("streaming"), "streaming:protect=12");
  EXPECT_EQ(with("streaming:cap=100"), "streaming:cap=100,protect=12");
  EXPECT_EQ(with("streaming:cap=100,protect=0"), "streaming:cap=100,protect=0");
  EXPECT_EQ(with("streaming:cap=100@demote=q4"), "streaming:cap=100,protect=12@demote=q4");
  EXPECT_EQ(with("snapkv:budget=64+lethe"), "snapkv:budget=64,protect=12+lethe:protect=12");
  EXPECT_EQ(with("snapkv:budget=64,protect=3+lethe"), "snapkv:budget=64,protect=3+lethe:protect=12");
  for (const char* spec : {"full", "quest:budget=48", "synckv"}) EXPECT_EQ(with(spec), spec);
  EXPECT_EQ(with_protection("streaming", 0), "streaming");
  // As many as the policies take: half of the size, and what another option leaves.
  EXPECT_EQ(with("streaming:cap=20"), "streaming:cap=20,protect=10");
  EXPECT_EQ(with("h2o:budget=32,recent=28"), "h2o:budget=32,recent=28,protect=4");
  EXPECT_EQ(with("snapkv:budget=40,window=32+streaming:cap=100"),
            "snapkv:budget=40,window=32,protect=8+streaming:cap=100,protect=8");
  EXPECT_EQ(with("h2o:budget=32,recent=32"), "h2o:budget=32,recent=32");
  EXPECT_EQ(protected_by(*PolicySpec::parse("snapkv:budget=64,protect=3+lethe:protect=12")), 3);
  EXPECT_EQ(protected_by(PolicySpec::named("full")), 0);
  const auto without = [](const char* spec) { return without_protection(*PolicySpec::parse(spec)).text(); };
  EXPECT_EQ(without("snapkv:budget=64,protect=3+lethe:protect=12,tau=3@demote=q4"),
            "snapkv:budget=64+lethe:tau=3@demote=q4");
  EXPECT_EQ(without("streaming:protect=3"), "streaming");
}

// Files of earlier versions name neither where they were the defaults of then.
TEST(Protect, SpecsOfEarlierFilesKeepTheirMeaning) {
  const auto spec_of_file = [](const std::string& spec) {
    return kvasir::spec_of_file(*PolicySpec::parse(spec)).text();
  };
  EXPECT_EQ(spec_of_file("snapkv:budget=64"), "snapkv:budget=64,window=32,kernel=5");
  EXPECT_EQ(spec_of_file("cake:budget=64,window=8+lethe:tau=400,start=512"),
            "cake:budget=64,window=8,kernel=5+lethe:tau=400,start=512");
  for (const char* spec : {"snapkv:budget=64,window=16,kernel=15", "streaming:sinks=4,window=60", "full", "rkv:budget=64"})
    EXPECT_EQ(spec_of_file(spec), spec);
  const auto now = std::move(*make_policy("snapkv:budget=64,window=32,kernel=5"));
  now->begin({});
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  now->save(out);
  // The same state as it was written: under the shorter name.
  const std::string full_name = now->traits().spec, short_name = "snapkv:budget=64";
  std::vector<std::byte> former;
  ByteWriter renamed(&former);
  renamed.put_string(short_name);
  former.insert(former.end(),
                bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() - (bytes.size() - 8 - full_name.size())),
                bytes.end());
  const auto restored = std::move(*make_policy(spec_of_file(short_name)));
  restored->begin({});
  ByteReader in(former);
  EXPECT_TRUE(restored->restore(in).ok());
}

}  // namespace
}  // namespace kvasir
