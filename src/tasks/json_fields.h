// Reads the fields of a JSON object that a person wrote, such as a task's definition or a grid.
// Thread-safety: none.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// Remembers the fields that were read, so that a misspelt one is found. An absent field leaves its variable as it is.
// Errors of all readers: kInvalidArgument that names the field and what it must be.
class JsonFields {
 public:
  // REQUIRES: an object, which outlives this.
  explicit JsonFields(const nlohmann::ordered_json* json) : json_(*json) {}

  // Returns null for an absent field.
  const nlohmann::ordered_json* find(const char* field);
  bool contains(const char* field) const { return json_.contains(field); }

  Status text(const char* field, std::string* to);
  Status texts(const char* field, std::vector<std::string>* to);
  Status truth(const char* field, bool* to);
  Status reals(const char* field, std::vector<double>* to);
  // A whole number from 0 to `most`.
  template <class Number>
  Status number(const char* field, std::int64_t most, Number* to) {
    const nlohmann::ordered_json* value = find(field);
    if (value == nullptr) return {};
    if (!is_count(*value, most)) return wrong(field, fmt::format("a whole number from 0 to {}", most));
    *to = value->get<Number>();
    return {};
  }
  Status numbers(const char* field, std::int64_t most, std::vector<std::int64_t>* to);

  // Refuses fields that no reader asked for.
  Status refuse_others() const;

  static Status wrong(std::string_view field, std::string_view what);

 private:
  static bool is_count(const nlohmann::ordered_json& value, std::int64_t most);

  const nlohmann::ordered_json& json_;
  std::vector<std::string> read_;
};

}  // namespace kvasir
