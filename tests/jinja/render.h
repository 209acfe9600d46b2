// Renders a template for the tests of this folder.
#pragma once

#include <string>
#include <string_view>

#include "jinja/jinja.h"

namespace kvasir::jinja {

constexpr std::time_t kNow = 1740000000;

inline Result<Text> try_render(std::string_view source, const Variables& variables = {}, const Limits& limits = {}) {
  const auto parsed = parse(source);
  if (!parsed.ok()) return parsed.status();
  return render(*parsed, variables, kNow, limits);
}

// Returns the text, or the message of the error behind "error: ".
inline std::string rendered(std::string_view source, const Variables& variables = {}) {
  const auto text = try_render(source, variables);
  return text.ok() ? text->bytes() : "error: " + text.status().message();
}

}  // namespace kvasir::jinja
