// Read the canonical text of a template (template_survey.h) into a ChatFormat. Each reader gives up (nullopt) at any
// part that it does not know. Neither sets bos_text, eos_text and end; the general reader leaves the name to its
// caller, too. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "chat/chat_format.h"
#include "chat/recognise_template.h"

namespace kvasir {

// Reads templates that loop over the messages once and write each between two texts. Nearly all templates do.
std::optional<ChatFormat> read_general_template(std::string_view text, const TemplateNames& names);

// Reads templates that do more, such as dropping the thoughts of earlier answers. Each family is matched as a whole.
std::optional<ChatFormat> read_family_template(std::string_view text);

}  // namespace kvasir
