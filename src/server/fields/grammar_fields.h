// Reads the fields that restrict an answer to a grammar: response_format (OpenAI), structured_outputs and guided_json,
// guided_regex, guided_choice, guided_grammar (vLLM), json_schema and grammar (llama-server).
// Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "server/api/api_request.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// What `"grammar": ""` means.
enum class EmptyGrammar {
  kError,
  kNone,  // no grammar, as clients of llama-server's own API send it
};

// Errors: kInvalidArgument for a malformed or empty field and for several that ask for a grammar; kUnsupported for
// forms that are not done here.
Status read_grammar_fields(const Fields& body, ApiRequest& request, EmptyGrammar empty = EmptyGrammar::kError);

// Refuses fields that restrict an answer in other APIs and that no reader of this one has looked for, so that none is
// without effect. Call it behind all readers. `instead`: what does that here. Errors: kUnsupported, about the field.
Status refuse_other_constraints(const Fields& body, std::string_view instead);

// Refuses a grammar of an answer that must be a call. Errors: kInvalidArgument, about the grammar's field.
Status check_grammar_with_tools(const ApiRequest& request);

}  // namespace kvasir::server
