// Specs of the policies that decide by table: canonical forms, refusals, and budgets that cover everything.
#include <fmt/core.h>

#include <limits>
#include <random>

#include "retention/expect_refused.h"
#include "retention/table_driver.h"

namespace kvasir {
namespace {

using test::expect_refused;

TEST(TableSpecs, CanonicalFormsAreShortAndExact) {
  const std::pair<std::string, std::string> specs[] = {
      {"h2o", "h2o:budget=1024,recent=512"},
      {"h2o:recent=007,budget=0016", "h2o:budget=16,recent=7"},
      {"h2o:budget=30.00%,recent=4,sinks=0,every=1", "h2o:budget=30%,recent=4"},
      {"h2o:heads=independent,pos=compact,every=8,sinks=2,recent=4,budget=12.5%",
       "h2o:budget=12.5%,recent=4,sinks=2,every=8,pos=compact,heads=independent"},
      {"tova", "tova:budget=1024"},
      {"tova:pos=auto,heads=together,every=64", "tova:budget=1024,every=64"},
      {"lethe:tau=4,start=16,gamma=-.0", "lethe:tau=4,gamma=0,start=16"},
      {"tova:budget=0.0001%", "tova:budget=0.0001%"},
      {"tova:budget=100%", "tova:budget=100%"},
      {"cascade:size=16,n=4,sinks=2", "cascade:size=16,n=4,sinks=2"},
      {"lethe:start=12,tau=8.0,sinks=2,gamma=9e-1", "lethe:tau=8,sinks=2,gamma=0.9,start=12"},
      {"lethe:max=300,recent=0.30,tau=1e20", "lethe:tau=1e+20,start=512,max=300"},
      {"random:seed=007", "random:budget=1024,seed=7"},
      {"snapkv:pool=max,kernel=7,window=24,budget=20%", "snapkv:budget=20%,window=24,kernel=7,pool=max"},
      {"pyramidkv:beta=20.0", "pyramidkv:budget=1024,window=16,kernel=15"},
      {"cake:tau2=0.6,gamma=0", "cake:budget=1024,window=16,kernel=15,gamma=0,tau2=0.6"},
  };
  for (const auto& [given, canonical] : specs) {
    const auto policy = test::policy_of_tables(given);
    ASSERT_NE(policy, nullptr);
    EXPECT_EQ(policy->traits().spec, canonical) << given;
  }
}

TEST(TableSpecs, BudgetsAreTokensOrPercentages) {
  for (const std::string value : {"0",
                                  "-1",
                                  "1.5",
                                  "0%",
                                  "%",
                                  "-5%",
                                  "101%",
                                  "100.0001%",
                                  "30 %",
                                  " 30%",
                                  "0.00001%",
                                  "1.%",
                                  ".%",
                                  "3%0",
                                  "x%",
                                  "1e1%",
                                  "30%%",
                                  "1099511627777",
                                  "99999999999999999999",
                                  "99999999999999999999%",
                                  "nan",
                                  "+5"}) {
    expect_refused("tova:budget=" + value, {"budget=" + value, "whole number", "percentage", "2^40", "100%"});
    expect_refused("h2o:recent=0,budget=" + value, {"h2o", "budget=" + value});
  }
  for (const std::string value : {"1", "1099511627776", "100%", ".5%", "0.5%", "99.9999%"})
    EXPECT_TRUE(make_policy("tova:budget=" + value).ok()) << value;
}

TEST(TableSpecs, ProtectedTokensFitTheBudget) {
  expect_refused("h2o:budget=256,recent=512", {"sinks=0", "recent=512", "budget=256"});
  expect_refused("h2o:budget=16,recent=8,sinks=9", {"sinks=9", "recent=8", "budget=16"});
  EXPECT_TRUE(make_policy("h2o:budget=16,recent=8,sinks=8").ok());
  expect_refused("h2o:budget=16,sinks=17", {"sinks=17", "recent=0", "budget=16"});
}

// Without `recent`, half the budget is for the recent tokens, but no more than the sinks leave.
TEST(TableSpecs, HeavyHittersGiveHalfTheBudgetToTheRecent) {
  const std::pair<std::string, std::string> specs[] = {
      {"h2o:budget=256", "h2o:budget=256,recent=128"},
      {"h2o:budget=7", "h2o:budget=7,recent=3"},
      {"h2o:budget=1", "h2o:budget=1,recent=0"},
      {"h2o:budget=2048,recent=auto", "h2o:budget=2048,recent=1024"},
      {"h2o:sinks=4", "h2o:budget=1024,recent=512,sinks=4"},
      {"h2o:budget=16,sinks=10", "h2o:budget=16,recent=6,sinks=10"},
      {"h2o:budget=16,sinks=16", "h2o:budget=16,recent=0,sinks=16"},
      {"h2o:budget=30%", "h2o:budget=30%,recent=512"},
  };
  for (const auto& [given, canonical] : specs) {
    const auto policy = make_policy(given);
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    EXPECT_EQ((*policy)->traits().spec, canonical);
    EXPECT_EQ((*make_policy(canonical))->traits().spec, canonical);
  }
  expect_refused("h2o:recent=half", {"recent=half", "auto or 0 to 2^40"});
}

TEST(TableSpecs, ValuesOutOfRangeAreToldTheRange) {
  for (const std::string value : {"-1", "x", "1.5"}) expect_refused("h2o:every=" + value, {"every", "0 to 2^40"});
  for (const std::string value : {"-1", "x", "1.5", "0.3"})
    expect_refused("h2o:recent=" + value, {"recent", value, "whole number", "0 to 2^40"});
  expect_refused("tova:pos=middle", {"pos=middle", "auto", "original", "compact"});
  expect_refused("tova:heads=apart", {"heads=apart", "together", "independent"});
  expect_refused("tova:recent=4", {"recent", "budget", "every", "pos", "heads"});
  for (const std::string value : {"1", "0.5", "-3", "nan", "inf", "1e301", "x", "1e999", "0x10", "4,", "4 "})
    expect_refused("lethe:tau=" + value, {"tau"});
  expect_refused("lethe:tau=1", {"tau=1", "a number", "above 1"});
  for (const std::string value : {"-0.1", "1.1", "nan", "x"}) {
    expect_refused("lethe:recent=" + value, {"recent=" + value, "0 to 1"});
    expect_refused("lethe:gamma=" + value, {"gamma=" + value, "0 to 1"});
  }
  expect_refused("lethe:segments=1", {"segments=1", "2 to 1000"});
  expect_refused("lethe:start=0", {"start=0", "1 to 2^40"});
  expect_refused("lethe:max=0", {"max=0", "1 to 2^40"});
  expect_refused("lethe:max=-", {"max=-"});
  expect_refused("lethe:max=10,sinks=8", {"sinks=8", "recent=0.3", "max=10"});
  expect_refused("random:seed=-1", {"seed", "0 to 2^62"});
  for (const std::string name : {"snapkv", "pyramidkv", "cake"}) {
    expect_refused(name + ":kernel=4", {name, "kernel=4", "odd", "3", "5"});
    expect_refused(name + ":kernel=0", {"kernel=0", "1 to 1023"});
    expect_refused(name + ":budget=15", {"window=16", "budget=15"});
    expect_refused(name + ":window=0", {"window=0", "2^24"});
    expect_refused(name + ":slack=2", {"slack", "window", "kernel"});
    expect_refused(name + ":heads=together", {"heads", "window", "kernel"});
    EXPECT_TRUE(make_policy(name + ":budget=32").ok());
  }
  expect_refused("cake:window=1", {"window=1", "2 to 2^24"});
  expect_refused("cake:tau1=0", {"tau1=0", "0.01 to 1000"});
  expect_refused("pyramidkv:beta=0", {"beta=0", "0.01 to 10^6"});
  expect_refused("snapkv:pool=sum", {"pool=sum", "avg", "max"});
  expect_refused("cascade:size=10", {"n=4", "size=10", "multiple of 4"});
  expect_refused("cascade:n=17", {"n=17", "1 to 16"});
  expect_refused("cascade:size=3", {"size=3", "n=4"});
  expect_refused("cascade:accept=0", {"accept=0", "1 to 1024"});
  expect_refused("cascade:gamma=1", {"gamma=1", "auto", "0 up to below 1"});
  expect_refused("cascade:gamma=Auto", {"gamma=Auto", "auto"});
  expect_refused("cascade:select=yes", {"select=yes", "on", "off"});
  expect_refused("cascade:reduce=min", {"reduce=min", "mean", "sum", "max", "median"});
  expect_refused("cascade:pos=auto", {"pos", "size", "gamma"});
}

// Any value within its range, for some of the options.
std::string random_spec(const PolicyInfo& info, std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
  std::string spec(info.name);
  char separator = ':';
  for (const PolicyOption& option : info.options) {
    if (draw(0, 2) == 0) continue;
    std::string value(option.default_value);
    if (option.name == "budget") {
      value =
          draw(0, 1) == 0 ? fmt::format("{}", draw(100, 300)) : fmt::format("{}.{}%", draw(1, 99), draw(0, 9999) / 10);
    } else if (option.name == "recent" && info.name == "lethe") {
      value = fmt::format("0.{}", draw(0, 9));
    } else if (option.name == "recent" || option.name == "sinks") {
      value = fmt::format("{}", draw(0, 50));
    } else if (option.name == "every") {
      value = fmt::format("{}", draw(1, 80));
    } else if (option.name == "pos") {
      value = std::vector<std::string>{"auto", "original", "compact"}[draw(0, 2)];
    } else if (option.name == "fit") {
      value = std::vector<std::string>{"output", "mass", "off"}[draw(0, 2)];
    } else if (option.name == "share" && info.name == "kvzip") {
      value = std::vector<std::string>{"model", "layer", "head"}[draw(0, 2)];
    } else if (option.name == "repeat") {
      value = fmt::format("{}", draw(64, 300));
    } else if (option.name == "most") {
      value = std::vector<std::string>{"0", "1.5", "2"}[draw(0, 2)];
    } else if (option.name == "share") {
      value = std::vector<std::string>{"head", "ada"}[draw(0, 1)];
    } else if (option.name == "agg") {
      value = draw(0, 1) == 0 ? option.default_value : "max";
    } else if (option.name == "value") {
      value = std::vector<std::string>{"off", "wo"}[draw(0, 1)];
    } else if (option.name == "norm") {
      value = std::vector<std::string>{"on", "off", "wo"}[draw(0, 2)];
    } else if (option.name == "prompt") {
      value = std::vector<std::string>{"whole", "blocks"}[draw(0, 1)];
    } else if (option.name == "chunk") {
      value = fmt::format("{}", 5 * draw(0, 3));
    } else if (option.name == "size") {
      value = fmt::format("{}", 48 * draw(1, 4));
    } else if (option.name == "n") {
      value = fmt::format("{}", std::vector<int>{1, 2, 3, 4, 6, 8}[draw(0, 5)]);
    } else if (option.name == "accept") {
      value = fmt::format("{}", draw(1, 5));
    } else if (option.name == "gamma") {
      value = fmt::format("0.{:03}", draw(0, 999));
    } else if (option.name == "reduce") {
      value = std::vector<std::string>{"mean", "sum", "max", "median"}[draw(0, 3)];
    } else if (option.name == "select") {
      value = std::vector<std::string>{"on", "off"}[draw(0, 1)];
    } else if (option.name == "tau") {
      value = fmt::format("{}.{}", draw(2, 60), draw(0, 99));
    } else if (option.name == "window") {
      value = fmt::format("{}", draw(2, 40));
    } else if (option.name == "kernel") {
      value = fmt::format("{}", 2 * draw(0, 5) + 1);
    } else if (option.name == "pool") {
      value = std::vector<std::string>{"avg", "max"}[draw(0, 1)];
    } else if (option.name == "beta" || option.name == "tau1" || option.name == "tau2") {
      value = fmt::format("{}.{:02}", draw(1, 9), draw(0, 99));
    } else if (option.name == "segments") {
      value = fmt::format("{}", draw(2, 20));
    } else if (option.name == "start" || option.name == "max") {
      value = fmt::format("{}", draw(10, 150));
    } else if (option.name == "seed") {
      value = fmt::format("{}", random() >> 2);
    } else if (option.name == "heads") {
      value = std::vector<std::string>{"together", "independent"}[draw(0, 1)];
    }
    spec += fmt::format("{}{}={}", separator, option.name, value);
    separator = ',';
  }
  return spec;
}

TEST(TableSpecs, TheCanonicalSpecMakesAnEqualPolicy) {
  const TableLayout kLayout{.layers = 2, .per_layer = 2, .heads = 2, .head_dim = 4};
  std::mt19937_64 random(17);
  int made = 0;
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only) continue;
    auto usual = make_policy(info->name);
    ASSERT_TRUE(usual.ok()) << info->name;
    if (!(*usual)->traits().compacts) continue;
    for (int round = 0; round < 30; ++round) {
      const std::string given = random_spec(*info, random);
      SCOPED_TRACE(given);
      auto parsed = make_policy(given);
      if (!parsed.ok()) {
        const std::string& message = parsed.status().message();
        EXPECT_TRUE(
            message.find("above budget") != std::string::npos || message.find("nothing to drop") != std::string::npos ||
            message.find("cannot share") != std::string::npos || message.find("omit") != std::string::npos ||
            message.find("belongs to") != std::string::npos || message.find("without most=") != std::string::npos)
            << message;
        continue;
      }
      ++made;
      const auto policy = std::move(*parsed);
      const auto again = test::policy_of_tables(policy->traits().spec, kLayout);
      ASSERT_NE(again, nullptr);
      EXPECT_EQ(again->traits().spec, policy->traits().spec);
      EXPECT_EQ(again->bound(), policy->bound());
      EXPECT_EQ(again->traits().scope, policy->traits().scope);
      EXPECT_EQ(again->traits().positions, policy->traits().positions);
      EXPECT_EQ(reductions_of(*again), reductions_of(*policy));
      policy->begin(kLayout);
      test::TableDriver first(*policy, kLayout, test::skewed_mass(static_cast<std::uint64_t>(round)));
      test::TableDriver second(*again, kLayout, test::skewed_mass(static_cast<std::uint64_t>(round)));
      for (const test::PassShape& shape : test::conversation({120, 60, 30, 20}, 32)) {
        first.pass(shape.rows, shape.prompt, shape.prompt_left);
        second.pass(shape.rows, shape.prompt, shape.prompt_left);
      }
      for (int t = 0; t < kLayout.tables(); ++t) ASSERT_EQ(first.held(t), second.held(t));
    }
  }
  EXPECT_GT(made, 40);
}

TEST(TableSpecs, ABudgetThatCoversEverythingDropsNothing) {
  for (const std::string spec :
       {"h2o:budget=200,recent=100", "h2o:budget=100%,recent=0", "tova:budget=200", "tova:budget=100%",
        "cascade:size=800,n=4,sinks=0", "lethe:start=200", "random:budget=200", "random:budget=100%",
        "snapkv:budget=200", "pyramidkv:budget=200", "cake:budget=200", "cake:budget=100%"})
    for (const auto& schedule : test::schedules()) {
      SCOPED_TRACE(spec);
      const auto policy = test::policy_of_tables(spec);
      test::TableDriver driver(*policy, {}, test::random_mass(3));
      for (const test::PassShape& shape : schedule) {
        driver.pass(shape.rows, shape.prompt, shape.prompt_left);
        if (driver.next_id() > 200) break;
        ASSERT_EQ(driver.held().size(), static_cast<std::size_t>(driver.next_id()));
      }
    }
}

TEST(TableSpecs, MassThatIsNotANumberDoesNoHarm) {
  const auto mass = [](int, TokenIndex query, TokenIndex key) {
    return (query + key) % 5 == 0
               ? std::numeric_limits<double>::quiet_NaN()
               : test::hashed(1, 0, static_cast<std::uint64_t>(query), static_cast<std::uint64_t>(key));
  };
  const TableLayout kLayout{.head_dim = 4};
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only || !(*make_policy(info->name))->traits().compacts) continue;
    const std::string spec(info->name);
    const auto policy = test::policy_of_tables(spec, kLayout);
    test::TableDriver driver(*policy, kLayout, mass);
    driver.prompt(1500, 128);
    driver.generate(1200);
    if (policy->bound()) {
      EXPECT_LE(driver.most_seen(), *policy->bound()) << spec;
    }
  }
}

}  // namespace
}  // namespace kvasir
