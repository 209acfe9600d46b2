// Renders templates for jinja_check.py. Reads JSON objects from standard input, one a line:
//   {"template": source, "now": seconds, "variables": [{name: value, ...}, ...]}
// and writes one line for each: a list with {"text": ..., "spans": [[end, "t" or "c"], ...]} or {"error": ...} for each
// set of variables. Control characters and all: what is not UTF-8 is replaced.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "jinja/jinja.h"

namespace {

using namespace kvasir;
using Json = nlohmann::ordered_json;

jinja::Value to_value(const Json& json) {
  if (json.is_null()) return jinja::Value::none();
  if (json.is_boolean()) return jinja::Value::boolean(json.get<bool>());
  if (json.is_number_integer()) return jinja::Value::integer(json.get<std::int64_t>());
  if (json.is_number()) return jinja::Value::real(json.get<double>());
  if (json.is_string()) return jinja::Value::string(json.get<std::string>());
  if (json.is_array()) {
    std::vector<jinja::Value> items;
    for (const Json& item : json) items.push_back(to_value(item));
    return jinja::Value::list(std::move(items));
  }
  std::vector<std::pair<std::string, jinja::Value>> items;
  for (const auto& [key, item] : json.items()) items.emplace_back(key, to_value(item));
  return jinja::Value::dict(std::move(items));
}

Json render_one(const jinja::Template& parsed, const Json& variables, std::time_t now) {
  jinja::Variables given;
  for (const auto& [name, value] : variables.items()) given.emplace_back(name, to_value(value));
  const auto text = jinja::render(parsed, given, now);
  if (!text.ok()) return {{"error", text.status().message()}};
  Json spans = Json::array();
  for (const jinja::Run& run : text->runs())
    spans.push_back({run.end, run.origin == jinja::Origin::kTemplate ? "t" : "c"});
  return {{"text", text->bytes()}, {"spans", spans}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    const auto parsed = jinja::parse(request["template"].get<std::string>());
    Json answers = Json::array();
    for (const Json& variables : request["variables"])
      answers.push_back(parsed.ok() ? render_one(*parsed, variables, request["now"].get<std::time_t>())
                                    : Json{{"error", parsed.status().message()}});
    std::cout << answers.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  }
}
