// Regular expressions, against std::regex where both read them alike.
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "grammar/grammar_support.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using test::expect_refused;
using test::Follower;
using test::regex_source;

std::string random_regex(std::mt19937& random, int depth) {
  const auto of = [&](std::initializer_list<const char*> all) {
    return std::string(all.begin()[random() % all.size()]);
  };
  if (depth == 0 || random() % 4 == 0)
    return of({"a", "b", "c", "-", "1", "\\.", "[ab]", "[^a]", "[a-c1-3]", "\\d", "\\w", ".", "\\s", "[\\w-]", "ab",
               " ", "\\D", "\\W"});
  switch (random() % 4) {
    case 0: return random_regex(random, depth - 1) + random_regex(random, depth - 1);
    case 1: return "(" + random_regex(random, depth - 1) + "|" + random_regex(random, depth - 1) + ")";
    case 2:
      return "(?:" + random_regex(random, depth - 1) + ")" +
             of({"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??"});
    default: return random_regex(random, depth - 1) + random_regex(random, depth - 1);
  }
}

std::string random_ascii(std::mt19937& random) {
  std::string text;
  for (std::size_t size = random() % 9; size > 0; --size) text += "abcabc-1. 2Z"[random() % 12];
  return text;
}

TEST(GrammarRegex, WholeTextsMatchAsInStdRegex) {
  std::mt19937 random(11);
  int matched = 0;
  for (int i = 0; i < 250; ++i) {
    const std::string expression = random_regex(random, 3);
    const std::regex oracle(expression, std::regex::ECMAScript);
    Follower follower(regex_source(expression));
    for (int n = 0; n < 60; ++n) {
      const std::string text = random_ascii(random);
      const bool want = std::regex_match(text, oracle);
      ASSERT_EQ(follower.matches(text), want) << expression << " on '" << text << "'";
      matched += want;
    }
  }
  EXPECT_GT(matched, 500);
}

TEST(GrammarRegex, PatternsOfSchemasMatchAnywhereUnlessAnchored) {
  std::mt19937 random(12);
  int matched = 0;
  for (int i = 0; i < 150; ++i) {
    std::string expression;
    for (std::size_t parts = 1 + random() % 2; parts > 0; --parts) {
      if (random() % 2) expression += "^";
      expression += "(?:" + random_regex(random, 2) + ")";
      if (random() % 2) expression += "$";
      if (parts > 1) expression += "|";
    }
    if (random() % 4 == 0) expression = "(" + expression + ")";
    const std::regex oracle(expression, std::regex::ECMAScript);
    std::string quoted;
    for (const char c : expression) quoted += c == '\\' ? "\\\\" : std::string(1, c);
    Follower follower(test::schema_source(R"({"type":"string","pattern":")" + quoted + "\"}"));
    for (int n = 0; n < 60; ++n) {
      const std::string text = random_ascii(random);
      const bool want = std::regex_search(text, oracle);
      ASSERT_EQ(follower.matches('"' + text + '"'), want) << expression << " on '" << text << "'";
      matched += want;
    }
  }
  EXPECT_GT(matched, 500);
}

TEST(GrammarRegex, ReadsWhatEcmaScriptDoes) {
  struct Case {
    const char* expression;
    std::vector<std::string> matching, others;
  };
  const Case cases[] = {
      {"", {""}, {"a"}},
      {"a|", {"a", ""}, {"b"}},
      {"^abc$", {"abc"}, {"abcd"}},
      {"^a|b$", {"a", "b"}, {"ab"}},
      {"(?<year>\\d{4})", {"2026"}, {"202"}},
      {"(?P<y>x)", {"x"}, {"y"}},
      {"\\x41\\u0042\\u{43}\\u{1F600}", {"ABC\U0001F600"}, {"ABC"}},
      {"\\uD83D\\uDE00", {"\U0001F600"}, {""}},
      {"[\\u00e0-\\u00ff]+", {"éàü"}, {"e"}},
      {"\\p{Lu}\\p{L}*", {"Éa", "A"}, {"aA", "1"}},
      {"\\P{L}", {"1", "-"}, {"a", "é"}},
      {"[^]", {"\n", "a"}, {""}},
      {"[a\\-z]", {"a", "-", "z"}, {"b"}},
      {"[-a]|[a-]", {"-", "a"}, {"b"}},
      {"[\\]\\\\]", {"]", "\\"}, {"["}},
      {"[.*+]", {".", "*", "+"}, {"a"}},
      {"a{2}b{0}", {"aa"}, {"aab", "a"}},
      {"x{1,2}{2}", {"xx", "xxx", "xxxx"}, {"x", "xxxxx"}},
      {"a{b", {"a{b"}, {"ab"}},
      {"}]", {"}]"}, {"}"}},
      {".", {"a", "é", "\U0001F600", "\t"}, {"\n", "\r", "\u2028", "\u2029", "", "ab"}},
      {"\\s", {" ", "\t", "\n", "\v"}, {"a", "\u00a0"}},
      {"\\S", {"a", "é"}, {" ", "\u00a0", "\u2003", "\ufeff"}},
      {"\\D", {"a", "-"}, {"1", "\u0661"}},
      {"\\W", {"-", " "}, {"a", "_", "é"}},
      {"[^\\W]", {"a", "_"}, {"é", "-"}},
      {"[^\\S]", {" ", "\t"}, {"a", "\x01", "\u00a0"}},
      {"[^\\D]", {"1"}, {"\u0661", "a"}},
      {"[^\\w]", {"-"}, {"é", "a"}},
      {"[^\\d\\s]", {"a"}, {"1", "\u0661", "\u2003"}},
      {"\\t\\n\\r\\f\\v\\0", {std::string("\t\n\r\f\v\0", 6)}, {"t"}},
      {"\\/\\-\\_\\@", {"/-_@"}, {"/"}},
      {"(((a)))", {"a"}, {"b"}},
      {"(|a)(b|)", {"", "a", "b", "ab"}, {"ba"}},
  };
  for (const Case& each : cases) {
    Follower follower(regex_source(each.expression));
    for (const std::string& text : each.matching)
      EXPECT_TRUE(follower.matches(text)) << each.expression << " on " << testing::PrintToString(text);
    for (const std::string& text : each.others)
      EXPECT_FALSE(follower.matches(text)) << each.expression << " on " << testing::PrintToString(text);
  }
}

TEST(GrammarRegex, RefusesByName) {
  for (const auto& [expression, part] :
       std::initializer_list<std::pair<const char*, const char*>>{{"(?=a)", "look-around"},
                                                                  {"(?!a)b", "look-around"},
                                                                  {"(?<=a)b", "look-around"},
                                                                  {"(?<!a)b", "look-around"},
                                                                  {"(a)\\1", "back reference"},
                                                                  {"\\bword\\b", "word boundary"},
                                                                  {"(?i)a", "flag"},
                                                                  {"a++", "possessive"},
                                                                  {"a^b", "anchor '^'"},
                                                                  {"a$b", "anchor '$'"},
                                                                  {"x(^a)", "anchor '^'"},
                                                                  {"[[:alpha:]]", "POSIX"},
                                                                  {"\\p{Script=Greek}", "category"},
                                                                  {"\\A", "escape"},
                                                                  {"\\q", "escape"},
                                                                  {"a{,3}", "'{,'"}})
    expect_refused(regex_source(expression), StatusCode::kUnsupported, part);
  for (const auto& [expression, part] :
       std::initializer_list<std::pair<const char*, const char*>>{{"(a", "at byte 2"},
                                                                  {"a)", "')'"},
                                                                  {"[a", "']'"},
                                                                  {"*a", "repetition of nothing"},
                                                                  {"a{3,2}", "reversed"},
                                                                  {"[z-a]", "reversed"},
                                                                  {"\\", "at the end"},
                                                                  {"\\x4", "hexadecimal"},
                                                                  {"\\u{110000}", "U+10FFFF"},
                                                                  {"[]", "empty class"},
                                                                  {"\xFF", "UTF-8"},
                                                                  {"\\p", "braces"}})
    expect_refused(regex_source(expression), StatusCode::kInvalidArgument, part);
  expect_refused(regex_source("a{10001}"), StatusCode::kResourceExhausted, "10000 times");
  expect_refused(regex_source(std::string(300, '(') + "a" + std::string(300, ')')), StatusCode::kResourceExhausted,
                 "groups");
  expect_refused(regex_source(std::string(70'000, 'a')), StatusCode::kResourceExhausted, "65536");
  expect_refused(regex_source("[^\\s\\S]"), StatusCode::kInvalidArgument, "no text matches");
}

}  // namespace
}  // namespace kvasir
