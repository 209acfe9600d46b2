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

namespace kvasir::server {

// Returns kUnsupported, which names a field that cannot be honoured and says why. REQUIRES: a string literal.
Status not_done(const char* field, std::string_view why);

// Refuses these fields where they are given with a value that asks for something: not null, false, "", [] or {}.
// REQUIRES: string literals.
Status refuse_fields(const nlohmann::json& body, std::initializer_list<const char*> fields);

// Reads a list of at most 16 texts of up to 1,024 bytes, none empty.
Status read_texts(const nlohmann::json& body, const char* field, std::vector<std::string>& texts);

// Makes the sampling of a request that names a temperature the plain distribution, as OpenAI's API does; of others
// `usual`.
SamplingOptions usual_sampling(const nlohmann::json& body, const SamplingOptions& usual);

// Reads a seed: a whole number. 0 is a seed like any other.
Status read_seed_field(const nlohmann::json& body, SamplingOptions& sampling);

// Returns the grammar of JSON that a schema accepts.
GrammarSource schema_grammar(const nlohmann::json& schema);

// Sets a variable of the chat template to JSON.
void set_template_argument(RequestOptions& options, std::string name, const nlohmann::json& value);

// Returns the arguments of a call as an object; other text, which a model may write, under "arguments".
nlohmann::json arguments_object(const std::string& text);

// Returns a server-sent event with a name.
std::string named_event(std::string_view name, const nlohmann::json& data);

}  // namespace kvasir::server
