// Any bytes as the body of a request: it is refused with a message, or read into a request within the API's bounds.
//
// The input: a byte whose lowest bit says chat or completion, then the body.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "generation/generation.h"
#include "server/api/api_request.h"
#include "server/api/api_response.h"

namespace {

using namespace kvasir;
using namespace kvasir::server;

void check_refusal(const Status& status) {
  KVASIR_CHECK(!status.message().empty());
  KVASIR_CHECK(http_status(status) == 400);
  KVASIR_CHECK(!text_of(error_of(status)).empty());
}

void check_request(const ApiRequest& request, bool chat) {
  KVASIR_CHECK(request.chat == chat);
  KVASIR_CHECK(chat ? !request.options.messages.empty() && request.prompts.empty()
                    : request.options.messages.empty() && !request.prompts.empty());
  KVASIR_CHECK(request.prompts.size() <= kMostPrompts);
  for (const ApiPrompt& prompt : request.prompts) KVASIR_CHECK(prompt.text.empty() != prompt.tokens.empty());
  KVASIR_CHECK(request.n >= 1 && request.options.samples >= request.n && request.options.samples <= 64);
  KVASIR_CHECK(request.session.empty() || is_session_id(request.session));
  KVASIR_CHECK(request.options.ttl >= 0);
  for (const std::string& stop : request.options.generate.stop) KVASIR_CHECK(!stop.empty());
  // What the engine checks again must not crash it either.
  if (const Status status = validate(request.options.generate); !status.ok()) check_refusal(status);
  if (request.hints.given) KVASIR_CHECK(!text_of(hints_answer(request.hints)).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool chat = (data[0] & 1) != 0;
  const Result<nlohmann::json> body = parse_body({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body.ok()) {
    check_refusal(body.status());
    return 0;
  }
  const Result<ApiRequest> request = read_request(*body, chat, {});
  if (request.ok()) {
    check_request(*request, chat);
    KVASIR_CHECK(read_prompts(*body, chat).ok());
  } else {
    check_refusal(request.status());
  }
  return 0;
}
