// Requests: texts that an engine reads and continues in parallel, pass after pass.
//
//   auto id = engine->submit({.prompt = "Once upon a time", .generate = {.max_tokens = 100}});
//   while (engine->unfinished() > 0) {
//     auto events = engine->poll();  // one forward pass for all requests that have work
//     if (!events.ok()) break;
//     for (const kvasir::Event& event : *events)
//       if (event.kind == kvasir::Event::Kind::kText) std::cout << event.text;
//   }
//
// A request gives the tokens and the text that a Session with the same policy and options would give, whatever runs
// beside it.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/grammar.h"
#include "kvasir/options.h"
#include "kvasir/pooling.h"
#include "kvasir/quality.h"
#include "kvasir/result.h"
#include "kvasir/status.h"

namespace kvasir {

class Session;

// How a prompt made of messages ends.
enum class PromptEnd {
  kAuto,      // kContinue after a message of the assistant, kOpen after any other
  kOpen,      // with the opening of an answer
  kContinue,  // with the last message, which the answer continues
  kClosed,    // with the last message, closed
};

// A call of a tool that the model asked for.
struct ToolCall {
  std::string id;  // given by the server or the client; "" where a template needs none
  std::string name;
  std::string arguments;  // JSON object, as text
};

// One message of a conversation.
struct Message {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  std::string reasoning = {};             // of the assistant: the thoughts before `content`
  std::vector<ToolCall> tool_calls = {};  // of the assistant, after `content`
  std::string tool_call_id = {};          // of a tool: the call that `content` answers
  std::string name = {};                  // of a tool: its name
};

// Which tools the model may call.
enum class ToolChoice {
  kAuto,      // any, or none
  kNone,      // none: the model does not hear of them
  kRequired,  // at least one
  kNamed,     // RequestOptions::tool_name, once
};

// Whether the model thinks before it answers. kOff: the prompt says so as far as the chat template can, and thoughts
// that the model opens all the same are closed at once.
enum class Thinking { kAuto, kOff, kOn };

struct RequestOptions {
  // The input: exactly one of these three is not empty.
  std::string prompt;                // text, read as Session::read does
  std::vector<Message> messages;     // written by the chat template; for a session read as Session::say reads them
  std::vector<std::int32_t> tokens;  // token ids, read unchanged: no BOS is added

  // For `messages`. A session's request takes only kAuto.
  PromptEnd prompt_end = PromptEnd::kAuto;

  // For `prompt`: control tokens written out in it, such as "<|im_start|>", become tokens. In messages they never do.
  bool parse_special = false;

  // For `messages`: variables of the chat template in the form of EngineOptions::template_arguments, which they
  // override.
  std::vector<std::pair<std::string, std::string>> template_arguments;
  // For `messages`: the tools that the chat template describes to the model, a JSON list in the form of OpenAI's API;
  // empty: none.
  std::string tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;            // of ToolChoice::kNamed
  bool parallel_tool_calls = true;  // false: one call per answer at most
  Thinking thinking = Thinking::kAuto;
  // The grammar of the answer's content; thoughts and calls of tools are not part of the content.
  // GenerateOptions::grammar, if given, replaces the grammar that this and the tools make. nullopt: the content may be
  // any text.
  std::optional<GrammarSource> grammar;
  // Asks to stop compiling that grammar, because nobody waits for the answer any more.
  std::stop_token stop_compiling;
  // For `tokens` that ModelText::encode_prompt made: its PromptTokens::stops. They end the text as `generate.stop`
  // does.
  std::vector<std::string> template_stops;
  // For `tokens` that ModelText::encode_prompt made: its PromptTokens::lasting_tokens. A policy that drops old tokens
  // snapshots this prefix. 0: not known.
  std::int64_t lasting_tokens = 0;

  // A session to continue; may be null. The prompt is appended to the session's context, and prompt and answer stay in
  // it: after kFinished the session is as after Session::say (or read) and generate. A request that fails, is
  // cancelled, or ends before its prompt has been read leaves the session unchanged. REQUIRES: nothing else uses the
  // session until then; one sample, no template_arguments; `policy` and `codec` empty or the session's own.
  std::shared_ptr<Session> session;
  // The caller destroys the session soon after the request has ended, for example after saving it. Until then the
  // session's memory is charged to the request's tenant, and requests that need it wait instead of ending with
  // kKvMemory.
  bool releases_session = false;

  std::string policy;  // as SessionOptions::policy
  // As SessionOptions::protect; a session keeps its own. For a chat: PromptTokens::system_tokens.
  std::int64_t protect = 0;
  std::string codec;  // as SessionOptions::codec
  // As SessionOptions::lora; a session keeps its own.
  std::optional<std::vector<AdapterScale>> lora;
  // Where dropped tokens go, overriding the policy's spec: "q4", "file", "q4,file", "off" (docs/policies/demotion.md);
  // empty: as the spec says.
  std::string demote;
  // Whether thoughts leave the cache when they close, overriding the policy's option: "keep", "drop"; empty: as the
  // spec says.
  std::string thoughts;
  // Moves the policy's budget so that the answer holds a bound on its distance from the full cache
  // (docs/policies/quality.md). Without max_tokens the answer ends where the trained context does, or where the full
  // cache beside it no longer fits. REQUIRES: one sample, no session, no pooling; a policy with a budget in tokens.
  std::optional<QualityOptions> quality;
  GenerateOptions generate;  // `resume` has no effect
  // Continuations of the prompt, 1 to 64, numbered from 0; sample i has seed + i, at most 2^64 - 1. They share the
  // prompt's pages.
  int samples = 1;

  // Reads the prompt and generates nothing: the result's `embedding` is its pooled hidden states, under the request's
  // policy. kNone: the request generates. REQUIRES otherwise: one sample, no session, no grammar and no
  // prompt_logprobs; max_tokens is taken as 0, and the prefix cache is bypassed.
  Pooling pooling = Pooling::kNone;

  // Lower runs earlier; among equals, the one that arrived first.
  int priority = 0;
  // Tenant whose quota its pages are charged to: see Engine::set_quota.
  int tenant = 0;

  // Requests share cached prefixes only where their salts are equal.
  std::string salt;
  bool bypass = false;  // neither continues a cached prefix nor leaves one
  bool pin = false;     // its prefix is evicted after all unpinned ones
  double ttl = 0;       // seconds for which its prefix can be continued; 0: while there is room

  // Name of the request in views (kvasir/view.h); any text.
  std::string label;
  // Keeps the view of its tokens for Engine::tokens_of after it has ended, until several more such requests have ended.
  bool inspect = false;
};

// Identifies a request of one engine; never reused.
enum class RequestId : std::uint64_t {};

// An event of one sample in a pass.
struct Event {
  enum class Kind {
    kPrompt,  // prompt tokens were read: `done` of `total`. Only for sample 0, which reads for all
    kText,    // `text` became complete: UTF-8 that no stop string can begin in. The texts of a sample concatenated are
              // its result's text. `done`: tokens generated so far
    kFinished,  // the sample has ended: `result`. Its last event
    kFailed,    // the sample cannot go on: `status`. Its last event
  };
  RequestId request{};
  int sample = 0;
  Kind kind = Kind::kText;
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::string text;
  // With GenerateOptions::logprobs, on kText and kFinished: the tokens accepted since the last such event of this
  // sample. Concatenated they are the result's `choices`.
  std::vector<GeneratedToken> choices;
  GenerateResult result;
  // kFailed: kDataLoss (the model's output is NaN), kResourceExhausted (the system's memory, or a prompt that outgrew
  // the trained context under its policy). kFinished with kKvMemory: how many bytes were missing. Otherwise ok.
  Status status;
};

}  // namespace kvasir
