// Reads the bodies of Ollama's API.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "server/api/dialect.h"

namespace kvasir::server {

// Reads the body of POST /api/chat, or of /api/generate. Without messages or a prompt the request has neither.
// Errors: as Dialect::read.
Result<ApiRequest> read_ollama(const nlohmann::json& body, bool chat, const ReadContext& context);

}  // namespace kvasir::server
