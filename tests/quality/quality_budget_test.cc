// Which option of a policy a promise of quality moves, and how far.
#include "quality/quality_budget.h"

#include <gtest/gtest.h>

namespace kvasir::test {
namespace {

Result<QualityBudget> budget_of(const char* spec, const QualityOptions& options = {}, std::int64_t text = 5000) {
  return QualityBudget::create(*PolicySpec::parse(spec), options, text);
}

TEST(QualityBudget, IsTheOptionThatHoldsTheSize) {
  struct Case {
    const char* spec;
    const char* option;
    std::int64_t first, least, most;
  };
  for (const Case& each : std::initializer_list<Case>{
           {"streaming:sinks=4,window=508", "window", 508, 64, 5008},
           {"streaming:sinks=4,cap=512", "cap", 512, 64, 5008},
           {"window:size=300", "size", 300, 64, 5008},
           {"h2o:budget=256,recent=100", "budget", 256, 112, 5008},
           {"tova:budget=40", "budget", 40, 40, 5008},
           {"random:budget=256", "budget", 256, 64, 5008},
           {"snapkv:budget=512,window=32", "budget", 512, 64, 5008},
           {"pyramidkv:budget=512", "budget", 512, 64, 5008},
           {"cake:budget=512", "budget", 512, 64, 5008},
           {"cascade:size=480,n=3", "size", 480, 96, 5040},
           {"lethe:max=512", "max", 512, 64, 5008},
           {"snapkv:budget=1024+lethe", "budget", 1024, 64, 5008},
           {"window:size=9000", "size", 9000, 64, 9008},
       }) {
    const auto budget = budget_of(each.spec);
    ASSERT_TRUE(budget.ok()) << each.spec << ": " << budget.status().message();
    EXPECT_EQ(budget->option(), each.option) << each.spec;
    EXPECT_EQ(budget->first(), each.first) << each.spec;
    EXPECT_EQ(budget->least(), each.least) << each.spec;
    EXPECT_EQ(budget->most(), each.most) << each.spec;
    if (each.option == std::string_view("cap")) continue;  // its canonical form is a window
    for (const std::int64_t size : {budget->least(), budget->first(), budget->most()})
      EXPECT_NE(budget->policy(size)->traits().spec.find(std::to_string(size)), std::string::npos) << each.spec;
  }
  const auto streaming = budget_of("streaming:sinks=4,window=508");
  EXPECT_EQ(streaming->policy(1024)->traits().spec, "streaming:sinks=4,window=1024");
}

TEST(QualityBudget, KeepsToTheRangeThatIsAskedForAndToWhatWorks) {
  const auto asked = budget_of("window:size=300", {.least = 200, .most = 1000});
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_EQ(asked->least(), 200);
  EXPECT_EQ(asked->most(), 1000);
  const auto works = [](const RetentionPolicy& policy) { return policy.bound().value_or(0) <= 1234; };
  const auto limited = QualityBudget::create(*PolicySpec::parse("window:size=304"), {}, 5000, works);
  ASSERT_TRUE(limited.ok()) << limited.status().message();
  EXPECT_LE(*limited->policy(limited->most())->bound(), 1234);
  EXPECT_GT(*limited->policy(limited->most())->bound(), 1234 - 32);
}

TEST(QualityBudget, RefusesWhatItCannotMove) {
  for (const char* spec :
       {"full", "quest:budget=512", "synckv", "h2o:budget=30%", "lethe", "snapkv:budget=64+h2o:budget=64"}) {
    const Status status = budget_of(spec).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_EQ(status.settings(), std::vector<std::string_view>{"policy"}) << spec;
    EXPECT_NE(status.message().find("streaming:sinks=4,window=508"), std::string::npos) << "no way out is named";
  }
  for (const QualityOptions& options : {QualityOptions{.most = 100}, QualityOptions{.least = 400}}) {
    const Status status = budget_of("window:size=300", options).status();
    EXPECT_EQ(status.settings(), std::vector<std::string_view>{"quality"});
  }
}

}  // namespace
}  // namespace kvasir::test
