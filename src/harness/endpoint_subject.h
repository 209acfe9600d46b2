// Asks a server by the completions of OpenAI's API, so that other engines are measured by the same tasks.
#pragma once

#include <memory>
#include <string>

#include "harness/subject.h"

namespace kvasir {

struct EndpointOptions {
  std::string url;               // "http://127.0.0.1:8080", with or without /v1
  std::string model;             // sent as `model`; empty: not sent
  std::string key;               // sent as a bearer token; empty: none
  nlohmann::ordered_json body;   // fields added to every request; an object, or null
  double timeout_seconds = 600;  // most that a request may take; up to 1,000,000
};

// Asks `url`/v1/completions, or /v1/chat/completions of chats. Log-likelihoods need a server that reports those of a
// prompt (`echo` with `logprobs`) and counts its tokens (`usage`), as Kvasir and vLLM do; llama-server reports none.
// The first token of a rolling text is not scored, and all of it is one request. A request for which the server is too
// busy (HTTP 429 or 503) or that no longer reaches it is sent again, with longer and longer pauses, and not before the
// time that the server's Retry-After names, up to five minutes; after six tries the run ends with kIo. It ends at once
// where a request takes longer than the timeout. Errors: kInvalidArgument for the address; kUnsupported without
// libcurl.
Result<std::unique_ptr<Subject>> make_endpoint_subject(EndpointOptions options);

}  // namespace kvasir
