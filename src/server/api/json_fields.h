// Reads and checks fields of a JSON body one by one.
// Errors are kInvalidArgument, say what the field must be, and name it by about(). A field that is absent or null
// leaves the value as it was.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::server {

// REQUIRES: field names are string literals, to which a Status refers.
Status wrong_field(const char* field, std::string_view needs);

// Returns the field's value; null if it is absent or null.
const nlohmann::json* find_field(const nlohmann::json& body, const char* field);

Status read_field(const nlohmann::json& body, const char* field, bool& value);
Status read_field(const nlohmann::json& body, const char* field, std::string& value);
Status read_field(const nlohmann::json& body, const char* field, float& value);
Status read_field(const nlohmann::json& body, const char* field, double& value);
// Reads a string of at most `most` bytes.
Status read_text(const nlohmann::json& body, const char* field, std::size_t most, std::string& value);

// Returns a whole number, which some clients write as 5.0.
std::optional<std::int64_t> whole_number(const nlohmann::json& value);

// Returns the field as a whole number from `least` to `most`, or nothing if it is absent.
Result<std::optional<std::int64_t>> read_whole(const nlohmann::json& body, const char* field, std::int64_t least,
                                               std::int64_t most);
template <class Integer>
Status read_whole(const nlohmann::json& body, const char* field, std::int64_t least, std::int64_t most,
                  Integer& value) {
  const Result<std::optional<std::int64_t>> number = read_whole(body, field, least, most);
  if (number.ok() && number->has_value()) value = static_cast<Integer>(**number);
  return number.status();
}

}  // namespace kvasir::server
