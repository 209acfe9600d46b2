// Reads the bodies of Ollama's API.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "server/api/dialect.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Reads the body of POST /api/chat, or of /api/generate. Without messages or a prompt the request has neither.
// Errors: as Dialect::read.
Result<ApiRequest> read_ollama(const nlohmann::json& body, bool chat, const ReadContext& context);

// Checks "keep_alive". Errors: kInvalidArgument; kUnsupported for 0, which would unload the model.
Status check_keep_alive(const Fields& body);

}  // namespace kvasir::server
