// Messages about definitions and files, whose texts may hold anything.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Returns what nlohmann::json's message `error` says of the place and the fault: not its number, and not the bytes that
// it read last, which may be many.
std::string_view json_reason(std::string_view error);

// Returns `message` as one line of valid UTF-8, of at most some thousand bytes. Control characters become spaces.
std::string one_line(std::string_view message);

// Returns `status` with its message so; a success as it is.
Status one_line(const Status& status);

}  // namespace kvasir
