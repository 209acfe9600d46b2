// The model that a body names, read without parsing the rest of it.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::server {

// Returns the string in this field of a JSON object; "" if there is none. Of a body that is not valid JSON it returns
// any name, "" or an error. Errors: kInvalidArgument, about the field, for another value than a string or null, and for
// a string of more than 4 KiB. REQUIRES: `field` is a string literal.
Result<std::string> asked_model(std::string_view body, const char* field = "model");

}  // namespace kvasir::server
