// JSON Schema, keyword by keyword: texts that a grammar matches, and texts that it does not.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include "grammar/grammar_support.h"

namespace kvasir {
namespace {

using test::expect_refused;
using test::Follower;
using test::schema_source;

struct Case {
  const char* schema;
  std::vector<std::string> matching, others;
};

void check(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    Follower follower(schema_source(each.schema));
    for (const std::string& text : each.matching)
      EXPECT_TRUE(follower.matches(text)) << each.schema << "\nand " << text;
    for (const std::string& text : each.others) EXPECT_FALSE(follower.matches(text)) << each.schema << "\nand " << text;
  }
}

TEST(GrammarSchema, Types) {
  check({
      {R"({})",
       {"null", "true", "1", "-0.5e+10", "\"a\"", "[]", "{}", R"({"a":[1,{"b":null}]})"},
       {"", "nul", "01", "[1,]", "{\"a\"}", "'a'"}},
      {R"(true)", {"1", "[]"}, {""}},
      {R"({"type":"null"})", {"null"}, {"0", "false", "\"\""}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "True"}},
      {R"({"type":"integer"})", {"0", "-1", "123456789012345678901234567890"}, {"1.0", "1e2", "01", "-", "+1"}},
      {R"({"type":"number"})",
       {"0", "-1.5", "1e5", "1E-5", "1e99"},
       {"1.", ".5", "NaN", "Infinity", "1e", "00", "1e100"}},
      {R"({"type":"string"})",
       {R"("")", R"("a\"b\\\/\b\f\n\r\t\u00e9")", R"("\ud83d\ude00")", "\"é日😀\""},
       {"\"a", "a", R"("\x")", "\"\n\"", R"("\ud83d")", R"("\ude00")", R"("\u12")", "\"\x80\"", "\"\x7F\""}},
      {R"({"type":"array"})", {"[]", "[1,\"a\",[]]"}, {"[", "[,]", "{}"}},
      {R"({"type":"object"})", {"{}", R"({"a":1,"b":{}})"}, {"{", "{a:1}", "[]"}},
      {R"({"type":["string","null"]})", {"\"a\"", "null"}, {"1"}},
      {R"({"type":"string","nullable":true})", {"\"a\"", "null"}, {"1"}},
      {R"({"title":"t","description":"d","default":1,"examples":[2],"$comment":"c","x-other":3,"deprecated":true,"type":"null"})",
       {"null"},
       {"1"}},
  });
}

TEST(GrammarSchema, Strings) {
  check({
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"abc\"", "\"éà\"", "\"😀😀\"", R"("\n\"")"},
       {"\"a\"", "\"abcd\"", "\"\""}},
      {R"({"type":"string","maxLength":0})", {"\"\""}, {"\"a\""}},
      {R"({"type":"string","pattern":"^a+$"})", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ba\""}},
      {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"ac\""}},
      {R"({"type":"string","pattern":"^[\"\\\\\\n]$"})",
       {R"("\"")", R"("\\")", R"("\n")"},
       {"\"\"\"", "\"\\\"", R"("n")"}},
      {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"abc\""},
       {"\"a\"", "\"abcd\"", "\"AB\""}},
      {R"({"allOf":[{"type":"string","pattern":"^a"},{"pattern":"z$"}]})", {"\"az\"", "\"a-z\""}, {"\"a\"", "\"z\""}},
      {R"({"type":"string","format":"date"})",
       {"\"2026-11-28\"", "\"2026-02-28\""},
       {"\"2026-02-30\"", "\"2026-13-01\"", "\"2026-1-1\""}},
      {R"({"type":"string","format":"time"})",
       {"\"12:30:00Z\"", "\"23:59:59.5+01:00\""},
       {"\"24:00:00Z\"", "\"12:30\""}},
      {R"({"type":"string","format":"date-time"})", {"\"2026-11-28T12:30:00Z\""}, {"\"2026-11-28 12:30:00Z\""}},
      {R"({"type":"string","format":"duration"})",
       {"\"P1D\"", "\"PT1H30M\"", "\"P2W\""},
       {"\"P\"", "\"PT\"", "\"1D\""}},
      {R"({"type":"string","format":"email"})", {"\"a.b@example.com\""}, {"\"a\"", "\"a@\"", "\"@b.c\""}},
      {R"({"type":"string","format":"hostname"})",
       {"\"a-b.example\"", "\"localhost\""},
       {"\"-a\"", "\"a..b\"", "\"\""}},
      {R"({"type":"string","format":"ipv4"})",
       {"\"127.0.0.1\"", "\"255.255.255.255\""},
       {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
      {R"({"type":"string","format":"ipv6"})", {"\"::\"", "\"::1\"", "\"2001:db8:0:0:0:0:0:1\""}, {"\"1\"", "\":::\""}},
      {R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
      {R"({"type":"string","format":"uri"})", {"\"https://a.example/b?c=d#e\""}, {"\"a\"", "\"http://\""}},
      {R"({"type":"string","format":"byte"})", {"\"\"", "\"YQ==\"", "\"YWJj\""}, {"\"YQ\"", "\"Y\""}},
  });
}

TEST(GrammarSchema, Arrays) {
  check({
      {R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1,2,3]"}, {"[\"a\"]", "[1,]"}},
      {R"({"type":"array","items":{"const":1},"minItems":1,"maxItems":2})", {"[1]", "[1,1]"}, {"[]", "[1,1,1]"}},
      {R"({"type":"array","items":false})", {"[]"}, {"[1]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":false})",
       {"[]", "[1]", "[1,2]"},
       {"[2]", "[1,2,3]"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":2,"maxItems":4})",
       {"[1,2]", "[1,2,3]", "[1,2,3,3]"},
       {"[1]", "[1,2,2]", "[1,2,3,3,3]"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":2},{"const":3}],"maxItems":2})",
       {"[]", "[1,2]"},
       {"[1,2,3]"}},
      {R"({"type":"array","prefixItems":[{"const":1},false]})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"minItems":3,"items":{"const":2}})",
       {"[1,2,2]", "[1,2,2,2]"},
       {"[1,2]", "[2,2,2]"}},
      {R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":2}})",
       {"[]", "[1]", "[1,2,2]"},
       {"[2]", "[1,1]"}},
      {R"({"type":"array","items":[{"const":1}],"additionalItems":false})", {"[1]"}, {"[1,1]"}},
      {R"({"allOf":[{"type":"array","items":{"type":"integer"}},{"items":{"minimum":5},"minItems":1}]})",
       {"[5]", "[6,7]"},
       {"[]", "[4]"}},
  });
}

TEST(GrammarSchema, Objects) {
  check({
      {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a"]})",
       {R"({"a":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"b":2})", R"({"b":2,"a":1})", R"({"a":1,"c":3})", R"({"a":1,"a":1})"}},
      {R"({"type":"object","properties":{"z":{"const":1},"a":{"const":2}}})",
       {"{}", R"({"z":1,"a":2})", R"({"a":2})"},
       {R"({"a":2,"z":1})"}},
      {R"({"type":"object","properties":{"a":{"const":1}},"additionalProperties":{"const":2}})",
       {"{}", R"({"a":1,"b":2})", R"({"b":2,"ab":2})"},
       {R"({"a":2})", R"({"b":1})", R"({"b":2,"a":1})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":true,"b":false}})", {"{}", R"({"a":[]})"}, {R"({"b":1})"}},
      {R"({"type":"object","required":["a"]})", {R"({"a":1})", R"({"a":1,"b":[]})"}, {"{}", R"({"b":1})"}},
      {R"({"type":"object","patternProperties":{"^x":{"const":1},"y$":{"const":1}},"additionalProperties":{"const":2}})",
       {R"({"xa":1,"by":1,"xy":1,"c":2})"},
       {R"({"xa":2})", R"({"c":1})", R"({"by":2})"}},
      {R"({"type":"object","patternProperties":{"^x":{"minimum":5},"y$":{"maximum":7}},"additionalProperties":false})",
       {R"({"xy":6})", R"({"xa":99})", R"({"ay":-9})"},
       {R"({"xy":8})", R"({"xy":4})", R"({"c":1})"}},
      {R"({"type":"object","properties":{"xa":{"type":"integer"}},"patternProperties":{"^x":{"maximum":3}},"additionalProperties":false})",
       {R"({"xa":3})", R"({"xb":3})"},
       {R"({"xa":4})", R"({"xa":"a"})"}},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":{"const":1}})",
       {"{}", R"({"a":1,"cb":1})"},
       {R"({"d":1})"}},
      {R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"const":1}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":1})"},
       {R"({"c":1})", R"({"a":2})"}},
      {R"({"type":"object","propertyNames":{"maxLength":2},"properties":{"abc":{}}})", {"{}"}, {R"({"abc":1})"}},
      {R"({"type":"object","minProperties":1,"maxProperties":2,"properties":{"a":{"const":1},"b":{"const":1},"c":{"const":1}}})",
       {R"({"a":1})", R"({"b":1,"c":1})"},
       {"{}", R"({"a":1,"b":1,"c":1})"}},
      {R"({"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"const":1}})",
       {R"({"a":1})", R"({"a":1,"b":1})"},
       {"{}", R"({"a":1,"b":1,"c":1})"}},
      // Further keys may repeat, so only one of them counts.
      {R"({"type":"object","minProperties":2,"properties":{"a":{"const":1}},"additionalProperties":{"const":2}})",
       {R"({"a":1,"b":2})", R"({"a":1,"b":2,"b":2})"},
       {R"({"a":1})", R"({"b":2,"c":2})", R"({"b":2,"b":2})"}},
      {R"({"type":"object","properties":{"q\"\u007f\n":{"const":1}},"additionalProperties":{"const":2}})",
       {R"({"q\"\u007f\n":1})", R"({"q":2})"},
       {R"({"q\"\u007f\n":2})"}},
      {R"({"type":"object","maxProperties":0})", {"{}"}, {R"({"a":1})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"minimum":3}},"required":["a"]},{"properties":{"a":{"type":"integer","maximum":4},"b":{"const":1}}}]})",
       {R"({"a":3})", R"({"a":4,"b":1})"},
       {R"({"a":5})", R"({"a":3.5})", "{}"}},
      {R"({"allOf":[{"type":"object","additionalProperties":{"type":"integer"}},{"properties":{"n":{"minimum":3}}}]})",
       {R"({"n":3})", R"({"n":3,"x":1})"},
       {R"({"n":2})", R"({"n":3.5})", R"({"x":"a"})"}},
  });
}

TEST(GrammarSchema, ConstantsAndEnumerations) {
  check({
      {R"({"const":{"b":[1,"x"],"a":null}})", {R"({"b":[1,"x"],"a":null})"}, {R"({"a":null,"b":[1,"x"]})"}},
      {R"({"const":"é\"\n\u007f"})", {R"("é\"\n\u007f")"}, {R"("e")"}},
      {R"({"enum":["a",1,null,true,[],{}]})", {"\"a\"", "1", "null", "true", "[]", "{}"}, {"2", "false", "\"b\""}},
      {R"({"enum":[1,2,"a"],"type":"integer"})", {"1", "2"}, {"\"a\""}},
      {R"({"enum":[1,2,3,4],"multipleOf":2,"minimum":3})", {"4"}, {"1", "2", "3"}},
      {R"({"enum":["a","ab","abc"],"maxLength":2,"pattern":"b"})", {"\"ab\""}, {"\"a\"", "\"abc\""}},
      {R"({"enum":["2026-01-01","tomorrow"],"format":"date"})", {"\"2026-01-01\""}, {"\"tomorrow\""}},
      {R"({"enum":[[1],[2],[1,2]],"items":[{"const":1}],"additionalItems":false})", {"[1]"}, {"[2]", "[1,2]"}},
      {R"({"enum":[{"x1":1},{"x1":"a"},{"y":1}],"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
       {R"({"x1":1})"},
       {R"({"x1":"a"})", R"({"y":1})"}},
      {R"({"enum":[{"ab":1},{"c":1}],"propertyNames":{"maxLength":1}})", {R"({"c":1})"}, {R"({"ab":1})"}},
      {R"({"enum":[1,2],"allOf":[{"enum":[2,3]}]})", {"2"}, {"1", "3"}},
      {R"({"enum":[1,2,3],"anyOf":[{"maximum":1},{"minimum":3}]})", {"1", "3"}, {"2"}},
      {R"({"enum":[9007199254740992,9007199254740993],"minimum":9007199254740993})",
       {"9007199254740993"},
       {"9007199254740992"}},
  });
}

TEST(GrammarSchema, AlternativesAndReferences) {
  check({
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null", "1.5"}},
      {R"({"anyOf":[{"minimum":5},{"maximum":-5}],"type":"integer"})", {"5", "-5"}, {"0"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"null"}]})", {"1", "null"}, {"1.5"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"},"v":{"const":1}},"required":["k"]}]})",
       {R"({"k":"a"})", R"({"k":"b","v":1})"},
       {R"({"k":"a","v":1})", "{}"}},
      {R"({"allOf":[{"type":["integer","string"]},{"type":["string","null"]}]})", {"\"a\""}, {"1", "null"}},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}}})", {"1"}, {"\"a\""}},
      {R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{"type":"integer"}}})", {"3"}, {"2"}},
      {R"({"$ref":"#/definitions/a~1b%20c","definitions":{"a/b c":{"const":1}}})", {"1"}, {"2"}},
      {R"({"$ref":"#x","$defs":{"a":{"$anchor":"x","const":1}}})", {"1"}, {"2"}},
      {R"({"type":"object","properties":{"n":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["n"]})",
       {R"({"n":null})", R"({"n":{"n":{"n":null}}})"},
       {"{}", R"({"n":1})", R"({"n":{}})"}},
      {R"({"$ref":"#/$defs/list","$defs":{"list":{"type":"array","items":{"$ref":"#/$defs/list"}}}})",
       {"[]", "[[],[[]]]"},
       {"[1]"}},
      {R"({"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"const":1}}})", {"1"}, {"2"}},
  });
}

TEST(GrammarSchema, WhiteSpaceIsBounded) {
  Follower loose(schema_source(R"({"type":"object","properties":{"a":{"type":"array","items":{"const":1}}}})", false));
  for (const char* text :
       {R"({"a":[1,1]})", R"({"a": [1, 1]})", "{\n  \"a\": [\n    1,\n    1\n  ]\n}", "{\r\n\t\"a\":[]}", "{ }"})
    EXPECT_TRUE(loose.matches(text)) << text;
  for (const std::string& text :
       {"{  \"a\":[1]}" + std::string(), std::string("{\n\n\"a\":[1]}"), "{\n" + std::string(41, ' ') + "\"a\":[1]}",
        std::string(" {}"), std::string("{} "), std::string("{\"a\" :[1]}")})
    EXPECT_FALSE(loose.matches(text)) << text;
  Follower compact(schema_source(R"({"type":"array"})"));
  EXPECT_TRUE(compact.matches("[1,[],{}]"));
  EXPECT_FALSE(compact.matches("[1, 2]"));
}

TEST(GrammarSchema, WhatIsNotSupportedIsRefusedByName) {
  for (const char* name :
       {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "contains", "minContains",
        "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies", "made-up"})
    expect_refused(schema_source(std::string(R"({"type":"object","properties":{"a":{")") + name + R"(":{}}}})"),
                   StatusCode::kUnsupported, std::string("'") + name + "'");
  expect_refused(schema_source(R"({"type":"array","uniqueItems":true})"), StatusCode::kUnsupported, "'uniqueItems'");
  expect_refused(schema_source(R"({"type":"string","format":"regex"})"), StatusCode::kUnsupported, "'regex'");
  expect_refused(schema_source("{\"type\":\"string\",\"pattern\":\"(?=a)\"}"), StatusCode::kUnsupported, "look-around");
  expect_refused(schema_source(R"({"$ref":"https://example.com/a.json"})"), StatusCode::kUnsupported, "example.com");
  expect_refused(schema_source(R"({"oneOf":[{"type":"integer"},{"minimum":3}]})"), StatusCode::kUnsupported, "'oneOf'");
  expect_refused(schema_source(R"({"propertyNames":{"anyOf":[{"maxLength":1}]},"type":"object"})"),
                 StatusCode::kUnsupported, "'propertyNames'");
  expect_refused(schema_source(R"({"type":"object","minProperties":2,"additionalProperties":{"type":"integer"}})"),
                 StatusCode::kUnsupported, "'minProperties'");
  expect_refused(schema_source(R"({"type":"object","patternProperties":{"a":{},"b":{},"c":{},"d":{},"e":{}}})"),
                 StatusCode::kUnsupported, "'patternProperties'");
}

TEST(GrammarSchema, WhatIsMalformedOrCannotBeMetIsRefused) {
  for (
      const auto& [schema, part] : std::initializer_list<std::pair<const char*, const char*>>{
          {"", "not valid JSON"},
          {"{\"type\":", "not valid JSON"},
          {"[]", "object, true or false"},
          {"\"a\"", "object, true or false"},
          {R"({"type":"text"})", "\"text\""},
          {R"({"type":3})", "3"},
          {R"({"minLength":-1,"type":"string"})", "'minLength'"},
          {R"({"maxItems":1.5,"type":"array"})", "'maxItems'"},
          {R"({"maxItems":10001,"type":"array"})", "'maxItems'"},
          {R"({"required":"a","type":"object"})", "'required'"},
          {R"({"required":[1],"type":"object"})", "'required'"},
          {R"({"enum":[]})", "'enum'"},
          {R"({"anyOf":[]})", "'anyOf'"},
          {R"({"anyOf":{}})", "'anyOf'"},
          {R"({"properties":[],"type":"object"})", "'properties'"},
          {R"({"pattern":1,"type":"string"})", "'pattern'"},
          {R"({"type":"string","pattern":"(a"})", "byte 2"},
          {R"({"$ref":"#/$defs/none"})", "#/$defs/none"},
          {R"({"$ref":"#"})", "$ref"},
          {R"({"anyOf":[{"$ref":"#"},{"type":"string"}]})", "$ref"},
          {R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"oneOf":[{"$ref":"#/$defs/a"}]}}})",
           "$ref"},
          {"false", "no value meets the schema: it is false"},
          {R"({"properties":{"a":{"type":"array","items":{"type":"string","minLength":3,"maxLength":2},"minItems":1}},"required":["a"],
               "type":"object"})",
           "at '/properties/a/items' 'minLength' is above 'maxLength'"},
          {R"({"type":"integer","minimum":3,"maximum":2})", "'minimum' is above 'maximum'"},
          {R"({"type":"array","minItems":3,"maxItems":2})", "'minItems' is above 'maxItems'"},
          {R"({"type":"object","properties":{"a":{"enum":[1],"type":"string"}},"required":["a"]})",
           "at '/properties/a'"},
          {R"({"type":"string","minLength":3,"maxLength":2})", "no value meets the schema"},
          {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "no value meets the schema"},
          {R"({"const":1,"type":"string"})", "no value meets the schema"},
          {R"({"type":"object","properties":{"a":false},"required":["a"]})", "no value meets the schema"},
          {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no value meets the schema"},
          {R"({"type":"string","pattern":"^a$","minLength":2})", "no value meets the schema"},
          {R"({"type":"string","format":"date","maxLength":9})", "no value meets the schema"},
          {R"({"type":"array","prefixItems":[false],"minItems":1})", "no value meets the schema"},
          {R"({"type":"object","minProperties":3,"properties":{"a":{},"b":{}}})", "no value meets the schema"}})
    expect_refused(schema_source(schema), StatusCode::kInvalidArgument, part);
}

std::string flat_object(int properties, bool required) {
  std::string listed, names;
  for (int i = 0; i < properties; ++i) {
    const char* comma = i > 0 ? "," : "";
    listed += fmt::format(R"({}"p{}":{{"type":"string"}})", comma, i);
    names += fmt::format(R"({}"p{}")", comma, i);
  }
  return fmt::format(R"({{"type":"object","properties":{{{}}},"required":[{}]}})", listed, required ? names : "");
}

TEST(GrammarSchema, FlatObjectsOfManyPropertiesCompileInTime) {
  const auto start = std::chrono::steady_clock::now();
  Follower required(schema_source(flat_object(1001, true), false));
  EXPECT_TRUE(required.begins(R"({"p0": "a", "p1":"b",)"));
  EXPECT_FALSE(required.begins(R"({"p0": "a", "p2")"));
  Follower optional(schema_source(flat_object(2500, false), false));
  EXPECT_TRUE(optional.matches(R"({"p7": "a","p1000": "b","p2499":"c"})"));
  EXPECT_TRUE(optional.matches("{}"));
  EXPECT_FALSE(optional.begins(R"({"p7": "a","p6")"));
  // Seconds where time grows with the cube of the number of properties.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(GrammarSchema, AskedToStopCompilesNoMore) {
  std::stop_source stop;
  stop.request_stop();
  grammar::Builder builder(stop.get_token());
  const Result<grammar::Expr> body = grammar::read_source(builder, schema_source(flat_object(10, true)));
  EXPECT_EQ(body.status().code(), StatusCode::kResourceExhausted);
}

TEST(GrammarSchema, CutTextsAreBeginningsOfWholeOnes) {
  const std::string whole = R"({"a":"x\u00e9","b":[1,-2.5e3],"c":{"d":null}})";
  Follower follower(schema_source("{}"));
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    EXPECT_TRUE(follower.begins(whole.substr(0, size)));
    EXPECT_EQ(follower.matches(whole.substr(0, size)), size == whole.size());
  }
}

}  // namespace
}  // namespace kvasir
