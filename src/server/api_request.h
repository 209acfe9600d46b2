// What a client asks: bodies of the OpenAI API as requests of the engine.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/request.h"
#include "kvasir/status.h"

namespace kvasir::server {

struct ApiRequest {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  bool echo = false;           // of completions: the prompt stands in front of the text
  bool logprobs = false;
  bool token_limit_given = false;
  std::string model;  // "" if the request names none
  RequestOptions options;
};

// Parses a JSON object of at most 64 levels. Errors: kInvalidArgument with the place.
Result<nlohmann::json> parse_body(std::string_view body);

// Reads the body of POST /v1/chat/completions, or of /v1/completions. Fields that are unknown are ignored. Errors:
// kInvalidArgument for a value of the wrong type or out of range, kUnsupported for a field that cannot be honoured;
// both are about() the field.
Result<ApiRequest> read_request(const nlohmann::json& body, bool chat);

// Reads the messages of a chat, as in its body. Errors: as read_request.
Result<std::vector<Message>> read_messages(const nlohmann::json& body);

}  // namespace kvasir::server
