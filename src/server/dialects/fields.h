// Fields that the dialects have in common.
// Errors name the field by about(). Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/options.h"
#include "kvasir/status.h"
#include "server/api/api_request.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Returns kUnsupported, which names a field that cannot be honoured and says why. REQUIRES: a string literal.
Status not_done(const char* field, std::string_view why);

// Refuses these fields where they are given with a value that asks for something: not null, false, "", [] or {}.
// REQUIRES: string literals.
Status refuse_fields(const Fields& body, std::initializer_list<const char*> fields);

// As read_stops. Errors: also for a string of more than kLongestStop bytes, about this field.
Status read_bounded_stops(const Fields& body, const char* field, std::vector<std::string>& stops);

// Returns the grammar of JSON that a schema accepts.
GrammarSource schema_grammar(const nlohmann::json& schema);

// Sets a variable of the chat template to JSON.
void set_template_argument(RequestOptions& options, std::string name, const nlohmann::json& value);

// Returns the arguments of a call as an object; other text, which a model may write, under "arguments".
nlohmann::json arguments_object(const std::string& text);

// Returns a server-sent event with a name.
std::string named_event(std::string_view name, const nlohmann::json& data);

}  // namespace kvasir::server
