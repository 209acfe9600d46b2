// Reads the fields that restrict an answer to a grammar: response_format (OpenAI), structured_outputs and guided_json,
// guided_regex, guided_choice, guided_grammar (vLLM), json_schema and grammar (llama-server).
// Thread-safety: pure functions.
#pragma once

#include "server/api/api_request.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Errors: kInvalidArgument for a malformed field and for several that ask for a grammar; kUnsupported for forms that
// are not done here.
Status read_grammar_fields(const Fields& body, ApiRequest& request);

}  // namespace kvasir::server
