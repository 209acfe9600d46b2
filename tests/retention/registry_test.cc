#include "retention/registry.h"

#include <gtest/gtest.h>

#include <set>

#include "retention/expect_refused.h"
#include "retention/naive.h"

namespace kvasir {
namespace {

using test::expect_refused;

TEST(PolicySpec, UnknownNamesAreToldTheKnownOnes) {
  for (const std::string spec : {"", ":", "Full", "full ", " full", "windows", "h2p:size=3", "window+", "=", ","})
    expect_refused(spec, {"full", "window", "streaming", "recompute"});
}

TEST(PolicySpec, UnknownKeysAreToldTheKnownOnes) {
  expect_refused("window:sise=3", {"sise", "size"});
  expect_refused("window:Size=3", {"Size", "size"});
  expect_refused("window:size=3,sinks=4", {"sinks", "size"});
  expect_refused("streaming:size=3",
                 {"size", "sinks", "window", "cap", "every", "slack", "overlap", "refresh", "max_drop", "realign"});
  expect_refused("full:size=3", {"full", "size", "thoughts"});
}

TEST(PolicySpec, MalformedItemsAreToldTheForm) {
  for (const std::string spec : {"window:", "window:size", "window:size=", "window:=3", "window:=", "window:size=3,",
                                 "window:,size=3", "window:size=3,,", "window:,"})
    expect_refused(spec, {"key=value", "size"});
  expect_refused("full:", {"key=value"});
  expect_refused("streaming:sinks", {"key=value", "sinks", "window", "realign"});
}

TEST(PolicySpec, AKeyIsGivenOnce) {
  expect_refused("window:size=3,size=3", {"size", "twice"});
  expect_refused("streaming:sinks=1,window=4,sinks=2", {"sinks", "twice"});
}

TEST(PolicySpec, ValuesOutOfRangeAreToldTheRange) {
  for (const std::string value :
       {"0", "-1", "1.5", "1e3", "0x10", "+3", " 3", "3 ", "ten", "-", "1=2", "99999999999999999999", "--3"})
    expect_refused("window:size=" + value, {"size", value, "whole number", "1 to 2^40"});
  for (const std::string key : {"sinks", "every", "slack", "max_drop", "overlap", "refresh"})
    for (const std::string value : {"-1", "x", "18446744073709551616"})
      expect_refused("streaming:cap=1000," + key + "=" + value, {key, value, "whole number", "0 to 2^40"});
  expect_refused("streaming:window=0", {"window", "1 to 2^40"});
  expect_refused("streaming:cap=0", {"cap", "1 to 2^40"});
  for (const std::string value : {"Frames", "none", "0"})
    expect_refused("streaming:realign=" + value, {"realign", "frames", "rotate"});
}

// The ranges shown are those that hold: the largest value is accepted, one more is refused.
TEST(PolicySpec, ValuesAboveTheRangeAreToldTheLargest) {
  EXPECT_TRUE(make_policy("window:size=1099511627776").ok());
  expect_refused("window:size=1099511627777", {"size", "1 to 2^40"});
  expect_refused("streaming:window=9223372036854775807", {"window", "1 to 2^40"});
}

// An option that a policy lists but does not read would take any text.
TEST(PolicySpec, EveryOptionIsRead) {
  int options = 0;
  for (const PolicyInfo* info : all_policies())
    for (const PolicyOption& option : info->make != nullptr ? info->options : std::span<const PolicyOption>()) {
      PolicyOptions given(info->name);
      given.set(option.name, "?");
      EXPECT_FALSE(info->make(given).ok()) << info->name << " does not read " << option.name;
      ++options;
    }
  EXPECT_GT(options, 50);
  PolicyOptions noting = *PolicyOptions::parse("h2o:budget=9,recent=2,every=x");
  noting.note_reads();
  EXPECT_EQ(noting.unread(), "budget");
  const PolicyOptions copy = noting;
  EXPECT_TRUE(copy.get_budget("budget", 100).ok() && copy.get_int("recent", 0, 100).ok());
  EXPECT_EQ(copy.canonical({}), "h2o:budget=9,recent=2,every=x");
  EXPECT_EQ(noting.unread(), "every");
  EXPECT_FALSE(copy.get_int("every", 0, 100).ok());
  EXPECT_EQ(noting.unread(), "");
  EXPECT_EQ(noting, *PolicyOptions::parse("h2o:budget=9,recent=2,every=x"));
}

TEST(PolicySpec, CapAndWindowExcludeEachOther) {
  expect_refused("streaming:cap=100,window=50", {"cap", "window"});
  expect_refused("streaming:cap=4", {"cap", "sinks"});
  expect_refused("streaming:cap=30,sinks=10,slack=5,overlap=5,refresh=10",
                 {"cap", "sinks", "slack", "overlap", "refresh"});
  EXPECT_TRUE(make_policy("streaming:cap=31,sinks=10,slack=5,overlap=5,refresh=10").ok());
  EXPECT_TRUE(make_policy("streaming:cap=5").ok());
  EXPECT_TRUE(make_policy("streaming:overlap=1").ok()) << "without a cap there is nothing that it reduces";
  EXPECT_TRUE(make_policy("streaming:window=10,refresh=1").ok());
  EXPECT_TRUE(make_policy("streaming:window=10,slack=3").ok());
}

TEST(PolicySpec, BaselinesOfTheEvaluationKeepNoCache) {
  expect_refused("recompute", {"recompute", "eval"});
  expect_refused("recompute:size=100", {"recompute", "eval"});
  const auto spec = PolicySpec::parse("recompute:size=100");
  ASSERT_TRUE(spec.ok());
  const PolicyOptions& options = spec->parts.front();
  EXPECT_EQ(*options.get_int("size", 1, 1000), 100);
  EXPECT_EQ(*options.get_int("stride", 1, 1000), 1);
  EXPECT_TRUE(options.has("size"));
  EXPECT_FALSE(options.has("stride"));
  for (const PolicyOption& option : find_policy("recompute")->options) EXPECT_EQ(option.range, "1 to 2^24");
  EXPECT_TRUE(find_policy("recompute")->evaluation_only);
}

TEST(PolicySpec, IsAValueThatSaysWhatItsTextSaid) {
  for (const std::string text :
       {"full", "window:size=0012", "streaming:window=7,sinks=0", "snapkv:budget=64,protect=3+lethe:tau=1e+3",
        "h2o:budget=30%,pos=original@demote=q4,file,recall=2,memory=1MiB", "snapkv+tova:pos=original@demote=file",
        "recompute:stride=2,size=9"}) {
    const auto spec = PolicySpec::parse(text);
    ASSERT_TRUE(spec.ok()) << text << ": " << spec.status().message();
    EXPECT_EQ(spec->text(), text);
    EXPECT_EQ(*PolicySpec::parse(spec->text()), *spec);
    EXPECT_EQ(spec->parts.size(),
              text.find("+tova") != std::string::npos || text.find("+lethe") != std::string::npos ? 2u : 1u);
    EXPECT_EQ(spec->demotion.has_value(), text.find('@') != std::string::npos);
  }
  EXPECT_EQ(PolicySpec::parse("h2o@demote=recall=4,q4")->text(), "h2o@demote=q4");
  EXPECT_EQ(PolicySpec::named("full"), *PolicySpec::parse("full"));
  EXPECT_NE(*PolicySpec::parse("streaming:window=7,sinks=0"), *PolicySpec::parse("streaming:window=7,sinks=1"));
  EXPECT_NE(*PolicySpec::parse("h2o@demote=q4"), *PolicySpec::parse("h2o"));
  expect_refused("full+full+full", {"at most two"});
  expect_refused("h2o:budget=9,recent=2@demote=q5", {"demote"});
}

TEST(PolicySpec, OptionsAreSetInPlaceOrBehindAllOthers) {
  PolicyOptions options = *PolicyOptions::parse("streaming:window=7,sinks=0");
  options.set("window", 9);
  options.set("every", "3");
  EXPECT_EQ(options.text(), "streaming:window=9,sinks=0,every=3");
  options.omit("sinks");
  EXPECT_EQ(options.text(), "streaming:window=9,every=3");
  EXPECT_EQ(with_size(*PolicySpec::parse("h2o+streaming:sinks=2"), 40)->text(), "h2o+streaming:sinks=2,cap=40");
  EXPECT_EQ(with_size(*PolicySpec::parse("tova@demote=q4"), 40)->text(), "tova:budget=40@demote=q4");
  EXPECT_FALSE(with_size(*PolicySpec::parse("streaming:window=9"), 40).ok());
  EXPECT_FALSE(with_size(PolicySpec::named("full"), 40).ok());
}

TEST(PolicySpec, TheCanonicalSpecMakesAnEqualPolicy) {
  const std::pair<std::string, std::string> specs[] = {
      {"full", "full"},
      {"window", "window:size=2048"},
      {"window:size=0012", "window:size=12"},
      {"streaming", "streaming:sinks=4,window=2044"},
      {"streaming:cap=2048", "streaming:sinks=4,window=2044"},
      {"streaming:window=7,sinks=0", "streaming:sinks=0,window=7"},
      {"streaming:every=64", "streaming:sinks=4,window=2044,every=64"},
      {"streaming:every=0,window=5", "streaming:sinks=4,window=5,every=0"},
      {"streaming:realign=rotate,max_drop=3,slack=2,every=9,window=8,sinks=1",
       "streaming:sinks=1,window=8,every=9,slack=2,max_drop=3,realign=rotate"},
      {"streaming:realign=frames", "streaming:sinks=4,window=2044"},
      {"streaming:cap=40,sinks=3,slack=5,overlap=7,refresh=11,every=6", "streaming:sinks=3,window=14,every=6,slack=5"},
  };
  for (const auto& [given, canonical] : specs) {
    auto policy = make_policy(given);
    ASSERT_TRUE(policy.ok()) << given << ": " << policy.status().message();
    EXPECT_EQ((*policy)->traits().spec, canonical);
    auto again = make_policy((*policy)->traits().spec);
    ASSERT_TRUE(again.ok()) << canonical;
    EXPECT_EQ((*again)->traits().spec, canonical);
    EXPECT_EQ((*again)->bound(), (*policy)->bound());
    EXPECT_EQ((*again)->traits().realign, (*policy)->traits().realign);
    for (int i = 0; i < 5000; ++i) {
      const KeepPlan a = test::end_chunk(**policy, 1);
      const KeepPlan b = test::end_chunk(**again, 1);
      ASSERT_EQ(a.drop, b.drop);
      std::vector<IndexRange> first, second;
      (*policy)->retained(0, 0, first);
      (*again)->retained(0, 0, second);
      ASSERT_EQ(first, second);
    }
  }
}

TEST(PolicyRegistry, EveryPolicyIsDescribedAndItsDefaultsAreAccepted) {
  std::set<std::string_view> names;
  for (const PolicyInfo* info : all_policies()) {
    EXPECT_TRUE(names.insert(info->name).second);
    EXPECT_EQ(find_policy(info->name), info);
    for (const std::string_view text : {info->name, info->summary, info->formula, info->reference, info->acts})
      EXPECT_FALSE(text.empty()) << info->name;
    std::set<std::string_view> keys;
    for (const PolicyOption& option : info->options) {
      EXPECT_TRUE(keys.insert(option.name).second);
      for (const std::string_view text : {option.name, option.default_value, option.range, option.meaning})
        EXPECT_FALSE(text.empty()) << info->name;
      if (option.default_value == "-" || info->evaluation_only) continue;
      const auto policy = make_policy(std::string(info->name) + ":" + std::string(option.name) + "=" +
                                      std::string(option.default_value));
      ASSERT_TRUE(policy.ok()) << policy.status().message();
      EXPECT_EQ((*policy)->traits().spec, (*make_policy(info->name))->traits().spec);
    }
  }
  EXPECT_EQ(names,
            (std::set<std::string_view>{"full", "window", "streaming", "cascade", "h2o", "tova", "lethe", "snapkv",
                                        "pyramidkv", "cake", "keydiff", "lagkv", "expected", "vase", "triattention", "rkv", "matching", "kvzip", "synckv", "quest", "random", "recompute"}));
  EXPECT_EQ(find_policy("none"), nullptr);
}

}  // namespace
}  // namespace kvasir
