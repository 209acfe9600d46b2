// GBNF, in the forms that llama.cpp's documentation and grammars use.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/grammar_support.h"

namespace kvasir {
namespace {

using test::expect_refused;
using test::Follower;
using test::gbnf_source;

TEST(GrammarGbnf, MatchesWhatItSays) {
  struct Case {
    const char* grammar;
    std::vector<std::string> matching, others;
  };
  const Case cases[] = {
      {R"(root ::= "a")", {"a"}, {"", "b", "aa"}},
      {R"(root ::= "yes" | "no" | "")", {"yes", "no", ""}, {"y", "yesno"}},
      {"root ::= [a-c]+ [^a-c\\n]*", {"abc", "aXY", "c"}, {"", "X", "aXb"}},
      {"root ::= (\"x\" | \"y\" \"z\"){2,3}", {"xx", "xyz", "yzyzx"}, {"x", "xxxx"}},
      {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,1} \"d\"{,2}", {"aab", "aabbcdd"}, {"ab", "aabddd"}},
      {"root ::= item (\",\" ws item)*\nitem ::= [0-9]+\nws ::= \" \"?\n", {"1", "1,2", "1, 23"}, {"", "1,", "1,  2"}},
      {"root ::= \"a\" |\n  \"b\"\n", {"a", "b"}, {"ab"}},
      {"root ::= \"a\"\n  | \"b\" # why\n  | \"c\"\n# a comment\n", {"a", "b", "c"}, {"d"}},
      {"root  ::= (\n  \"a\"\n  \"b\"\n)\n", {"ab"}, {"a"}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\"\\\\\"", {"A\xC3\xA9\U0001F600\n\t\"\\"}, {"A"}},
      {"root ::= [\\]\\-\\\\^a]", {"]", "-", "\\", "^", "a"}, {"b"}},
      {"root ::= .", {"a", "\n", "é"}, {"", "ab"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
      {"root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"a\" | \"b\"", {"a", "aba", "ababa"}, {"ab", ""}},
      {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9] | \"(\" expr \")\"",
       {"1", "1+(2+3)", "((4))"},
       {"1+", "(1"}},
      {"root-1 ::= \"x\"\nroot ::= root-1 under_score\nunder_score ::= \"y\"", {"xy"}, {"x"}},
      {"root ::= a a\na ::= \"\" | \"x\"", {"", "x", "xx"}, {"xxx"}},
      {"root ::= \"é\" [à-ü]", {"éè"}, {"é"}},
      {"root ::= <notacontroltoken> \"x\"", {"<notacontroltoken>x"}, {"x"}},
      {"\n\n  root ::= \"crlf\"\r\n", {"crlf"}, {""}},
      {"root ::= \"a\"?*", {"", "a", "aa"}, {"b"}},
  };
  for (const Case& each : cases) {
    Follower follower(gbnf_source(each.grammar));
    for (const std::string& text : each.matching)
      EXPECT_TRUE(follower.matches(text)) << each.grammar << "\non " << text;
    for (const std::string& text : each.others) EXPECT_FALSE(follower.matches(text)) << each.grammar << "\non " << text;
  }
}

TEST(GrammarGbnf, ErrorsNameLineAndColumn) {
  for (const auto& [grammar, part] :
       std::initializer_list<std::pair<const char*, const char*>>{{"root ::= \"a", "line 1, column 12"},
                                                                  {"root ::= \"a\"\nother = \"b\"", "line 2, column 7"},
                                                                  {"root ::= [a", "']'"},
                                                                  {"root ::= (\"a\"", "')'"},
                                                                  {"root ::= \"a\" )", "end of the line"},
                                                                  {"root ::= \"\\q\"", "escape"},
                                                                  {"root ::= \"a\"{3,2}", "reversed"},
                                                                  {"root ::= \"a\"{x}", "number"},
                                                                  {"root ::= missing", "'missing'"},
                                                                  {"start ::= \"a\"", "'root'"},
                                                                  {"root ::= \"a\"\nroot ::= \"b\"", "second time"},
                                                                  {"root ::= [z-a]", "reversed"},
                                                                  {"", "'root'"},
                                                                  {"root ::= <unclosed", "'>'"},
                                                                  {"root ::= \"\xFF\"", "UTF-8"}})
    expect_refused(gbnf_source(grammar), StatusCode::kInvalidArgument, part);
  for (const auto& [grammar, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"root ::= <[5]>", "by number"}, {"root ::= !<x>", "negated"}})
    expect_refused(gbnf_source(grammar), StatusCode::kUnsupported, part);
  expect_refused(gbnf_source("root ::= \"a\"{10001}"), StatusCode::kResourceExhausted, "10000");
  expect_refused(gbnf_source("root ::= " + std::string(300, '(') + "\"a\"" + std::string(300, ')')),
                 StatusCode::kResourceExhausted, "parentheses");
  expect_refused(gbnf_source(std::string((1 << 20) + 1, ' ')), StatusCode::kResourceExhausted, "1048576");
}

TEST(GrammarGbnf, LeftRecursionIsRefusedByName) {
  for (const auto& [grammar, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"root ::= root \"a\" | \"b\"", "'root'"},
           {"root ::= a\na ::= b \"x\" | \"y\"\nb ::= a \"z\" | \"w\"", "left recursion"},
           {"root ::= \"x\"? root \"a\" | \"b\"", "'root'"},
           {"root ::= \"q\" a\na ::= empty a \"z\" | \"w\"\nempty ::= \"\" | \"e\"", "'a'"},
           {"root ::= (root)* \"a\"", "'root'"}})
    expect_refused(gbnf_source(grammar), StatusCode::kInvalidArgument, part);
  // Recursion that no text can end matches nothing.
  expect_refused(gbnf_source("root ::= \"a\" root"), StatusCode::kInvalidArgument, "no text matches");
  // Dead alternatives are left out, also those with left recursion.
  EXPECT_TRUE(Follower(gbnf_source("root ::= \"a\" | dead\ndead ::= \"b\" dead")).matches("a"));
  EXPECT_FALSE(Follower(gbnf_source("root ::= \"a\" | dead\ndead ::= \"b\" dead")).begins("b"));
}

TEST(GrammarGbnf, ManyRulesAreReadInTime) {
  std::string grammar = "root ::= r0\n";
  for (int i = 0; i < 20'000; ++i) grammar += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + "\n";
  grammar += "r20000 ::= \"b\"\n";
  EXPECT_TRUE(Follower(gbnf_source(grammar)).matches(std::string(20'000, 'a') + "b"));
}

}  // namespace
}  // namespace kvasir
