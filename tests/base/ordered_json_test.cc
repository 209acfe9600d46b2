// JSON whose keys stay in order: as the library's own parser reads it, in linear time.
#include "base/ordered_json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace kvasir {
namespace {

using End = ParsedOrderedJson::End;

TEST(OrderedJson, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {"null", "true", "-5", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}", R"([1,[2,{"b":[]}],{}])",
        R"({"b":1,"a":{"z":[],"y":2},"c":"d"})", R"({"a":1,"b":2,"a":3})"}) {
    const ParsedOrderedJson parsed = parse_ordered_json(text);
    EXPECT_EQ(parsed.end, End::kDone) << text;
    EXPECT_EQ(parsed.value.dump(), nlohmann::ordered_json::parse(text).dump());
  }
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "nul", "1 2", "\"\xff\"", "1e999"}) {
    const ParsedOrderedJson parsed = parse_ordered_json(text);
    EXPECT_EQ(parsed.end, End::kMalformed) << text;
    EXPECT_TRUE(parsed.value.is_discarded());
    EXPECT_FALSE(parsed.error.empty());
    EXPECT_NE(parsed.error_id, 0);
  }
}

TEST(OrderedJson, LimitsHold) {
  EXPECT_EQ(parse_ordered_json("[[]]", {.levels = 2}).end, End::kDone);
  EXPECT_EQ(parse_ordered_json("[[[]]]", {.levels = 2}).end, End::kTooDeep);
  EXPECT_EQ(parse_ordered_json(R"({"a":{"b":1}})", {.keys = 2}).end, End::kDone);
  EXPECT_EQ(parse_ordered_json(R"({"a":{"b":1},"c":2})", {.keys = 2}).end, End::kTooManyKeys);
}

TEST(OrderedJson, RepeatedKeysAreRefusedOnRequest) {
  const ParsedOrderedJson parsed = parse_ordered_json(R"([{"a":1},{"b":{"a":1},"c":2,"b":3}])", {.unique = true});
  EXPECT_EQ(parsed.end, End::kRepeatedKey);
  EXPECT_EQ(parsed.error, "b");
  EXPECT_TRUE(parsed.value.is_discarded());
  EXPECT_EQ(parse_ordered_json(R"([{"a":{"a":1}},{"a":1}])", {.unique = true}).end, End::kDone);
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_EQ(parse_ordered_json(many + R"("last":0})", {.unique = true}).end, End::kDone);
  EXPECT_EQ(parse_ordered_json(many + R"("k17":0})", {.unique = true}).error, "k17");
  EXPECT_EQ(parse_ordered_json(many + R"("k17":0})").end, End::kDone);
}

TEST(OrderedJson, LargeObjectsKeepTheirOrderAndTakeLinearTime) {
  constexpr int kKeys = 200'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i) text += "\"p" + std::to_string(kKeys - i) + "\":" + std::to_string(i) + ",";
  text += "\"p7\":\"again\"}";
  const auto start = std::chrono::steady_clock::now();
  const ParsedOrderedJson parsed = parse_ordered_json(text);
  ASSERT_EQ(parsed.end, End::kDone);
  EXPECT_EQ(parsed.value.size(), static_cast<std::size_t>(kKeys));
  EXPECT_EQ(parsed.value.begin().key(), "p200000");
  EXPECT_EQ(std::prev(parsed.value.end()).key(), "p1");
  EXPECT_EQ(parsed.value.find("p7").value(), "again") << "the last value of a key counts";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "comparing all keys takes minutes";
}

}  // namespace
}  // namespace kvasir
