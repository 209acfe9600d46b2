// Derives the ChatFormat of a template from its Jinja source.
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
  std::string today;  // result of strftime_now("%d %b %Y"), such as "26 Jul 2024"
};

// Returns nullopt if any part of the template is not understood: no format is better than a wrong one.
std::optional<ChatFormat> recognise_template(std::string_view source, const TemplateNames& names);

}  // namespace kvasir
