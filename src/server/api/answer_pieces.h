// Thoughts and calls in answers of OpenAI's chat API.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "kvasir/answer.h"
#include "server/api/api_response.h"

namespace kvasir::server {

// Returns the deltas of a stream that bring these pieces, one chunk each; kCallEnds has none. A call's first delta has
// its id, its name and empty arguments.
std::vector<nlohmann::json> deltas_of(std::span<const AnswerPiece> pieces);

// Returns the message of a whole answer.
nlohmann::json message_of(const Answer& answer);

}  // namespace kvasir::server
