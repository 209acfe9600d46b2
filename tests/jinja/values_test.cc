// White space as Python knows it, JSON given by a caller, and where loops wrote about the caller's dictionaries.
#include <gtest/gtest.h>

#include <string>

#include "jinja/json_value.h"
#include "render.h"

namespace kvasir::jinja {
namespace {

std::string stripped(std::string_view text, const std::string* characters = nullptr) {
  const Range kept = strip(text, characters, true, true);
  return std::string(text.substr(kept.from, kept.size));
}

TEST(JinjaText, StripTakesUnicodeWhiteSpace) {
  EXPECT_EQ(
      stripped(" \t\n\v\f\r\x1C\x1D\x1E\x1F\u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000 a b\u3000"),
      "a b");
  EXPECT_EQ(stripped("\u200Ba\uFEFF"), "\u200Ba\uFEFF");
  EXPECT_EQ(stripped("\xE2\x80 \xA0"), "\xE2\x80 \xA0") << "no characters";
  EXPECT_EQ(stripped(" \u2003 "), "");
  const std::string line = "\n";
  EXPECT_EQ(stripped("\n\n a\n", &line), " a");
}

// Returns the value as Python shows it, or "none".
std::string json(std::string_view text) {
  const auto value = parse_json(text);
  return value ? rendered("{{ [x] }}", {{"x", *value}}) : "none";
}

TEST(JinjaJson, ReadsWhatIsJson) {
  EXPECT_EQ(json(" {\"a\": [1, -2.5e1, true, null], \"b\": {}} "), "[{'a': [1, -25.0, True, None], 'b': {}}]");
  EXPECT_EQ(json(R"("\u00e9\n\ud83e\udd8a\/")"), "['é\\n🦊/']");
  EXPECT_EQ(json("[ ]"), "[[]]");
  EXPECT_EQ(json("0"), "[0]");
  EXPECT_EQ(json(R"({"a": 1, "a": 2})"), "[{'a': 2}]");
  EXPECT_EQ(json(R"({"b": 1, "a": 2, "b": {"z": 3, "y": 4}})"), "[{'b': {'z': 3, 'y': 4}, 'a': 2}]");
  EXPECT_EQ(json("[9223372036854775807, -9223372036854775808]"), "[[9223372036854775807, -9223372036854775808]]");
  EXPECT_EQ(json("9223372036854775808"), "[9.223372036854776e+18]");
  EXPECT_EQ(json("12345678901234567890"), "[1.2345678901234567e+19]");
  EXPECT_EQ(json("123456789012345678901234567890"), "[1.2345678901234568e+29]");
  for (const char* bad :
       {"",       "high", "01",  "1.",      "-",           "+1",          ".5",         "1e",  "[1,]",   "{\"a\"}",
        "{a: 1}", "'a'",  "\"a", "\"\\x\"", "\"\\ud83e\"", "\"\\udd8a\"", "true false", "nul", "\"\n\"", "1e999"})
    EXPECT_EQ(json(bad), "none") << bad;
  EXPECT_EQ(json(std::string_view("1\0", 2)), "none");
  const auto nested = [](std::size_t lists) { return json(std::string(lists, '[') + std::string(lists, ']')); };
  EXPECT_NE(nested(101), "none");
  EXPECT_EQ(nested(102), "none") << "too deep";
  EXPECT_EQ(nested(1'000'000), "none");
  EXPECT_EQ(json(std::string(1'000'000, '[')), "none");
}

TEST(JinjaTrace, TellsWhereEachElementIsWritten) {
  Trace trace;
  for (const char* name : {"a", "b", "c"}) trace.subjects.push_back(Value::dict({{"name", Value::string(name)}}));
  const auto traced = [&](const char* source) {
    const auto text = render(*parse(source), {{"l", Value::list(trace.subjects)}}, kNow, {}, &trace);
    EXPECT_TRUE(text.ok()) << text.status().message();
    std::string shown;
    for (const Trace::Loop& loop : trace.loops) {
      for (const Trace::Round& round : loop.rounds)
        shown += std::to_string(round.subject) + "@" + std::to_string(round.from) + " ";
      shown += "end@" + std::to_string(loop.end) + ";";
    }
    return shown;
  };
  EXPECT_EQ(traced("-{% for m in l %}<{{ m.name }}>{% endfor %}-"), "0@1 1@4 2@7 end@10;");
  EXPECT_EQ(traced("{% for m in l[1:] %}<{{ m.name }}>{% endfor %}-"), "1@0 2@3 end@6;");
  EXPECT_EQ(traced("{% for i in range(3) %}<{% set m = l[i] %}{{ m.name }}{% set o = l[0] %}>{% endfor %}"),
            "0@0 1@3 2@6 end@9;");
  EXPECT_EQ(traced("{% for m in l %}{% for n in l %}{{ n.name }}{% endfor %}{% break %}{% endfor %}"),
            "0@0 1@1 2@2 end@3;0@0 end@3;");
  EXPECT_EQ(traced("{% set t %}{% for m in l %}{{ m.name }}{% endfor %}{% endset %}{{ t }}"), "") << "not directly";
  EXPECT_EQ(traced("{% for m in [{'name': 'a'}] %}{{ m.name }}{% endfor %}"), "") << "an equal one";
}

}  // namespace
}  // namespace kvasir::jinja
