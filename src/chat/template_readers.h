// Read the canonical text of a template (template_survey.h) into the form that it gives to a conversation. Each reader
// gives up (nullopt) at any part that it does not know. Neither sets bos_text, eos_text and end; the general one leaves
// the name to its caller, too.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "chat/chat_format.h"
#include "chat/recognise_template.h"

namespace kvasir {

// Templates that go over the messages once and write each between two texts: nearly all there are.
std::optional<ChatFormat> read_general_template(std::string_view text, const TemplateNames& names);

// Families whose templates do more than that, such as those that drop the thoughts of earlier answers: each is known as
// a whole.
std::optional<ChatFormat> read_family_template(std::string_view text);

}  // namespace kvasir
