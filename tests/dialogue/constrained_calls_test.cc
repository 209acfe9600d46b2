// Answers drawn from the grammar of each family's calls: read, written into a history, and read again.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "dialogue/call_walk.h"
#include "dialogue/conversation.h"
#include "dialogue/round_trip.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

using Schema = nlohmann::ordered_json;

constexpr const char* kTemplates[] = {"hermes",  "qwen3-coder",  "llama-3",  "pythonic", "lfm2",
                                      "mistral", "mistral-args", "gpt-oss",  "gemma-4",  "granite",
                                      "phi-4",   "glm",          "deepseek", "minimax",  "kimi-k2"};

// Schemas with what is hard to write: quotation marks and line breaks in constants, texts of any kind, nested values.
constexpr std::string_view kHardTools = R"([
 {"type": "function", "function": {"name": "write_note", "parameters": {
   "type": "object", "properties": {
     "text": {"type": "string"},
     "kind": {"type": "string", "enum": ["a \"quoted\" kind", "two\nlines", "é 😀 \\", "", "true", "12"]},
     "count": {"type": "integer", "minimum": -5, "maximum": 12},
     "ratio": {"type": "number"},
     "done": {"type": "boolean"},
     "from": {"$ref": "#/$defs/point"},
     "place": {"type": "object", "properties": {
        "name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "deep": {"type": "object", "properties": {"x": {"type": "number"}, "flag": {"type": "boolean"}}, "required": ["x"]}},
        "required": ["name", "deep"]}},
   "required": ["text", "place"], "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"},
     "of": {"type": "string"}}, "required": ["x"]}}}}},
 {"type": "function", "function": {"name": "write", "parameters": {
   "type": "object", "properties": {
     "mode": {"enum": ["one", "two words"]},
     "only": {"const": "it's \"so\""},
     "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": ["string", "null"]}}}, "maxItems": 2},
     "words": {"type": "array", "items": {"enum": ["a, b", "c]", "d\ne"]}, "maxItems": 3},
     "code": {"type": "string", "pattern": "^[a-c<\"]{1,4}$"},
     "short": {"type": "string", "minLength": 1, "maxLength": 3},
     "maybe": {"type": "string", "nullable": true, "pattern": "^[x-z]$"},
     "when": {"type": "string", "format": "date"}},
   "required": ["mode", "code", "short"]}}},
 {"type": "function", "function": {"name": "locate", "parameters": {"$ref": "#/$defs/place", "$defs": {"place": {
   "type": "object", "description": "Where.", "additionalProperties": false, "properties": {
     "name": {"type": "string", "minLength": 1}, "also": {"$ref": "#/$defs/place/properties/name"},
     "exact": {"type": "boolean"}, "within": {"$ref": "#"}, "never": false},
   "required": ["name", "exact"]}}}}},
 {"type": "function", "function": {"name": "ping"}}])";

std::string template_of(const std::string& name) {
  std::ifstream file(test::source_dir() + "/tests/dialogue/templates/" + name + ".jinja", std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

// Whether a value meets a schema within `root`, as far as the tools' schemas go.
bool meets(const Schema& value, const Schema& schema, const Schema& root);

bool object_meets(const Schema& value, const Schema& schema, const Schema& root) {
  const Schema properties = schema.value("properties", Schema::object());
  for (const Schema& name : schema.value("required", Schema::array()))
    if (!value.contains(name.get<std::string>())) return false;
  for (const auto& [name, member] : value.items())
    if (!properties.contains(name) || !meets(member, properties[name], root)) return false;
  return true;
}

bool text_meets(const std::string& text, const Schema& schema) {
  if (schema.contains("pattern"))
    return !text.empty() && text.size() <= 4 && text.find_first_not_of("abc<\"") == std::string::npos;
  if (schema.contains("format"))
    return text.size() == 10 && text[4] == '-' && text[7] == '-' &&
           text.find_first_not_of("0123456789-") == std::string::npos;
  return characters(text) >= schema.value("minLength", 0U) && characters(text) <= schema.value("maxLength", 1'000'000U);
}

bool is_of_type(const Schema& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "object" ? value.is_object() : value.is_array();
}

bool meets(const Schema& value, const Schema& schema, const Schema& root) {
  if (schema == false) return false;
  if (schema.contains("$ref"))
    return meets(value, root.at(Schema::json_pointer(schema["$ref"].get<std::string>().substr(1))), root);
  if (schema.contains("nullable")) return value.is_null() || value == "x" || value == "y" || value == "z";
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum")) return std::ranges::find(schema["enum"], value) != schema["enum"].end();
  const Schema types = schema["type"].is_array() ? schema["type"] : Schema::array({schema["type"]});
  if (std::ranges::none_of(types, [&](const Schema& type) { return is_of_type(value, type.get<std::string>()); }))
    return false;
  if (value.is_object()) return object_meets(value, schema, root);
  if (value.is_string()) return text_meets(value.get<std::string>(), schema);
  if (value.is_number()) return value >= schema.value("minimum", -1e300) && value <= schema.value("maximum", 1e300);
  if (!value.is_array()) return true;
  return value.size() <= schema.value("maxItems", 1'000U) &&
         std::ranges::all_of(value, [&](const Schema& item) { return meets(item, schema["items"], root); });
}

// Names and arguments of calls; the arguments' order does not count.
nlohmann::json calls_of(const Answer& answer) {
  nlohmann::json calls = nlohmann::json::array();
  for (const ToolCall& call : answer.calls) calls.push_back({call.name, nlohmann::json::parse(call.arguments)});
  return calls;
}

Answer read_answer(const test::Dialogue& dialogue, const std::string& text, std::size_t step) {
  return test::answer_of(test::pieces_of(*dialogue.form(), text, step));
}

// Checks one drawn answer, and returns it.
Answer check_answer(const test::Dialogue& dialogue, const std::string& text) {
  const Answer got = read_answer(dialogue, text, text.size() + 1);
  EXPECT_FALSE(got.calls.empty()) << text;
  EXPECT_EQ(got.content, "") << text;
  for (const std::size_t step : {1, 3, 7})
    EXPECT_EQ(test::shown(read_answer(dialogue, text, step)), test::shown(got)) << text;
  Message said = {"assistant", ""};
  said.reasoning = got.reasoning;
  said.tool_calls = got.calls;
  const auto tools = *read_tools(dialogue.tools);
  for (const ToolCall& call : got.calls) {
    const auto tool = std::ranges::find(tools, call.name, &Tool::name);
    if (tool == tools.end()) {
      ADD_FAILURE() << call.name << " in " << text;
      return got;
    }
    const Schema arguments = Schema::parse(call.arguments);
    EXPECT_TRUE(tool->parameters.is_object() ? meets(arguments, tool->parameters, tool->parameters)
                                             : arguments == Schema::object())
        << call.arguments << " in " << text;
  }
  const auto write = [&] {
    return dialogue.generated({"user", "What is the weather?"},
                              written_out({said}, "", dialogue.format, false).front());
  };
  const auto written = write();
  if (!written) {
    ADD_FAILURE() << "cannot be written: " << text;
    return got;
  }
  Answer again = read_answer(dialogue, *written, written->size() + 1);
  EXPECT_EQ(calls_of(again), calls_of(got)) << "generated: " << text << "\nwritten: " << *written;
  EXPECT_EQ(again.reasoning, got.reasoning) << "generated: " << text << "\nwritten: " << *written;
  if (again.calls.size() == said.tool_calls.size())  // ids are made anew
    for (std::size_t i = 0; i < again.calls.size(); ++i) again.calls[i].id = said.tool_calls[i].id;
  said.tool_calls = again.calls;
  EXPECT_EQ(write(), written) << text;
  return got;
}

// Returns how many checks of the running test have failed.
int failed_parts() {
  const testing::TestResult* result = testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int i = 0; i < result->total_part_count(); ++i) failed += result->GetTestPartResult(i).failed() ? 1 : 0;
  return failed;
}

// Draws answers that a demand allows, and checks them; returns the largest number of calls in one.
std::size_t check_answers(const test::Dialogue& dialogue, const CallDemand& demand) {
  constexpr std::uint32_t kSeeds = 20;
  test::CallWalk walk(*dialogue.rules(), demand);
  const int failures = failed_parts();
  std::size_t ended = 0, most = 0;
  for (std::uint32_t seed = 1; seed <= kSeeds && failures == failed_parts(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string text = walk.draw(random);
    if (text.empty()) continue;
    const Answer answer = check_answer(dialogue, text);
    for (const ToolCall& call : answer.calls)
      EXPECT_TRUE(demand.choice != ToolChoice::kNamed || call.name == demand.name) << text;
    ++ended;
    most = std::max(most, answer.calls.size());
  }
  EXPECT_TRUE(failures != failed_parts() || ended >= kSeeds * 2 / 3) << ended;
  return most;
}

TEST(ConstrainedCalls, SurviveARoundTripInEveryFamily) {
  for (const char* name : kTemplates) {
    SCOPED_TRACE(name);
    const test::Dialogue dialogue(template_of(name), kHardTools);
    const std::size_t most = check_answers(dialogue, {ToolChoice::kRequired, "", std::nullopt});
    EXPECT_EQ(most > 1, !dialogue.format.calls.single) << most;
    check_answers(dialogue, {ToolChoice::kNamed, "write", std::nullopt});
  }
}

// Returns the status of the grammar of answers that must call a tool with these parameters.
Status demanded(const std::string& family, const Schema& parameters) {
  const Schema tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}};
  const test::Dialogue dialogue(template_of(family), tools.dump());
  grammar::Builder builder;
  grammar::JsonText json(builder, grammar::JsonSpace::kNone);
  return answer_grammar(json, *dialogue.rules(), {ToolChoice::kRequired, "", std::nullopt}).status();
}

void expect_refused(const std::string& family, const std::string& schema, std::string_view said) {
  SCOPED_TRACE(family + ": " + schema);
  const Status status = demanded(family, Schema::parse(schema));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.settings().front(), "tools");
  EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
}

// A parameter whose name the notation has no place for is named, in place of calls that cannot be read.
TEST(ConstrainedCalls, ParametersThatCannotBeNamedAreRefused) {
  struct Case {
    const char* family;
    std::string name;
    bool named;
  };
  const Case cases[] = {{"pythonic", "two words", false},
                        {"gemma-4", "two words", false},
                        {"hermes", "two words", true},
                        {"hermes", " a>b ", true},
                        {"qwen3-coder", "two words", true},
                        {"qwen3-coder", "a>b", false},
                        {"qwen3-coder", " a", false},
                        {"qwen3-coder", "a\n", false},
                        {"qwen3-coder", std::string(4000, 'a'), true},
                        {"qwen3-coder", std::string(5000, 'a'), false},
                        {"glm", "a>b", true},
                        {"glm", "a ", false},
                        {"glm", "a</arg_key>\n<arg_value>b", false},
                        {"minimax", "two words", true},
                        {"minimax", "\ta", false},
                        {"minimax", "a\">b", false},
                        {"minimax", "a</parameter>", false}};
  for (const auto& [family, name, named] : cases) {
    const Schema schema = {{"type", "object"}, {"properties", {{name, {{"type", "boolean"}}}}}};
    if (named) {
      EXPECT_TRUE(demanded(family, schema).ok())
          << family << ": " << name << ": " << demanded(family, schema).message();
    } else {
      expect_refused(family, schema.dump(), "cannot write the parameter");
    }
  }
}

// Notations other than JSON write a tool's parameters one by one: what its schema says of them together is refused.
TEST(ConstrainedCalls, WhatANotationCannotEnforceIsRefusedByName) {
  constexpr std::pair<const char*, const char*> kSchemas[] = {
      {R"({"allOf": [{"required": ["a"]}]})", "'allOf'"},
      {R"({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}})", "'anyOf'"},
      {R"({"properties": {"a": {}}, "not": {"required": ["a"]}})", "'not'"},
      {R"({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}})", "'dependentRequired'"},
      {R"({"properties": {"a": {}}, "minProperties": 1})", "'minProperties'"},
      {R"({"additionalProperties": {"type": "string"}})", "'additionalProperties'"},
      {R"({"$ref": "#/$defs/a", "properties": {"b": {}}, "$defs": {"a": {}}})", "'$ref'"},
      {R"({"properties": {"a": {"type": "boolean"}}, "required": ["a", "b"]})", "\"b\""},
      {R"({"properties": {"a": {}}, "required": [1]})", "requires the parameter 1"},
      {R"({"properties": {"a": {}}, "required": "a"})", "'required'"},
      {R"({"properties": [1]})", "'properties'"}};
  for (const char* family : {"qwen3-coder", "glm", "minimax", "pythonic", "gemma-4"})
    for (const auto& [schema, said] : kSchemas) expect_refused(family, schema, said);
  for (const char* family : {"hermes", "gpt-oss", "mistral", "qwen3-coder", "pythonic", "gemma-4"}) {
    expect_refused(family, R"({"$ref": "#/$defs/a", "$defs": {}})", "#/$defs/a");
    expect_refused(family, R"({"$ref": 5})", "'$ref'");
    expect_refused(family, R"({"$ref": "#"})", "");
  }
  for (const char* family : {"qwen3-coder", "pythonic", "gemma-4"})
    expect_refused(family, R"({"type": "string"})", "'type' that is not \"object\"");
}

// Parameters refer to the tool's whole schema, also to what contains them.
TEST(ConstrainedCalls, ParametersMayReferToAnyPartOfTheSchema) {
  for (const char* family : kTemplates)
    for (const char* schema : {R"({"properties": {"v": {"type": "boolean"}, "c": {"$ref": "#"}}})",
                               R"({"properties": {"v": {"type": "boolean"}, "c": {"$ref": "#/properties/v"}}})",
                               R"({"properties": {"c": {"$ref": "#named"}}, "$defs": {"n": {"$anchor": "named"}}})"}) {
      const Status status = demanded(family, Schema::parse(schema));
      EXPECT_TRUE(status.ok()) << family << ": " << schema << ": " << status.message();
    }
}

// The largest resident set of this process so far, in KiB.
long peak_memory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// A few hundred KiB of definitions are not copied for each of many parameters.
TEST(ConstrainedCalls, LargeDefinitionsAreSharedByAllParameters) {
  constexpr long kMostGrowth = 200 << 10;  // KiB; a copy each would take gigabytes
  Schema schema = {{"type", "object"}, {"properties", Schema::object()}, {"$defs", Schema::object()}};
  schema["$defs"]["x"] = {{"enum", std::vector<int>(15'000, 0)}};
  const Schema reference = {{"$ref", "#/$defs/x"}};
  for (const int count : {500, 12'000}) {
    for (int i = static_cast<int>(schema["properties"].size()); i < count; ++i)
      schema["properties"].get_ref<Schema::object_t&>().emplace_back("p" + std::to_string(i), reference);
    for (const char* family : {"qwen3-coder", "pythonic", "gemma-4"}) {
      const long before = peak_memory();
      const Status status = demanded(family, schema);
      EXPECT_EQ(status.ok(), count == 500) << family << ": " << status.message();
      EXPECT_LT(peak_memory() - before, kMostGrowth) << family;
    }
  }
}

// A tool that is not strict may be called with any arguments, whatever its schema says.
TEST(ConstrainedCalls, OnlyStrictToolsAreHeldToTheirSchema) {
  const Schema odd = {{"type", "object"}, {"properties", {{"two words", Schema::object()}}}, {"not", Schema::object()}};
  const Schema tools = {
      {{"type", "function"}, {"function", {{"name", "free"}, {"parameters", odd}}}},
      {{"type", "function"},
       {"function",
        {{"name", "strict"}, {"strict", true}, {"parameters", {{"properties", {{"a", {{"type", "boolean"}}}}}}}}}}};
  for (const char* family : kTemplates) {
    SCOPED_TRACE(family);
    const test::Dialogue dialogue(template_of(family), tools.dump());
    test::CallWalk walk(*dialogue.rules(), {ToolChoice::kAuto, "", std::nullopt});
    for (std::uint32_t seed = 1; seed <= 10; ++seed) {
      std::mt19937 random(seed);
      const std::string text = walk.draw(random);
      for (const ToolCall& call : read_answer(dialogue, text, 5).calls)
        EXPECT_TRUE(call.name == "free" || Schema::parse(call.arguments).value("a", Schema(true)).is_boolean()) << text;
    }
  }
}

// A value that is a text or null is JSON only as `null` and between quotation marks.
TEST(UnconstrainedCalls, ValuesAreReadAsTypesThatTheirSchemaAllows) {
  constexpr std::pair<const char*, const char*> kSchemas[] = {
      {R"({"type": "string", "nullable": true})", R"(["42", null, "a", "true", "[1]"])"},
      {R"({"type": ["string", "null"]})", R"(["42", null, "a", "true", "[1]"])"},
      {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", R"(["42", null, "a", "true", "[1]"])"},
      {R"({"enum": ["42", null]})", R"(["42", null, "a", "true", "[1]"])"},
      {R"({"type": ["string", "integer"]})", R"([42, "null", "a", "true", "[1]"])"},
      {R"({"anyOf": [{"type": "string"}, {"type": "array"}]})", R"(["42", "null", "a", "true", [1]])"},
      {R"({"type": "boolean"})", R"([42, null, "a", true, [1]])"},
      {R"({})", R"([42, null, "a", true, [1]])"}};
  for (const auto& [schema, expected] : kSchemas) {
    const std::string tools = std::string(R"([{"type": "function", "function": {"name": "f", "parameters":
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": )") +
                              schema + "}}}}}}]";
    const test::Dialogue dialogue(template_of("qwen3-coder"), tools);
    const auto values = nlohmann::json::parse(expected);
    std::size_t next = 0;
    for (const char* text : {"42", "null", "\"a\"", "true", "[1]"}) {
      const std::string call = std::string("<tool_call>\n<function=f>\n<parameter=x>\n") + text +
                               "\n</parameter>\n</function>\n</tool_call>";
      const Answer got = read_answer(dialogue, call, 5);
      ASSERT_EQ(got.calls.size(), 1u) << schema;
      EXPECT_EQ(nlohmann::json::parse(got.calls[0].arguments)["x"], values[next++]) << schema << ": " << text;
    }
  }
}

Answer answer_to(const test::Dialogue& dialogue, const std::string& text) {
  return test::answer_of(test::pieces_of(*dialogue.form(), text, 3));
}

TEST(UnconstrainedCalls, PartsOfTheMarksBehindACallAreNoContent) {
  const test::Dialogue dialogue(template_of("hermes"));
  const std::string call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
  const std::string more = "\n</tool_call>\n<tool_call>\n";
  for (std::size_t size = 0; size <= more.size(); ++size) {
    const Answer got = answer_to(dialogue, call + more.substr(0, size));
    ASSERT_EQ(got.calls.size(), 1U) << size;
    EXPECT_EQ(got.content, "") << more.substr(0, size);
    EXPECT_FALSE(got.broken);
  }
  EXPECT_EQ(answer_to(dialogue, call + "\n</tool_call>\nThere.").content, "There.");
  const Answer cut = answer_to(dialogue, call.substr(0, call.size() - 3));
  EXPECT_TRUE(cut.calls.size() == 1 && cut.broken) << "no client may take it for a whole one";
}

TEST(ConstrainedCalls, BeginWithoutThoughtsWhereTheseAreOff) {
  for (const char* name : {"hermes", "gemma-4", "gpt-oss"})
    for (const bool may_think : {true, false}) {
      const test::Dialogue dialogue(template_of(name), kHardTools);
      AnswerRules rules = *dialogue.rules();
      rules.may_think = may_think;
      test::CallWalk walk(rules, {ToolChoice::kRequired, "", std::nullopt});
      std::size_t thoughts = 0;
      for (std::uint32_t seed = 1; seed <= 20; ++seed) {
        std::mt19937 random(seed);
        const std::string text = walk.draw(random);
        if (!text.empty()) thoughts += read_answer(dialogue, text, 5).reasoning.empty() ? 0 : 1;
      }
      EXPECT_EQ(thoughts > 0, may_think) << name;
    }
}

}  // namespace
}  // namespace kvasir
