#include "server/fields/raw_member.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvasir::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

void skip_space(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
}

// Removes a string with its quotes, and returns it.
std::string_view take_string(std::string_view& text) {
  std::size_t end = text.find('"', 1);
  const auto escaped = [&] { return (end - 1 - text.find_last_not_of('\\', end - 1)) % 2 == 1; };
  while (end != std::string_view::npos && escaped()) end = text.find('"', end + 1);
  const std::string_view taken = text.substr(0, end == std::string_view::npos ? end : end + 1);
  text.remove_prefix(taken.size());
  return taken;
}

// Removes a value, and returns it.
std::string_view take_value(std::string_view& text) {
  const std::string_view begin = text;
  int level = 0;
  do {
    skip_space(text);
    if (text.empty()) break;
    const char c = text.front();
    if (c == '"') {
      take_string(text);
      continue;
    }
    if (c == '{' || c == '[') {
      ++level;
    } else if (c == '}' || c == ']') {
      --level;
    } else if (level == 0) {  // a number or a word
      text.remove_prefix(std::min(text.find_first_of(",]} \t\r\n"), text.size()));
      break;
    }
    text.remove_prefix(1);
  } while (level > 0);
  return begin.substr(0, begin.size() - text.size());
}

// Whether a string with its quotes stands for the name.
bool is_name(std::string_view key, std::string_view name) {
  if (key.find('\\') == std::string_view::npos)
    return key.size() == name.size() + 2 && key.substr(1, name.size()) == name;
  return nlohmann::json::parse(key, nullptr, false) == name;
}

// Returns the value of an object's last member of this name, which is the one that a parser keeps.
std::string_view find_member(std::string_view object, std::string_view name) {
  std::string_view found;
  if (!object.starts_with('{')) return found;
  object.remove_prefix(1);
  for (skip_space(object); object.starts_with('"'); skip_space(object)) {
    const std::string_view key = take_string(object);
    skip_space(object);
    if (object.starts_with(':')) object.remove_prefix(1);
    skip_space(object);
    const std::string_view value = take_value(object);
    if (is_name(key, name)) found = value;
    skip_space(object);
    if (object.starts_with(',')) object.remove_prefix(1);
  }
  return found;
}

}  // namespace

std::string_view raw_member(std::string_view body, std::span<const std::string> path) {
  for (const std::string& name : path) {
    skip_space(body);
    body = find_member(body, name);
  }
  return body;
}

}  // namespace kvasir::server
