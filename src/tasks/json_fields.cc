#include "tasks/json_fields.h"

#include <fmt/ranges.h>

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

template <class Accepts>
bool is_list(const Json& value, Accepts accepts) {
  return value.is_array() && std::ranges::all_of(value, accepts);
}

}  // namespace

const Json* JsonFields::find(const char* field) {
  read_.emplace_back(field);
  const auto found = json_.find(field);
  return found == json_.end() ? nullptr : &*found;
}

Status JsonFields::text(const char* field, std::string* to) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_string()) return wrong(field, "a text");
  *to = value->get<std::string>();
  return {};
}

Status JsonFields::texts(const char* field, std::vector<std::string>* to) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!is_list(*value, [](const Json& each) { return each.is_string(); })) return wrong(field, "a list of texts");
  *to = value->get<std::vector<std::string>>();
  return {};
}

Status JsonFields::truth(const char* field, bool* to) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return wrong(field, "true or false");
  *to = value->get<bool>();
  return {};
}

Status JsonFields::reals(const char* field, std::vector<double>* to) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!is_list(*value, [](const Json& each) { return each.is_number(); })) return wrong(field, "a list of numbers");
  *to = value->get<std::vector<double>>();
  return {};
}

Status JsonFields::numbers(const char* field, std::int64_t most, std::vector<std::int64_t>* to) {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!is_list(*value, [&](const Json& each) { return is_count(each, most); }))
    return wrong(field, fmt::format("a list of whole numbers from 0 to {}", most));
  *to = value->get<std::vector<std::int64_t>>();
  return {};
}

Status JsonFields::refuse_others() const {
  for (const auto& [field, value] : json_.items())
    if (std::ranges::find(read_, field) == read_.end())
      return invalid_argument("there is no field '{}'; there are {}", field.substr(0, 64), fmt::join(read_, ", "));
  return {};
}

Status JsonFields::wrong(std::string_view field, std::string_view what) {
  return invalid_argument("'{}' must be {}", field, what);
}

bool JsonFields::is_count(const Json& value, std::int64_t most) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
}

}  // namespace kvasir
