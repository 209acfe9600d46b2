// Knows files that are no UTF-8 text by how they begin.
// Thread-safety: pure function.
#pragma once

#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Refuses compressed files and text in UTF-16, with the command that mends it: a better message than that of the first
// invalid byte. `source`: the name of the bytes in the message. Errors: kInvalidArgument.
Status check_text_kind(std::string_view bytes, std::string_view source);

}  // namespace kvasir
