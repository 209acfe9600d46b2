#include "server/fields/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

template <class Number>
Status read_number(const Fields& body, const char* field, Number& value) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  if (!found->is_number()) return wrong_field(field, "a number");
  value = found->get<Number>();
  if (!std::isfinite(value))
    return invalid_argument("'{}' is {}, too large a number", field, found->dump()).about({field});
  return {};
}

}  // namespace

Status wrong_field(const char* field, std::string_view needs) {
  return invalid_argument("'{}' must be {}", field, needs).about({field});
}

const Json* Fields::find(const char* field) const {
  known_.emplace_back(field);
  const auto found = object_->find(field);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool Fields::knows(std::string_view field) const {
  return std::ranges::count(known_, field) > 0;
}

void Fields::add_nested(const char* field, const Fields& nested) const {
  for (const std::string& name : nested.unknown()) {
    const std::string path = std::string(field) + "." + name;
    if (nested_.size() < kMostUnknown && std::ranges::count(nested_, path) == 0) nested_.push_back(path);
  }
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (auto field = object_->begin(); field != object_->end() && names.size() < kMostUnknown; ++field)
    if (!field->is_null() && !knows(field.key())) names.push_back(field.key());
  for (const std::string& name : nested_)
    if (names.size() < kMostUnknown) names.push_back(name);
  return names;
}

const Json* find_field(const Fields& body, const char* field) {
  return body.find(field);
}

Status read_field(const Fields& body, const char* field, bool& value) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  if (!found->is_boolean()) return wrong_field(field, "true or false");
  value = found->get<bool>();
  return {};
}

Status read_field(const Fields& body, const char* field, std::string& value) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  if (!found->is_string()) return wrong_field(field, "a string");
  value = found->get<std::string>();
  return {};
}

Status read_field(const Fields& body, const char* field, float& value) {
  return read_number(body, field, value);
}

Status read_field(const Fields& body, const char* field, double& value) {
  return read_number(body, field, value);
}

Status read_text(const Fields& body, const char* field, std::size_t most, std::string& value) {
  KVASIR_RETURN_IF_ERROR(read_field(body, field, value));
  if (value.size() > most) return invalid_argument("'{}' is longer than {} bytes", field, most).about({field});
  return {};
}

std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return {};
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return {};
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 9e15) return {};
  return static_cast<std::int64_t>(number);
}

Result<std::optional<std::int64_t>> read_whole(const Fields& body, const char* field, std::int64_t least,
                                               std::int64_t most) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return std::optional<std::int64_t>();
  const std::optional<std::int64_t> number = whole_number(*found);
  if (!number || *number < least || *number > most)
    return invalid_argument("'{}' must be a whole number from {} to {}", field, least, most).about({field});
  return number;
}

}  // namespace kvasir::server
