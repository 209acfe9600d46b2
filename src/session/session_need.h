// What a request takes that continues a session, beside the session itself.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <functional>

#include "session/session.h"

namespace kvasir {

// Returns the bytes of a request's copy of the session and what it adds. `plan` returns what the request's tokens take
// at the most behind a number of others, all of them read by one new sequence. Pages that the copy shares with a loaded
// session, and that its policy never writes, are the session's. What a stored session holds is all the request's.
std::uint64_t bytes_behind(const SessionBase& session, const std::function<std::uint64_t(std::int64_t before)>& plan);

}  // namespace kvasir
