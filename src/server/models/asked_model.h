// The model that a body names, read without parsing the rest of it.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::server {

// Returns the string in this field of a JSON object; "" if there is none or it takes more than 4 KiB. Of a body that is
// not valid JSON it returns any name, or "".
std::string asked_model(std::string_view body, const std::string& field = "model");

}  // namespace kvasir::server
