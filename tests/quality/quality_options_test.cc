// Options of a promise of quality as text.
#include <gtest/gtest.h>

#include <limits>

#include "kvasir/quality.h"

namespace kvasir::test {
namespace {

TEST(QualityOptions, AreReadFromText) {
  const Result<QualityOptions> few = parse_quality("kl=0.05");
  ASSERT_TRUE(few.ok()) << few.status().message();
  EXPECT_EQ(*few, (QualityOptions{.kl = 0.05}));
  const Result<QualityOptions> all = parse_quality("most=4096,kl=1e-3,least=128,stride=4,every=64");
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(*all, (QualityOptions{.kl = 1e-3, .every = 64, .stride = 4, .least = 128, .most = 4096}));
}

TEST(QualityOptions, MistakesAreNamedInOneLine) {
  for (const auto& [text, names] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "kl=0.05"},
           {"every=16", "kl=0.05"},
           {"kl=0", "kl=0.05"},
           {"kl=-1", "kl=-1"},
           {"kl=nan", "kl=nan"},
           {"kl=inf", "kl=inf"},
           {"kl=much", "'kl=much'"},
           {"kl", "'kl'"},
           {"kl=0.1,kl=0.2", "twice"},
           {"kl=0.1,stirde=4", "did you mean 'stride'?"},
           {"kl=0.1,every=0", "every=0"},
           {"kl=0.1,every=16,stride=17", "stride=17"},
           {"kl=0.1,stride=0", "stride=0"},
           {"kl=0.1,least=-1", "least=-1"},
           {"kl=0.1,least=9,most=8", "least=9"},
           {"kl=0.1,most=1.5", "'most=1.5'"},
       }) {
    const Status status = parse_quality(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(names), std::string::npos) << text << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_EQ(status.settings(), std::vector<std::string_view>{"quality"}) << text;
  }
  EXPECT_FALSE(check_quality({.kl = std::numeric_limits<double>::quiet_NaN()}).ok());
}

}  // namespace
}  // namespace kvasir::test
