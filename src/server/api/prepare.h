// Turns a body into a request that is ready for the engine: checked, rendered, tokenized. It is what the text thread
// does for a completion.
// Thread-safety: pure functions, for any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_request.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

// One prompt that is ready to run.
struct ReadyPrompt {
  PromptTokens prompt;
  std::string echo;                 // its text, if the answer begins with it
  std::vector<std::string> pieces;  // of each token, if the answer reports the prompt's log-probabilities
  // The most tokens that can be generated behind it; see RequestPlan::most_tokens. -1: a limit was given.
  std::int64_t most_tokens = -1;
};

struct ReadyRequest {
  bool restores_only = false;        // there is nothing to run
  ApiRequest request;                // without prompts and messages, unless it continues a session
  std::vector<ReadyPrompt> prompts;  // of a session's request none: its text depends on what the session holds
};

// What all requests have in common.
struct Preparation {
  std::string policy;        // of requests that name none; empty: the engine's default
  SamplingOptions sampling;  // of requests that give no temperature
  bool chat = false;
  int tenant = 0;  // whose ceiling prompts must fit
  // The session that a body of POST /v1/sessions/{id} is for: its text is read and nothing is generated; without any
  // text the session is only restored. "" for completions.
  std::string session;
};

// Errors: as read_request and ModelText::encode_prompt.
Result<ReadyRequest> prepare(std::string_view body, const Preparation& common, const StepThread& steps);

// Errors with the fields of a body in place of the engine's settings, of which those are dropped that no body has.
Status in_body(const Status& status);
// `wanted` is a model that is not served here, where `served` is.
Status unknown_model(const std::string& wanted, const std::string& served);

}  // namespace kvasir::server
