#include "jinja/json_value.h"

#include <nlohmann/json.hpp>

namespace kvasir::jinja {
namespace {

constexpr int kMaxDepth = 100;

using Json = nlohmann::ordered_json;  // members in the order of the text

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() <= INT64_MAX) return Value::integer(json.get<std::int64_t>());
      return Value::real(json.get<double>());
    case Json::value_t::number_float: return Value::real(json.get<double>());
    case Json::value_t::string: return Value::string(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(value_of(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<std::string, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, value_of(item));
      return Value::dict(std::move(items));
    }
    default: return Value::none();
  }
}

}  // namespace

std::optional<Value> parse_json(std::string_view text) {
  // The library takes a zero for the end.
  if (text.find('\0') != std::string_view::npos) return std::nullopt;
  bool too_deep = false;
  const auto not_too_deep = [&](int depth, Json::parse_event_t, const Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  const Json json = Json::parse(text, not_too_deep, /*allow_exceptions=*/false);
  if (json.is_discarded() || too_deep) return std::nullopt;
  return value_of(json);
}

}  // namespace kvasir::jinja
