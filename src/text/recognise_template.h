// From a template's Jinja source to the form it gives to a conversation.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/chat_format.h"

namespace kvasir {

struct TemplateNames {
  std::string bos;    // the piece of BOS, or empty
  std::string eos;    // of EOS
  std::string today;  // "26 Jul 2024": what strftime_now("%d %b %Y") gives
};

// nullopt for a template with anything in it whose effect is not known: rather none than a wrong form.
std::optional<ChatFormat> recognise_template(std::string_view source, const TemplateNames& names);

}  // namespace kvasir
