// Finds the form that a template gives to a conversation from its Jinja source.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/chat_format.h"

namespace kvasir {

struct TemplateNames {
  std::string bos;    // the piece of BOS, or empty
  std::string eos;    // of EOS
  std::string today;  // "26 Jul 2024": what strftime_now("%d %b %Y") gives
};

// Returns nullopt if any part of the template has an effect that is not known: no form is better than a wrong one.
std::optional<ChatFormat> recognise_template(std::string_view source, const TemplateNames& names);

}  // namespace kvasir
