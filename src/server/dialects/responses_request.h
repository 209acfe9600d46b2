// Reads the bodies of OpenAI's Responses API.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "server/api/dialect.h"
#include "server/dialects/response_store.h"

namespace kvasir::server {

struct ResponsesBody {
  ApiRequest request;
  std::vector<Message> conversation;  // as the request's messages, without instructions
  bool store = true;
  // Members of the answer that repeat the body: "instructions", "metadata", "tools" and the like.
  nlohmann::json repeated;
};

// Errors: as Dialect::read. `store`: for previous_response_id.
Result<ResponsesBody> read_responses(const nlohmann::json& body, ResponseStore& store, const ReadContext& context);

}  // namespace kvasir::server
