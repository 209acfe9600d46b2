// The memory of a request that may continue a session, beside the session's own.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <functional>

#include "session/session.h"

namespace kvasir {

// Returns the bytes of a request's copy of the session plus what it adds; without a session (null) plan(0). `plan`
// returns the most that the request's tokens take behind `before` others, all read by one new sequence. Pages that the
// copy shares with a loaded session, and that its policy never writes, count for the session. All that a stored session
// holds counts for the request.
std::uint64_t bytes_behind(const SessionBase* session, const std::function<std::uint64_t(std::int64_t before)>& plan);

}  // namespace kvasir
