#include "jinja/json_value.h"

#include <nlohmann/json.hpp>

#include "base/ordered_json.h"

namespace kvasir::jinja {
namespace {

constexpr std::size_t kMaxLevels = 101;

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
  const ParsedOrderedJson parsed = parse_ordered_json(text, {.levels = kMaxLevels});
  if (parsed.end != ParsedOrderedJson::End::kDone) return std::nullopt;
  return value_of(parsed.value);
}

}  // namespace kvasir::jinja
