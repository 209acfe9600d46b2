// Turns a body into a request that is ready for the engine: checked, rendered, tokenized. Runs on the text thread; what
// compiles a grammar, on one of the threads for that.
// Thread-safety: pure functions, for any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/dialect.h"
#include "server/models/served.h"

namespace kvasir::server {

// One prompt that is ready to run.
struct ReadyPrompt {
  PromptTokens prompt;
  std::string echo;                 // the prompt's text, if the answer begins with it
  std::vector<std::string> pieces;  // text of each token, if the answer reports the prompt's log-probabilities
  std::vector<std::int32_t> ids;    // the tokens, if the answer reports them
  // The most tokens that can be generated behind it; see RequestPlan::most_tokens. -1: the client gave a limit.
  std::int64_t most_tokens = -1;
};

struct ReadyRequest {
  bool restores_only = false;        // restores a session, without text to run
  ApiRequest request;                // without prompts and messages, unless it continues a session
  std::vector<ReadyPrompt> prompts;  // empty for a session's request, whose tokens depend on the session
  std::unique_ptr<AnswerWriter> writer;
  std::string at_once;  // see ReadBody
};

// What is known of a request beside its body.
struct Preparation {
  const Dialect* dialect = nullptr;
  const Exchange* exchange = nullptr;  // its caller's ceiling prompts must fit; only its answer may change meanwhile
  // The session of POST /v1/sessions/{id}, whose text is read without generating; without text the session is only
  // restored. "" for completions.
  std::string session;
};

// Reads a body. The request is ready once finish_request() has returned, unless ReadyRequest::at_once is set. Errors:
// as Dialect::read.
Result<ReadyRequest> begin_request(std::string_view body, const Preparation& common, const Served& model);

// Whether finish_request() may compile a grammar, which takes up to seconds.
bool needs_grammar(const ReadyRequest& ready);

// Renders, tokenizes and compiles what was read. `stop`: asks to stop compiling. Errors: as ModelText::encode_prompt
// and ModelText::compile.
Status finish_request(ReadyRequest& ready, const Preparation& common, const Served& model, std::stop_token stop);

// Returns the tokens of a request's messages or prompt. Errors: as ModelText::encode_prompt, about fields of the body.
Result<PromptTokens> encode_request_text(const ModelText& text, const RequestOptions& options);

// Returns the error with the engine's settings replaced by a body's fields; drops settings that no field corresponds
// to.
Status in_body(const Status& status);

}  // namespace kvasir::server
