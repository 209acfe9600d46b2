// Numbers within limits, against arithmetic on whole numbers: each text is scaled to a whole number of
// hundred-thousandths.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "grammar/grammar_support.h"
#include "grammar/sources/json_text.h"

namespace kvasir {
namespace {

using test::Follower;

constexpr std::int64_t kScale = 100'000;

std::string decimal(std::int64_t scaled, int places) {
  std::string digits = std::to_string(std::abs(scaled));
  digits.insert(0, digits.size() < 6 ? 6 - digits.size() : 0, '0');
  std::string text = digits.substr(0, digits.size() - 5);
  if (places > 0) text += "." + digits.substr(digits.size() - 5, static_cast<std::size_t>(places));
  return (scaled < 0 ? "-" : "") + text;
}

struct Limits {
  std::optional<std::int64_t> minimum, exclusive_minimum, maximum, exclusive_maximum, multiple;
  bool integer = false;

  std::string schema() const {
    std::string text = integer ? R"({"type":"integer")" : R"({"type":"number")";
    const auto add = [&](const char* name, const std::optional<std::int64_t>& value) {
      if (value) text += std::string(",\"") + name + "\":" + decimal(*value, integer ? 0 : 5);
    };
    add("minimum", minimum);
    add("exclusiveMinimum", exclusive_minimum);
    add("maximum", maximum);
    add("exclusiveMaximum", exclusive_maximum);
    add("multipleOf", multiple);
    return text + "}";
  }
  bool holds(std::int64_t value) const {
    return (!minimum || value >= *minimum) && (!exclusive_minimum || value > *exclusive_minimum) &&
           (!maximum || value <= *maximum) && (!exclusive_maximum || value < *exclusive_maximum) &&
           (!multiple || value % *multiple == 0);
  }
};

TEST(GrammarNumbers, AreThoseWithinTheLimits) {
  std::mt19937 random(5);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::int64_t held = 0, refused = 0;
  for (int i = 0; i < 400; ++i) {
    Limits limits;
    limits.integer = random() % 3 == 0;
    const std::int64_t range = std::int64_t{1} << pick(1, 32);
    const auto limit = [&] {
      const std::int64_t value = random() % 8 == 0 ? 0 : pick(-range, range);
      return limits.integer ? value / kScale * kScale : random() % 2 == 0 ? value : value / 1000 * 1000;
    };
    if (random() % 2) limits.minimum = limit();
    if (random() % 4 == 0) limits.exclusive_minimum = limit();
    if (random() % 2) limits.maximum = limit();
    if (random() % 4 == 0) limits.exclusive_maximum = limit();
    if (random() % 4 == 0)
      limits.multiple = limits.integer ? kScale * pick(1, 30)
                                       : std::int64_t{std::array{25'000, 50'000, 1'000, 150'000, 10'000}[random() % 5]};
    const auto machine = test::machine_of(test::schema_source(limits.schema()));
    // Values near the limits, near zero and anywhere.
    std::vector<std::int64_t> values = {0};
    for (const auto& near : {limits.minimum, limits.exclusive_minimum, limits.maximum, limits.exclusive_maximum})
      for (std::int64_t by : {-kScale, -1000L, -1L, 0L, 1L, 10L, kScale, 10 * kScale})
        if (near) values.push_back(*near + by);
    for (int n = 0; n < 60; ++n) values.push_back(pick(-2 * range, 2 * range));
    for (int n = 0; n < 20; ++n) values.push_back(pick(-range / kScale - 2, range / kScale + 2) * kScale);
    if (limits.multiple)
      for (int n = 0; n < 30; ++n) values.push_back(pick(-40, 40) * *limits.multiple);
    if (!machine.ok()) {
      EXPECT_EQ(machine.status().code(), StatusCode::kInvalidArgument) << machine.status().message();
      for (const std::int64_t value : values)
        if (value % kScale == 0 || !limits.integer) {
          EXPECT_FALSE(limits.holds(value)) << limits.schema() << " " << decimal(value, 5);
        }
      continue;
    }
    Follower follower(machine);
    for (const std::int64_t value : values)
      for (const int places : {0, 1, 2, 3, 5}) {
        std::int64_t unit = kScale;
        for (int p = 0; p < places; ++p) unit /= 10;
        const std::int64_t cut = value / unit * unit;
        if (cut == 0 && value < 0) continue;  // -0 is left out
        const bool want = limits.holds(cut) && (!limits.integer || places == 0);
        ASSERT_EQ(follower.matches(decimal(cut, places)), want) << decimal(cut, places) << " of " << limits.schema();
        (want ? held : refused) += 1;
      }
    for (const char* wrong : {"", "-", "00", "01", "-01", ".5", "1.", "+1", "0x1", " 1", "1 ", "--1", "NaN", "-00.5"})
      EXPECT_FALSE(follower.matches(wrong)) << wrong << " of " << limits.schema();
  }
  EXPECT_GT(held, 5000);
  EXPECT_GT(refused, 5000);
}

TEST(GrammarNumbers, LimitsMayBeLongAndFarApart) {
  const auto matches = [](const char* schema, const char* text) {
    return Follower(test::schema_source(schema)).matches(text);
  };
  const char* at_2_53 = R"({"type":"integer","minimum":9007199254740993,"maximum":9007199254740995})";
  EXPECT_FALSE(matches(at_2_53, "9007199254740992"));
  EXPECT_TRUE(matches(at_2_53, "9007199254740993"));
  EXPECT_FALSE(matches(at_2_53, "9007199254740996"));
  EXPECT_TRUE(matches(R"({"type":"number","minimum":1e60})", (std::string("1") + std::string(60, '0')).c_str()));
  EXPECT_FALSE(matches(R"({"type":"number","minimum":1e60})", std::string(60, '9').c_str()));
  EXPECT_TRUE(matches(R"({"type":"number","exclusiveMinimum":0,"maximum":1e-7})", "0.0000001"));
  EXPECT_FALSE(matches(R"({"type":"number","exclusiveMinimum":0,"maximum":1e-7})", "0.0000002"));
  EXPECT_FALSE(matches(R"({"type":"number","exclusiveMinimum":0,"maximum":1e-7})", "0"));
  EXPECT_TRUE(matches(R"({"type":"integer","multipleOf":1000})", "-123000"));
  EXPECT_FALSE(matches(R"({"type":"integer","multipleOf":1000})", "123100"));
  // The tighter of two limits that a double does not tell apart.
  const char* two = R"({"type":"integer","maximum":9007199254740993,"allOf":[{"maximum":9007199254740992}]})";
  EXPECT_TRUE(matches(two, "9007199254740992"));
  EXPECT_FALSE(matches(two, "9007199254740993"));
}

// The text always ends: a model that goes on with digits comes to a place where only an end is left.
TEST(GrammarNumbers, DecimalPlacesWithinLimitsAreBounded) {
  const std::string zeros19(19, '0'), zeros20(20, '0'), nines20(20, '9'), zeros24(24, '0');
  struct Case {
    const char* schema;
    std::vector<std::string> matching, refused;
  };
  const Case cases[] = {
      {R"({"type":"number","minimum":0})",
       {"0." + nines20, "12345." + nines20, "0." + zeros20},
       {"0." + nines20 + "9"}},
      {R"({"type":"number","maximum":0})", {"-0." + nines20, "-123." + nines20}, {"-0." + nines20 + "9"}},
      {R"({"type":"number","maximum":0.1})", {"0.1" + zeros19, "0.0" + std::string(19, '9')}, {"0.1" + zeros20}},
      {R"({"type":"number","exclusiveMinimum":0.1,"maximum":1})",
       {"0.1" + std::string(18, '0') + "1"},
       {"0.1" + zeros19}},
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-24})",
       {"0." + zeros24 + "1", "0." + zeros24 + "9"},
       {"0." + zeros24, "0." + zeros24 + "01", "0." + zeros24 + "10"}},
      {R"({"type":"number","multipleOf":0.5})", {"7.5" + zeros19}, {"7.5" + zeros20}},
      {R"({"type":"number","multipleOf":1e-25,"minimum":0})", {"0." + zeros24 + "3"}, {"0." + zeros24 + "30"}}};
  for (const Case& each : cases) {
    Follower follower(test::schema_source(each.schema));
    for (const std::string& text : each.matching) EXPECT_TRUE(follower.matches(text)) << text << " of " << each.schema;
    for (const std::string& text : each.refused) EXPECT_FALSE(follower.matches(text)) << text << " of " << each.schema;
  }
  // Zeros that can no longer become more than the limit are refused before the last of them.
  Follower above_zero(test::schema_source(R"({"type":"number","exclusiveMinimum":0})"));
  EXPECT_TRUE(above_zero.begins("0." + zeros19));
  EXPECT_FALSE(above_zero.begins("0." + zeros20));
}

TEST(GrammarNumbers, WhatCannotBeEnforcedIsRefused) {
  test::expect_refused(test::schema_source(R"({"type":"integer","multipleOf":9223372036854775808})"),
                       StatusCode::kUnsupported, "multipleOf");
  test::expect_refused(test::schema_source(R"({"type":"number","multipleOf":1e-90})"), StatusCode::kInvalidArgument,
                       "1e-90");
  for (const char* step : {"0", "-2", "0.0"})
    test::expect_refused(test::schema_source(std::string(R"({"type":"number","multipleOf":)") + step + "}"),
                         StatusCode::kInvalidArgument, "multipleOf");
  test::expect_refused(test::schema_source(R"({"type":"number","minimum":1e300})"), StatusCode::kInvalidArgument,
                       "1e+300");
  test::expect_refused(test::schema_source(R"({"type":"number","minimum":2,"maximum":1})"),
                       StatusCode::kInvalidArgument, "no value meets");
  test::expect_refused(test::schema_source(R"({"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2})"),
                       StatusCode::kInvalidArgument, "no value meets");
  test::expect_refused(test::schema_source(R"({"allOf":[{"multipleOf":2},{"multipleOf":3}],"type":"integer"})"),
                       StatusCode::kUnsupported, "multipleOf");
  test::expect_refused(test::schema_source(R"({"type":"number","minimum":"1"})"), StatusCode::kInvalidArgument,
                       "'minimum'");
}

// A number that would be rounded is named, wherever it stands; one inside a string is none.
TEST(GrammarNumbers, NumbersThatWouldBeRoundedAreRefused) {
  for (const char* number : {"0.29999999999999999999", "18446744073709551616", "-9223372036854775809",
                             "12345678901234567890123", "1.00000000000000000001e5"}) {
    for (const char* keyword : {"maximum", "const", "multipleOf"})
      test::expect_refused(test::schema_source(std::string("{\"") + keyword + "\":" + number + "}"),
                           StatusCode::kUnsupported, number);
    test::expect_refused(test::schema_source(std::string(R"({"title":"\"\\","enum":[1,)") + number + "]}"),
                         StatusCode::kUnsupported, number);
    test::expect_refused(test::schema_source(std::string("{\"const\":") + number + "}"), StatusCode::kUnsupported,
                         "15 significant digits");
  }
  for (const char* number : {"1e400", "-1e400", "1e-400", "1.2345678e-320"})
    test::expect_refused(test::schema_source(std::string("{\"const\":") + number + "}"), StatusCode::kUnsupported,
                         "out of range");
  for (const char* number : {"0.1", "0.30000000000000004", "18446744073709551615", "-9223372036854775808", "1e60",
                             "100.00", "1.5E+3", "0", "-0.0", "1000000000000000000000"})
    EXPECT_TRUE(test::machine_of(test::schema_source(std::string("{\"const\":") + number + "}")).ok()) << number;
  EXPECT_TRUE(test::machine_of(test::schema_source(R"({"const":"\"0.29999999999999999999"})")).ok());
}

TEST(GrammarNumbers, DecimalsCompareAndDivideExactly) {
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t a = std::int64_t(random() % 2'000'001) - 1'000'000,
                       b = std::int64_t(random() % 2'000'001) - 1'000'000;
    const auto first = grammar::parse_decimal(decimal(a, 5)), second = grammar::parse_decimal(decimal(b, 5));
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_EQ(compare(*first, *second) < 0, a < b) << a << " " << b;
    ASSERT_EQ(compare(*first, *second) == 0, a == b) << a << " " << b;
    const std::int64_t step = 1 + std::int64_t(random() % 40) * (random() % 2 ? 1 : 1000);
    const auto by = grammar::parse_decimal(decimal(step, 5));
    const auto multiple = is_multiple(*first, *by);
    ASSERT_TRUE(multiple.ok());
    ASSERT_EQ(*multiple, a % step == 0) << a << " " << step;
  }
}

}  // namespace
}  // namespace kvasir
