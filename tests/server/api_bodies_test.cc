#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/api/api_request.h"
#include "server/api/prepare.h"
#include "server/fields/grammar_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

Result<ApiRequest> completion(const char* body) {
  const Result<Json> json = parse_body(body);
  return json.ok() ? read_request(*json, false, {}) : json.status();
}

Result<ApiRequest> chat(const char* more) {
  Json json = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  json.update(Json::parse(more));
  return read_request(json, true, {});
}

std::string field(const Result<ApiRequest>& request) {
  if (request.ok()) return "it is fine";
  return request.status().settings().empty() ? "none" : std::string(request.status().settings().front());
}

TEST(ApiBodies, PromptsOfAllForms) {
  EXPECT_EQ(completion(R"({"prompt":"a"})")->prompts[0].text, "a");
  EXPECT_EQ(completion(R"({"prompt":[1,2]})")->prompts[0].tokens, (std::vector<std::int32_t>{1, 2}));
  const auto two = completion(R"({"prompt":["a","b"]})");
  ASSERT_EQ(two->prompts.size(), 2u);
  EXPECT_EQ(two->prompts[1].text, "b");
  EXPECT_EQ(completion(R"({"prompt":[[1],[2,3]]})")->prompts[1].tokens.size(), 2u);
  for (const char* wrong : {R"({})", R"({"prompt":""})", R"({"prompt":[]})", R"({"prompt":[[]]})", R"({"prompt":{}})",
                            R"({"prompt":["a",1]})", R"({"prompt":[1,"a"]})", R"({"prompt":[1.5]})",
                            R"({"prompt":[[["a"]]]})", R"({"prompt":[-1]})", R"({"prompt":[99999999999]})"})
    EXPECT_EQ(field(completion(wrong)), "prompt") << wrong;
}

TEST(ApiBodies, SamplingAsTheApiHasIt) {
  const auto request = completion(
      R"({"prompt":"a","temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"seed":7,"frequency_penalty":1,
          "presence_penalty":-1,"repetition_penalty":1.1,"logit_bias":{"5":-100,"7":2.5},"max_tokens":5.0})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  const SamplingOptions& sampling = request->options.generate.sampling;
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.seed, 7u);
  EXPECT_EQ(request->options.generate.max_tokens, 5);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  EXPECT_EQ(sampling.logit_bias[0], (std::pair<std::int32_t, float>{5, -100.0F}));
  EXPECT_NE(completion(R"({"prompt":"a","seed":0})")->options.generate.sampling.seed, 0u) << "0 asks for a random one";
  EXPECT_EQ(completion(R"({"prompt":"a"})")->options.generate.max_tokens, 16);
  EXPECT_FALSE(completion(R"({"prompt":"a"})")->token_limit_given);
  EXPECT_EQ(chat("{}")->options.generate.max_tokens, -1);
  for (const char* wrong :
       {R"({"logit_bias":[]})", R"({"logit_bias":{"a":1}})", R"({"logit_bias":{"":1}})", R"({"logit_bias":{"1":"1"}})",
        R"({"logit_bias":{"-1":1}})", R"({"logit_bias":{" 1":1}})", R"({"logit_bias":{"99999999999":1}})"})
    EXPECT_EQ(field(chat(wrong)), "logit_bias") << wrong;
}

TEST(ApiBodies, SaysWhatWouldDo) {
  for (const char* wrong : {"18446744073709551616", "-9223372036854775809", "1.5", "\"x\""}) {
    const auto request = completion(fmt::format(R"({{"prompt":"a","seed":{}}})", wrong).c_str());
    EXPECT_EQ(field(request), "seed");
    EXPECT_EQ(request.status().message(),
              "'seed' must be a whole number from -9223372036854775808 to 18446744073709551615");
  }
  EXPECT_TRUE(completion(R"({"prompt":"a","seed":18446744073709551615})").ok());
  EXPECT_TRUE(completion(R"({"prompt":"a","seed":-9223372036854775808})").ok());
  EXPECT_EQ(chat(R"({"messages":[5]})").status().message(),
            "'messages[0]' must be an object with 'role' and 'content'");
  EXPECT_EQ(chat(R"({"messages":[{"content":"x"}]})").status().message(), "'messages[0].role' must be a string");
  EXPECT_EQ(chat(R"({"messages":[{"role":"user"}]})").status().message(), "'messages[0].content' is missing");
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":null}]})").status().message(),
            "'messages[0].content' is missing");
  EXPECT_TRUE(chat(R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}]})").ok());
}

// Settings of the engine that no body has are no fields.
TEST(ApiBodies, ErrorsNameFieldsOfBodies) {
  const Status status(StatusCode::kResourceExhausted, "too much");
  EXPECT_EQ(in_body(Status(status).about({"kv_memory", "policy"})).settings().front(), "kv.policy");
  EXPECT_EQ(in_body(Status(status).about({"tenant", "session"})).settings().front(), "session");
  EXPECT_EQ(in_body(Status(status).about({"samples"})).settings().front(), "n");
  EXPECT_EQ(in_body(Status(status).about({"max_tokens", "prompt"})).settings().front(), "max_tokens");
  for (const char* setting : {"kv_memory", "tenant", "chunk", "beams"})
    EXPECT_TRUE(in_body(Status(status).about({setting})).settings().empty()) << setting;
  EXPECT_EQ(in_body(status).message(), "too much");
}

TEST(ApiBodies, BestOf) {
  const auto request = completion(R"({"prompt":"a","n":2,"best_of":5})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->n, 2);
  EXPECT_EQ(request->options.samples, 5);
  EXPECT_EQ(request->options.generate.logprobs, 0) << "the best are found by their log-probabilities";
  EXPECT_FALSE(request->logprobs);
  EXPECT_EQ(field(completion(R"({"prompt":"a","n":3,"best_of":2})")), "best_of");
  EXPECT_EQ(field(completion(R"({"prompt":"a","best_of":2,"stream":true})")), "best_of");
  EXPECT_EQ(field(completion(R"({"prompt":["a","b","c"],"n":64})")), "n");
  EXPECT_EQ(field(completion(R"({"prompt":["a","b","c"],"n":2,"best_of":64})")), "best_of");
  EXPECT_EQ(chat(R"({"best_of":5})")->options.samples, 5) << "as vLLM's chats have it";
}

TEST(ApiBodies, LogProbabilities) {
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":3})")->options.generate.logprobs, 3);
  EXPECT_EQ(chat(R"({"logprobs":true,"top_logprobs":4})")->options.generate.logprobs, 4);
  EXPECT_EQ(field(chat(R"({"top_logprobs":4})")), "top_logprobs");
  const auto echo = completion(R"({"prompt":"a","echo":true,"logprobs":1})");
  EXPECT_EQ(echo->options.generate.prompt_logprobs, 1);
  EXPECT_TRUE(echo->options.bypass);
  EXPECT_EQ(completion(R"({"prompt":"a","echo":true})")->options.generate.prompt_logprobs, -1);
  EXPECT_EQ(field(completion(R"({"prompt":"a","echo":true,"logprobs":1,"stream":true})")), "echo");
}

TEST(ApiBodies, TemplateArgumentsAreJson) {
  const auto request = chat(R"({"chat_template_kwargs":{"a":true,"b":"true","c":{"d":[1,null]}}})");
  ASSERT_TRUE(request.ok());
  const std::vector<std::pair<std::string, std::string>> want = {
      {"a", "true"}, {"b", "\"true\""}, {"c", R"({"d":[1,null]})"}};
  EXPECT_EQ(request->options.template_arguments, want);
  EXPECT_EQ(field(chat(R"({"chat_template_kwargs":[]})")), "chat_template_kwargs");
}

TEST(ApiBodies, WhatCannotBeHonouredIsNamed) {
  for (const char* name : {"tools", "functions", "audio", "images", "tool_choice", "suffix"}) {
    const Json more = {{name, "x"}};
    EXPECT_EQ(field(chat(more.dump().c_str())), name);
  }
  EXPECT_EQ(field(chat(R"({"response_format":{"type":"json_schema"}})")), "response_format");
  EXPECT_TRUE(chat(R"({"response_format":{"type":"text"},"tools":[],"tool_choice":"none","suffix":"",
                       "modalities":["text"],"unheard_of":{"x":1}})")
                  .ok());
  EXPECT_EQ(field(chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})")), "messages");
  EXPECT_EQ(field(chat(R"({"messages":[{"role":"function","content":"x"}]})")), "messages");
  EXPECT_EQ(field(chat(R"({"stop":["x",""]})")), "stop");
  EXPECT_EQ(field(chat(R"({"user":5})")), "user");
  EXPECT_EQ(field(chat(R"({"priority":5000})")), "priority");
}

TEST(ApiBodies, AConstraintWithoutEffectIsRefused) {
  for (const char* name : {"grammar", "guided_grammar", "guided_regex"}) {
    const Json more = {{name, ""}};
    EXPECT_EQ(field(chat(more.dump().c_str())), name);
  }
  EXPECT_EQ(field(chat(R"({"structured_outputs":{}})")), "structured_outputs");
  EXPECT_EQ(field(chat(R"({"structured_outputs":{"json":null}})")), "structured_outputs");
  EXPECT_EQ(field(chat(R"({"structured_outputs":{"regex":"a","choice":["b"]}})")), "structured_outputs.regex");
  EXPECT_EQ(field(chat(R"({"guided_regex":"a","grammar":"root ::= \"a\""})")), "grammar");
  EXPECT_EQ(field(chat(R"({"regex":"a"})")), "regex");
  EXPECT_EQ(field(chat(R"({"choice":["a"]})")), "choice");
  EXPECT_EQ(field(chat(R"({"reasoning_effort":"banana"})")), "reasoning_effort");
  EXPECT_EQ(chat(R"({"reasoning_effort":"high"})")->thinking_fields, std::vector<std::string>{"reasoning_effort"});
  auto demanded = chat(R"({"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required",
                           "guided_regex":"a"})");
  ASSERT_TRUE(demanded.ok());
  EXPECT_EQ(check_grammar_with_tools(*demanded).settings(), std::vector<std::string_view>{"guided_regex"});
  demanded->options.tool_choice = ToolChoice::kAuto;
  EXPECT_TRUE(check_grammar_with_tools(*demanded).ok());
}

TEST(ApiBodies, ToolsAndThoughts) {
  const auto request = chat(R"({"tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false,
      "reasoning_effort":"none","messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":null,"reasoning_content":"t","tool_calls":[
        {"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"r"}]}]})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->options.tools, R"([{"function":{"name":"f"},"type":"function"}])");
  EXPECT_FALSE(request->options.parallel_tool_calls);
  EXPECT_EQ(request->options.thinking, Thinking::kOff);
  const std::vector<Message>& said = request->options.messages;
  EXPECT_EQ(said[1].reasoning, "t");
  ASSERT_EQ(said[1].tool_calls.size(), 1u);
  EXPECT_EQ(said[1].tool_calls[0].id, "c");
  EXPECT_EQ(said[2].tool_call_id, "c");
  EXPECT_EQ(said[2].content, "r");
  constexpr const char* kTools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const auto with = [&](std::string more) {
    return field(chat(("{" + std::string(kTools) + "," + more + "}").c_str()));
  };
  EXPECT_EQ(chat((std::string("{") + kTools + R"(,"tool_choice":"required"})").c_str())->options.tool_choice,
            ToolChoice::kRequired);
  const auto named =
      chat((std::string("{") + kTools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})").c_str());
  EXPECT_EQ(named->options.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named->options.tool_name, "f");
  EXPECT_EQ(field(chat(R"({"tool_choice":"required"})")), "tool_choice");
  EXPECT_EQ(with(R"("tool_choice":5)"), "tool_choice");
  EXPECT_EQ(with(R"("session":"s")"), "tools");
  EXPECT_EQ(field(chat(R"({"reasoning_format":"none"})")), "reasoning_format");
  for (const char* calls : {"5", "[5]", "[{}]", R"([{"type":"x","function":{"name":"f"}}])",
                            R"([{"function":{"name":"f","arguments":5}}])", R"([{"function":{"name":""}}])"})
    EXPECT_EQ(field(chat((R"({"messages":[{"role":"assistant","tool_calls":)" + std::string(calls) + "}]}").c_str())),
              "messages");
  EXPECT_EQ(field(chat(R"({"messages":[{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}]})")),
            "messages");
}

TEST(ApiBodies, BudgetsOfThoughts) {
  const std::pair<const char*, const char*> ways[] = {
      {R"({"thinking_token_budget":5})", "thinking_token_budget"},
      {R"({"reasoning_budget":5.0})", "reasoning_budget"},
      {R"({"reasoning_budget_tokens":5})", "reasoning_budget_tokens"},
      {R"({"thinking_budget_tokens":5})", "thinking_budget_tokens"},
      {R"({"reasoning":{"max_tokens":5}})", "reasoning.max_tokens"},
      {R"({"thinking":{"type":"enabled","budget_tokens":5}})", "thinking.budget_tokens"},
      {R"({"chat_template_kwargs":{"thinking_budget":5}})", "chat_template_kwargs.thinking_budget"},
      {R"({"thinking_token_budget":9,"reasoning":{"max_tokens":5}})", "reasoning.max_tokens"}};
  for (const auto& [body, name] : ways) {
    const auto request = chat(body);
    ASSERT_TRUE(request.ok()) << body << request.status().message();
    EXPECT_EQ(request->options.generate.thought_budget, 5) << body;
    EXPECT_STREQ(request->budget_field, name);
    EXPECT_TRUE(request->ignored.empty()) << body;
  }
  for (const char* none : {"{}", R"({"thinking_token_budget":-1})", R"({"thinking":{"type":"enabled"}})"})
    EXPECT_EQ(chat(none)->options.generate.thought_budget, -1) << none;
  for (const char* off : {R"({"thinking_token_budget":0})", R"({"reasoning":{"max_tokens":0}})",
                          R"({"reasoning":{"effort":"none"}})", R"({"thinking":{"type":"disabled"}})"})
    EXPECT_EQ(chat(off)->options.thinking, Thinking::kOff) << off;
  EXPECT_EQ(chat(R"({"reasoning":{"max_tokens":5,"exclude":true}})")->ignored,
            std::vector<std::string>{"reasoning.exclude"});
  EXPECT_EQ(chat(R"({"thinking":{"type":"adaptive","budget_tokens":5}})")->ignored,
            std::vector<std::string>{"thinking.budget_tokens"});
  EXPECT_EQ(field(chat(R"({"thinking_token_budget":-2})")), "thinking_token_budget");
  EXPECT_EQ(field(chat(R"({"thinking_token_budget":"5"})")), "thinking_token_budget");
  EXPECT_EQ(field(chat(R"({"reasoning":{"max_tokens":1.5}})")), "reasoning.max_tokens");
  EXPECT_EQ(field(chat(R"({"reasoning":5})")), "reasoning");
  EXPECT_EQ(field(chat(R"({"reasoning":{"effort":5}})")), "reasoning.effort");
  EXPECT_EQ(field(chat(R"({"thinking":{"type":"on"}})")), "thinking");
  EXPECT_EQ(field(chat(R"({"thinking_token_budget":5,"session":"s"})")), "session");
}

TEST(ApiBodies, Kv) {
  const auto request = chat(R"({"kv":{"policy":"full","pin":true,"ttl":1.5,"bypass":true},"cache_salt":"s"})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->options.policy, "full");
  EXPECT_TRUE(request->options.pin && request->options.bypass);
  EXPECT_EQ(request->options.ttl, 1.5);
  EXPECT_EQ(request->options.salt, "s");
  EXPECT_EQ(field(chat(R"({"kv":5})")), "kv");
  EXPECT_EQ(field(chat(R"({"kv":{"ttl":-1}})")), "kv.ttl");
  EXPECT_EQ(field(chat(R"({"kv":{"ttl":1e300}})")), "kv.ttl");
  EXPECT_EQ(field(chat(R"({"kv":{"pin":1}})")), "kv.pin");
  const auto misspelt = chat(R"({"kv":{"pin":true,"polcy":"full"}})");
  EXPECT_EQ(field(misspelt), "kv");
  EXPECT_EQ(misspelt.status().message(),
            "'kv' has no field 'polcy'; it has: policy, codec, demote, thoughts, quality, pin, ttl, bypass, inspect");
}

TEST(ApiBodies, KvHints) {
  const auto request = chat(R"({"kv_hints":{"protocol_version":"0.1","message_id":"m","actions":[
      {"action_id":"1","action_type":"retain","action_version":"0.1","payload":{"ttl_seconds":60}},
      {"action_id":"2","action_type":"pin"},{"action_id":"3","action_type":"prefetch","payload":{}},
      {"action_id":"4","action_type":"else"}]}})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_TRUE(request->options.pin);
  EXPECT_EQ(request->options.ttl, 60);
  const Json answer = hints_answer(request->hints);
  EXPECT_EQ(answer["message_id"], "m");
  EXPECT_EQ(answer["actions"][0]["outcome"], "applied");
  EXPECT_EQ(answer["actions"][2]["outcome"], "no_op");
  EXPECT_EQ(answer["actions"][3]["outcome"], "ignored");
  const auto later =
      chat(R"({"kv_hints":{"protocol_version":"9.0","actions":[{"action_id":"1","action_type":"pin"}]}})");
  ASSERT_TRUE(later.ok());
  EXPECT_FALSE(later->options.pin) << "a version that we do not know says what we do not know";
  for (const char* wrong :
       {R"({"kv_hints":[]})", R"({"kv_hints":{}})", R"({"kv_hints":{"protocol_version":0.1,"actions":[]}})",
        R"({"kv_hints":{"protocol_version":"0.1","actions":{}}})",
        R"({"kv_hints":{"protocol_version":"0.1","actions":[1]}})",
        R"({"kv_hints":{"protocol_version":"0.1","actions":[{"action_type":5}]}})"})
    EXPECT_EQ(field(chat(wrong)), "kv_hints") << wrong;
}

TEST(ApiBodies, SessionIds) {
  for (const char* good : {"a", "A-b_9", "0123456789012345678901234567890123456789012345678901234567890123"})
    EXPECT_TRUE(is_session_id(good)) << good;
  for (const char* bad : {"", ".", "..", "a/b", "a.b", "a b", "\xc3\xa9", "a\n",
                          "01234567890123456789012345678901234567890123456789012345678901234"})
    EXPECT_FALSE(is_session_id(bad)) << bad;
  EXPECT_EQ(completion(R"({"prompt":"a","session":"s"})")->session, "s");
  EXPECT_EQ(field(completion(R"({"prompt":"a","session":"../s"})")), "session");
  EXPECT_EQ(field(completion(R"({"prompt":["a","b"],"session":"s"})")), "prompt");
  EXPECT_EQ(field(chat(R"({"session":"s","n":2})")), "session");
  EXPECT_EQ(field(chat(R"({"session":"s","chat_template_kwargs":{"a":1}})")), "chat_template_kwargs");
}

}  // namespace
}  // namespace kvasir::server
