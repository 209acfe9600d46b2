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
#include <vector>

#include "kvasir/status.h"

namespace kvasir::server {

// The fields of a JSON object, with a record of those that a reader looked for: the others are unknown() here. Made
// from an object where no record is needed.
class Fields {
 public:
  // Refers to `object`, which must outlive this. REQUIRES: an object.
  Fields(const nlohmann::json& object) : object_(&object) {}  // NOLINT(google-explicit-constructor): as a json itself

  // Returns the field's value; null if it is absent or null. The field is known from now on, present or not.
  const nlohmann::json* find(const char* field) const;
  // Whether a reader has looked for the field.
  bool knows(std::string_view field) const;
  // Records the unknown fields of an object that is the value of `field`, or in its list, as "field.name", each once.
  void add_nested(const char* field, const Fields& nested) const;
  // Returns the names of the fields that no reader has looked for and that are not null, and those of nested objects;
  // not more than kMostUnknown.
  std::vector<std::string> unknown() const;
  // The object, for readers that check a field without honouring it: it stays unknown.
  const nlohmann::json& object() const { return *object_; }

  static constexpr std::size_t kMostUnknown = 32;

 private:
  const nlohmann::json* object_;
  mutable std::vector<std::string_view> known_;  // string literals
  mutable std::vector<std::string> nested_;
};

// REQUIRES: field names are string literals, to which a Status refers.
Status wrong_field(const char* field, std::string_view needs);

// As Fields::find.
const nlohmann::json* find_field(const Fields& body, const char* field);

Status read_field(const Fields& body, const char* field, bool& value);
Status read_field(const Fields& body, const char* field, std::string& value);
Status read_field(const Fields& body, const char* field, float& value);
Status read_field(const Fields& body, const char* field, double& value);
// Reads a string of at most `most` bytes.
Status read_text(const Fields& body, const char* field, std::size_t most, std::string& value);

// Returns a whole number, which some clients write as 5.0.
std::optional<std::int64_t> whole_number(const nlohmann::json& value);

// Returns the field as a whole number from `least` to `most`, or nothing if it is absent.
Result<std::optional<std::int64_t>> read_whole(const Fields& body, const char* field, std::int64_t least,
                                               std::int64_t most);
template <class Integer>
Status read_whole(const Fields& body, const char* field, std::int64_t least, std::int64_t most, Integer& value) {
  const Result<std::optional<std::int64_t>> number = read_whole(body, field, least, most);
  if (number.ok() && number->has_value()) value = static_cast<Integer>(**number);
  return number.status();
}

}  // namespace kvasir::server
