#include "server/config_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/status.h"

// Where NDEBUG is defined, toml++ 3.3 lets the compiler assume what files can violate ("[(" does); where it is not, it
// asserts it. Here it does neither: the code behind finds the error itself.
#ifdef NDEBUG
#undef NDEBUG
#define KVASIR_HAD_NDEBUG
#endif
#define TOML_ASSERT(expression) static_cast<void>(0)
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
#ifdef KVASIR_HAD_NDEBUG
#define NDEBUG
#endif

namespace kvasir::server {
namespace {

std::string_view name_of(toml::node_type type) {
  switch (type) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "a list";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer:
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true or false";
    default: return "a date or a time";
  }
}

Result<ConfigValue> read_value(std::string_view file, const toml::key& key, const toml::node& node) {
  const toml::source_position begin = key.source().begin;
  ConfigValue value;
  value.name = key.str();
  value.line = static_cast<int>(begin.line);
  value.column = static_cast<int>(begin.column);
  const auto wrong = [&](std::string_view problem) {
    return invalid_argument("{}{}: {}", config_place(file, value.line, value.column), value.name, problem);
  };
  switch (node.type()) {
    case toml::node_type::boolean:
      value.type = ConfigValue::Type::kFlag;
      value.texts = {node.as_boolean()->get() ? "true" : "false"};
      return value;
    case toml::node_type::integer:
      value.type = ConfigValue::Type::kInteger;
      value.texts = {std::to_string(node.as_integer()->get())};
      return value;
    case toml::node_type::floating_point:
      value.type = ConfigValue::Type::kNumber;
      value.texts = {fmt::format("{}", node.as_floating_point()->get())};
      return value;
    case toml::node_type::string:
      value.type = ConfigValue::Type::kText;
      value.texts = {node.as_string()->get()};
      return value;
    case toml::node_type::array:
      value.type = ConfigValue::Type::kTexts;
      for (const toml::node& element : *node.as_array()) {
        if (!element.is_string())
          return wrong(fmt::format("a list of strings is expected, not {}", name_of(element.type())));
        value.texts.push_back(element.as_string()->get());
      }
      return value;
    case toml::node_type::table:
      return wrong("this is a table; options stand in none, each on a line such as port = 8080");
    default: return wrong("no option is a date or a time");
  }
}

// TOML has no control characters but tabs and line ends; toml++ would show them raw in its messages.
Status check_characters(std::string_view text, std::string_view file) {
  int line = 1, column = 1;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7f)
      return invalid_argument("{}the control character 0x{:02x} is not allowed", config_place(file, line, column),
                              byte);
    if (c == '\n') {
      ++line;
      column = 1;
    } else if ((byte & 0xc0) != 0x80) {  // counts characters, as toml++ does
      ++column;
    }
  }
  return {};
}

}  // namespace

std::string config_place(std::string_view file, int line, int column) {
  return fmt::format("{}:{}:{}: ", file, line, column);
}

Result<std::vector<ConfigValue>> parse_config(std::string_view text, std::string_view file) {
  KVASIR_RETURN_IF_ERROR(check_characters(text, file));
  const toml::parse_result parsed = toml::parse(text, file);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const toml::source_position at = error.source().begin;
    return invalid_argument("{}{}", config_place(file, static_cast<int>(at.line), static_cast<int>(at.column)),
                            error.description());
  }
  std::vector<ConfigValue> values;
  for (const auto& [key, node] : parsed.table()) {
    KVASIR_ASSIGN_OR_RETURN(ConfigValue value, read_value(file, key, node));
    values.push_back(std::move(value));
  }
  std::ranges::sort(values, {}, [](const ConfigValue& value) { return std::tie(value.line, value.column); });
  return values;
}

// A string of JSON is one of TOML, but that DEL must be escaped too.
std::string toml_string(std::string_view text) {
  const std::string json = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string toml;
  for (const char c : json) {
    if (c == '\x7f') {
      toml += "\\u007f";
    } else {
      toml += c;
    }
  }
  return toml;
}

}  // namespace kvasir::server
