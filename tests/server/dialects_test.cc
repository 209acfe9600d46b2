// The dialects without a server: bodies with tools and thoughts as requests of the engine, and parts of answers as the
// events of each API.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/infill.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/dialects/responses.h"
#include "server/fields/ignored_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Kind = AnswerPiece::Kind;

// A vocabulary of bytes, 1 in front of each text, with three control tokens if `fills`.
class ByteText final : public ModelText {
 public:
  explicit ByteText(bool fills = true) : fills_(fills) {}
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource&, const std::stop_token&) const override {
    return unsupported("none");
  }
  Result<PromptTokens> encode_prompt(const RequestOptions&) const override { return unsupported("none"); }
  Result<std::int64_t> system_tokens(std::span<const Message>) const override { return std::int64_t{0}; }
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special, bool parse_special,
                                           bool) const override {
    std::vector<std::int32_t> tokens;
    if (add_special) tokens.push_back(1);
    for (std::int32_t i = 0; fills_ && parse_special && i < 3; ++i)
      if (text == kNames[i]) return std::vector<std::int32_t>{300 + i};
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  Result<std::string> decode(std::span<const std::int32_t> tokens, bool) const override {
    std::string text;
    for (const std::int32_t token : tokens) text += bytes_of(token).ok() ? *bytes_of(token) : "";
    return text;
  }
  Result<std::string> bytes_of(std::int32_t token) const override {
    if (token >= 300) return std::string(kNames[token - 300]);
    return std::string(1, static_cast<char>(token));
  }

 private:
  static constexpr std::string_view kNames[] = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"};
  bool fills_;
};

Result<ReadBody> read(const Dialect& dialect, const Json& body) {
  static const ByteText text;
  static const HttpRequest http;
  static const Caller caller;
  return dialect.read(body, {http, caller, text, {}});
}

// An answer that thinks, speaks and calls a tool, part by part.
std::vector<AnswerPiece> parts_of_answer() {
  return {{Kind::kReasoning, 0, "Hm", "", ""},
          {Kind::kReasoning, 0, "m.", "", ""},
          {Kind::kContent, 0, "Let me look.", "", ""},
          {Kind::kCallBegins, 0, "", "call_1", "look"},
          {Kind::kArguments, 0, R"({"at":)", "", ""},
          {Kind::kArguments, 0, R"("sea"})", "", ""},
          {Kind::kCallEnds, 0, "", "", ""}};
}

struct Written {
  std::string stream, whole;
};

Written write(const Dialect& dialect, const Json& body) {
  GenerateResult result;
  result.text = "not shown, since parts are given";
  result.tokens = 9;
  result.prompt_tokens = 5;
  const std::vector<AnswerPiece> parts = parts_of_answer();
  Choice choice;
  choice.result = &result;
  AnswerTotals totals;
  totals.usage = {5, 9, 0};
  AnswerHead head;
  head.id = std::string(dialect.id_prefix()) + "1";
  head.model = "m";
  Written written;
  Result<ReadBody> streams = read(dialect, body);
  EXPECT_TRUE(streams.ok()) << streams.status().message();
  AnswerWriter& writer = *streams->writer;
  writer.start(head, 5);
  written.stream = writer.begin({&choice, 1});
  for (const AnswerPiece& part : parts) written.stream += writer.pieces(choice, {&part, 1}, {});
  written.stream += writer.end_choice(choice, {});
  written.stream += writer.end(totals);
  Answer answer;
  for (const AnswerPiece& part : parts) answer.add(part);
  choice.answer = &answer;
  Result<ReadBody> again = read(dialect, body);
  again->writer->start(head, 5);
  written.whole = again->writer->whole({&choice, 1}, totals);
  return written;
}

std::vector<Json> events_of(const std::string& stream) {
  std::vector<Json> events;
  for (std::size_t at = stream.find("data: "); at != std::string::npos; at = stream.find("data: ", at + 1))
    events.push_back(Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6)));
  return events;
}

std::vector<std::string> kinds_of(const std::vector<Json>& events) {
  std::vector<std::string> kinds;
  for (const Json& event : events) kinds.push_back(event["type"]);
  return kinds;
}

const Json kSchema = {{"type", "object"}, {"properties", {{"at", {{"type", "string"}}}}}};
const Json kFunction = {{"type", "function"}, {"function", {{"name", "look"}, {"parameters", kSchema}}}};

TEST(Dialects, AnthropicsToolsAndThoughtsAreMessages) {
  const Json body =
      Json::parse(R"({"max_tokens": 5, "system": "Be brief.", "thinking": {"type": "enabled", "budget_tokens": 9},
    "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}],
    "messages": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hmm.", "signature": "x"}, {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": true, "content": [{"type": "text", "text": "fog"}]},
        {"type": "text", "text": "Go on."}]}]})");
  const Result<ReadBody> got = read(AnthropicMessages(), body);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const RequestOptions& options = got->request.options;
  EXPECT_EQ(Json::parse(options.tools), Json::array({kFunction}));
  ASSERT_EQ(options.messages.size(), 5U);
  const Message& said = options.messages[2];
  EXPECT_EQ(said.content, "Let me look.");
  EXPECT_EQ(said.reasoning, "Hmm.");
  ASSERT_EQ(said.tool_calls.size(), 1U);
  EXPECT_EQ(said.tool_calls[0].arguments, R"({"at":"sea"})");
  const Message& result = options.messages[3];
  EXPECT_EQ(result.role + "/" + result.tool_call_id + "/" + result.name + "/" + result.content,
            "tool/c1/look/Error: fog");
  EXPECT_EQ(options.messages[4].content, "Go on.");
  EXPECT_EQ(options.thinking, Thinking::kOn);
  EXPECT_EQ(options.generate.thought_budget, 9);
  EXPECT_STREQ(got->request.budget_field, "thinking.budget_tokens");
  EXPECT_EQ(ignored_header(got->request.ignored), "");
}

TEST(Dialects, AnthropicsEventsOfThoughtsAndCalls) {
  const Written got =
      write(AnthropicMessages(), Json::parse(R"({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]})"));
  const std::vector<Json> events = events_of(got.stream);
  const std::vector<std::string> want = {"message_start",       "ping",
                                         "content_block_start", "content_block_delta",
                                         "content_block_delta", "content_block_stop",
                                         "content_block_start", "content_block_delta",
                                         "content_block_stop",  "content_block_start",
                                         "content_block_delta", "content_block_delta",
                                         "content_block_stop",  "message_delta",
                                         "message_stop"};
  ASSERT_EQ(kinds_of(events), want);
  EXPECT_EQ(events[3]["delta"], (Json{{"type", "thinking_delta"}, {"thinking", "Hm"}}));
  EXPECT_EQ(events[9]["content_block"],
            Json::parse(R"({"type": "tool_use", "id": "call_1", "name": "look", "input": {}})"));
  EXPECT_EQ(events[9]["index"], 2);
  EXPECT_EQ(events[11]["delta"], (Json{{"type", "input_json_delta"}, {"partial_json", R"("sea"})"}}));
  EXPECT_EQ(events[13]["delta"]["stop_reason"], "tool_use");
  const Json whole = Json::parse(got.whole);
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["content"], Json::parse(R"([{"type": "thinking", "thinking": "Hmm.", "signature": ""},
    {"type": "text", "text": "Let me look."}, {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "sea"}}])"));
}

TEST(Dialects, OllamasToolsAndThoughts) {
  const Json body = Json::parse(R"({"messages": [{"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "", "thinking": "Hmm.", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "sea"}}}]},
    {"role": "tool", "tool_name": "look", "content": "fog"}], "think": "high", "format": {"type": "object"}})");
  Json with_tools = body;
  with_tools["tools"] = Json::array({kFunction});
  const Result<ReadBody> got = read(OllamaDialect(true), with_tools);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const RequestOptions& options = got->request.options;
  EXPECT_TRUE(got->request.stream);
  EXPECT_EQ(Json::parse(options.tools), Json::array({kFunction}));
  EXPECT_EQ(options.messages[1].tool_calls.at(0).arguments, R"({"at":"sea"})");
  EXPECT_EQ(options.messages[2].name, "look");
  EXPECT_EQ(options.template_arguments.at(0), (std::pair<std::string, std::string>{"reasoning_effort", "\"high\""}));
  ASSERT_TRUE(got->request.grammar.has_value());
  EXPECT_EQ(got->request.grammar->text, R"({"type":"object"})");

  const Written written = write(OllamaDialect(true), body);
  std::vector<Json> lines;
  for (std::size_t at = 0; at < written.stream.size(); at = written.stream.find('\n', at) + 1)
    lines.push_back(Json::parse(written.stream.substr(at, written.stream.find('\n', at) - at)));
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0]["message"]["thinking"], "Hm");
  EXPECT_EQ(lines[2]["message"]["content"], "Let me look.");
  EXPECT_EQ(lines[3]["message"]["tool_calls"],
            Json::parse(R"([{"id": "call_1", "function": {"name": "look", "arguments": {"at": "sea"}}}])"));
  EXPECT_EQ(lines[4]["done"], true);
  EXPECT_EQ(lines[4]["eval_count"], 9);
  const Json whole = Json::parse(written.whole)["message"];
  EXPECT_EQ(whole["thinking"], "Hmm.");
  EXPECT_EQ(whole["tool_calls"], lines[3]["message"]["tool_calls"]);
}

TEST(Dialects, ResponsesToolsAndThoughts) {
  ResponseStore store({});
  const Json body = Json::parse(R"({"instructions": "Be brief.", "reasoning": {"effort": "low"},
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}],
    "input": [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hmm."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\":\"sea\"}"},
      {"type": "function_call_output", "call_id": "c1", "output": "fog"}]})");
  const OpenAiResponses dialect(store);
  const Result<ReadBody> got = read(dialect, body);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const RequestOptions& options = got->request.options;
  EXPECT_EQ(Json::parse(options.tools), Json::array({kFunction}));
  ASSERT_EQ(options.messages.size(), 4U);
  EXPECT_EQ(options.messages[2].reasoning + "/" + options.messages[2].content, "Hmm./Let me look.");
  EXPECT_EQ(options.messages[2].tool_calls.at(0).name, "look");
  EXPECT_EQ(options.messages[3].name + "/" + options.messages[3].content, "look/fog");

  const Written written = write(dialect, body);
  const std::vector<Json> events = events_of(written.stream);
  const std::vector<std::string> want = {"response.created",
                                         "response.in_progress",
                                         "response.output_item.added",
                                         "response.content_part.added",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.done",
                                         "response.content_part.done",
                                         "response.output_item.done",
                                         "response.output_item.added",
                                         "response.content_part.added",
                                         "response.output_text.delta",
                                         "response.output_text.done",
                                         "response.content_part.done",
                                         "response.output_item.done",
                                         "response.output_item.added",
                                         "response.function_call_arguments.delta",
                                         "response.function_call_arguments.delta",
                                         "response.function_call_arguments.done",
                                         "response.output_item.done",
                                         "response.completed"};
  ASSERT_EQ(kinds_of(events), want);
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  const Json& call = events[19]["item"];
  EXPECT_EQ(call["call_id"], "call_1");
  EXPECT_EQ(call["arguments"], R"({"at":"sea"})");
  EXPECT_EQ(events[15]["output_index"], 2);
  EXPECT_EQ(events[20]["response"]["output"].size(), 3U);
  EXPECT_EQ(Json::parse(written.whole)["output"][2]["arguments"], R"({"at":"sea"})");
  // What is stored has the whole turn.
  const auto kept = store.find({}, "resp_1");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->messages.back().reasoning, "Hmm.");
  EXPECT_EQ(kept->messages.back().tool_calls.at(0).id, "call_1");
  EXPECT_EQ(kept->messages.front().role, "user") << "instructions are not part of the conversation";
}

TEST(Dialects, StoredResponsesStayWithinTheirBounds) {
  ResponseStore store({.tenant = 4000, .all = 6000});
  const Caller ann{.tenant = "ann", .key_id = "1"}, bob{.tenant = "bob", .key_id = "2"};
  const auto response = [](std::size_t size) { return StoredResponse{std::string(size, 'x'), {}}; };
  EXPECT_FALSE(store.put(ann, "large", response(4000)));
  EXPECT_TRUE(store.put(ann, "a1", response(1000)));
  EXPECT_TRUE(store.put(ann, "a2", response(1000)));
  EXPECT_NE(store.find(ann, "a1"), nullptr);
  EXPECT_TRUE(store.put(ann, "a3", response(1000)));
  EXPECT_EQ(store.find(ann, "a2"), nullptr) << "the one used least is gone";
  EXPECT_NE(store.find(ann, "a1"), nullptr);
  EXPECT_TRUE(store.put(bob, "b1", response(3000)));
  EXPECT_LE(store.bytes(), 6000U);
  EXPECT_NE(store.find(bob, "b1"), nullptr);
  EXPECT_EQ(store.find(ann, "b1"), nullptr);
  EXPECT_EQ(store.find({.tenant = "bob", .key_id = "3"}, "b1"), nullptr);
  EXPECT_FALSE(store.remove(ann, "b1"));
  EXPECT_TRUE(store.remove(bob, "b1"));
  for (const char* id : {"a1", "a2", "a3"}) store.remove(ann, id);
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(Dialects, InfillPutsEachPartBehindItsToken) {
  const Result<ApiPrompt> got = infill_prompt({.prefix = "a", .suffix = "b", .begun = "c"}, ByteText());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->tokens, (std::vector<std::int32_t>{1, 300, 'a', 301, 'b', 302, 'c'}));
  // What a text spells is no control token.
  const Result<ApiPrompt> spelt = infill_prompt({.prefix = "<fim_suffix>", .suffix = ""}, ByteText());
  EXPECT_EQ(std::ranges::count(spelt->tokens, 301), 1);
  EXPECT_EQ(infill_prompt({.prefix = "a", .suffix = "b"}, ByteText(false)).status().code(), StatusCode::kUnsupported);
  const Result<ReadBody> body =
      read(LlamaCompletion(true), {{"input_prefix", "a"},
                                   {"input_suffix", "b"},
                                   {"input_extra", Json::array({{{"filename", "f"}, {"text", "t"}}})}});
  ASSERT_TRUE(body.ok()) << body.status().message();
  EXPECT_EQ(body->request.prompts.at(0).tokens,
            (std::vector<std::int32_t>{1, '\n', '\n', 'f', '\n', 't', '\n', 300, 'a', 301, 'b', 302}));
}

TEST(Dialects, NoConstraintIsWithoutEffect) {
  ResponseStore store({});
  const OpenAiResponses responses(store);
  const LlamaCompletion llama(false);
  const OllamaDialect chat(true), generate(false);
  const AnthropicMessages anthropic;
  const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  const std::pair<const Dialect*, Json> all[] = {{&responses, {{"input", "x"}}},
                                                 {&llama, {{"prompt", "x"}}},
                                                 {&chat, {{"messages", messages}}},
                                                 {&generate, {{"prompt", "x"}}},
                                                 {&anthropic, {{"messages", messages}, {"max_tokens", 5}}}};
  for (const auto& [dialect, body] : all) {
    for (const Json& more : {Json{{"guided_regex", "a"}}, Json{{"response_format", {{"type", "json_object"}}}},
                             Json{{"structured_outputs", {{"choice", {"a"}}}}}, Json{{"grammar", "root ::= \"a\""}}}) {
      Json with = body;
      with.update(more);
      const Result<ReadBody> got = read(*dialect, with);
      EXPECT_TRUE(got.ok() && got->request.grammar) << with.dump() << got.status().message();
    }
    for (const char* field : {"regex", "choice"}) {
      Json with = body;
      with[field] = "a";
      const Result<ReadBody> got = read(*dialect, with);
      EXPECT_EQ(got.status().settings(), std::vector<std::string_view>{field}) << with.dump();
    }
  }
  EXPECT_EQ(read(llama, {{"prompt", "x"}, {"tool_choice", "required"}}).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(read(llama, {{"prompt", "x"}, {"grammar", ""}}).ok()) << "as its clients send it";
  EXPECT_TRUE(read(generate, {{"prompt", "x"}, {"format", ""}}).ok()) << "as its clients send it";
  EXPECT_FALSE(read(generate, {{"prompt", "x"}, {"options", {{"grammar", "root ::= \"a\""}}}}).ok());
}

TEST(Dialects, GbnfAndSchemasAreGrammars) {
  const Result<ReadBody> gbnf = read(LlamaCompletion(false), {{"prompt", "x"}, {"grammar", "root ::= \"a\""}});
  ASSERT_TRUE(gbnf.ok() && gbnf->request.grammar);
  EXPECT_EQ(gbnf->request.grammar->kind, GrammarSource::Kind::kGbnf);
  EXPECT_EQ(gbnf->request.grammar->text, "root ::= \"a\"");
  const Result<ReadBody> json = read(OllamaDialect(false), {{"prompt", "x"}, {"format", "json"}});
  ASSERT_TRUE(json.ok() && json->request.grammar);
  EXPECT_EQ(json->request.grammar->kind, GrammarSource::Kind::kJsonObject);
}

}  // namespace
}  // namespace kvasir::server
