// Requests: texts that an engine reads and continues side by side, pass after pass.
//
//   auto id = engine->submit({.prompt = "Once upon a time", .generate = {.max_tokens = 100}});
//   while (engine->unfinished() > 0) {
//     auto events = engine->poll();  // one forward pass for all requests that have work
//     if (!events.ok()) break;
//     for (const kvasir::Event& event : *events)
//       if (event.kind == kvasir::Event::Kind::kText) std::cout << event.text;
//   }
//
// A request has the tokens and the text that a Session of the same policy and options would have, whatever runs beside
// it.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/options.h"
#include "kvasir/result.h"
#include "kvasir/status.h"

namespace kvasir {

class Session;

// How the prompt made of messages ends.
enum class PromptEnd {
  kAuto,      // kContinue after a message of the assistant, kOpen after any other
  kOpen,      // with the opening of an answer
  kContinue,  // with the last message, which the answer continues
  kClosed,    // with the last message, closed
};

// One message of a conversation.
struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct RequestOptions {
  // What is read: exactly one of these three is not empty.
  std::string prompt;             // text, read as Session::read does
  std::vector<Message> messages;  // as the model's chat template writes them; of a session as Session::say reads them
  std::vector<std::int32_t> tokens;  // token ids, read as they stand: the engine adds no BOS

  // Of `messages`. A session's request takes kAuto alone.
  PromptEnd prompt_end = PromptEnd::kAuto;

  // Of `prompt`: control tokens written out in it, such as "<|im_start|>", become these tokens. In messages they never
  // do.
  bool parse_special = false;

  // Of `messages`: variables of the chat template besides EngineOptions::template_arguments, in the same form. Where
  // names are equal, these count.
  std::vector<std::pair<std::string, std::string>> template_arguments;
  // Of `tokens` that ModelText::encode_prompt made: PromptTokens::stops. They end the text as `generate.stop` does.
  std::vector<std::string> template_stops;

  // A session to continue; may be null. The prompt is read behind what the session holds, and prompt and answer stay in
  // it: when kFinished has been told, the session is what it would be after Session::say (or read) and generate. A
  // request that fails, is cancelled, or ends before its prompt has been read leaves the session as it was. REQUIRES:
  // nothing else uses the session until then; one sample, no template_arguments; `policy` and `codec` empty or the
  // session's own.
  std::shared_ptr<Session> session;
  // The caller destroys the session soon after the request has ended (it saves it, say). Until then what the session
  // holds counts for the request's tenant, and requests that need its memory wait instead of ending with kKvMemory.
  bool releases_session = false;

  std::string policy;  // as SessionOptions::policy
  // As SessionOptions::protect; a session keeps its own. A chat sets it to PromptTokens::system_tokens.
  std::int64_t protect = 0;
  std::string codec;  // as SessionOptions::codec
  // Where what the policy drops goes, in place of what the policy's spec says: "q4", "file", "q4,file", "off"
  // (docs/policies/demotion.md); empty: as the spec says.
  std::string demote;
  GenerateOptions generate;  // `resume` has no effect
  // Continuations of the prompt, 1 to 64, numbered from 0; sample i has seed + i, at most 2^64 - 1. They share the
  // prompt's pages.
  int samples = 1;

  // When it runs: less runs earlier; among equals, the one that arrived first.
  int priority = 0;
  // On whose quota its pages count: see Engine::set_quota.
  int tenant = 0;

  // Requests share cached prefixes only where their salts are equal.
  std::string salt;
  bool bypass = false;  // neither continues a cached prefix nor leaves one
  bool pin = false;     // the prefix that it leaves goes last, after all that are not pinned
  double ttl = 0;       // seconds for which the prefix that it leaves can be continued; 0: for as long as there is room

  // By what views name the request (kvasir/view.h); any text.
  std::string label;
  // Keeps the view of its tokens for Engine::tokens_of when it has ended, until several more such requests have ended.
  bool inspect = false;
};

// Names a request of one engine; never used twice.
enum class RequestId : std::uint64_t {};

// What happened to one sample of a request in a pass.
struct Event {
  enum class Kind {
    kPrompt,  // prompt tokens were read: `done` of `total`. Told of sample 0 alone, which reads for all
    kText,    // `text` became complete: UTF-8 that no stop string can begin in. The texts of a sample concatenated are
              // its result's text
    kFinished,  // the sample has ended: `result`. Its last event
    kFailed,    // the sample cannot go on: `status`. Its last event
  };
  RequestId request{};
  int sample = 0;
  Kind kind = Kind::kText;
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::string text;
  // With GenerateOptions::logprobs, of kText and kFinished: the tokens that were accepted since the last such event of
  // this sample. Concatenated they are the result's `choices`.
  std::vector<GeneratedToken> choices;
  GenerateResult result;
  // kFailed: kDataLoss (the model's output is NaN), kResourceExhausted (the system's memory, or a prompt that outgrew
  // the trained context under its policy). kFinished with kKvMemory: how many bytes were missing. Otherwise ok.
  Status status;
};

}  // namespace kvasir
