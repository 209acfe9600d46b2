// Brings a Jinja chat template to a canonical text: what it says about a conversation of system, user and assistant
// messages, in a spelling that differently written templates share. No template is run.
//
//   {% for m in messages %}  {{- "a" + 'b' }}{{ m['role'] }}   becomes   {%for m in messages%}{{'ab'+m.role}}
//
// White space around tags is trimmed as chat templates are read (trim_blocks, lstrip_blocks), and comments are dropped.
// Text between tags becomes an output of a literal, and adjacent outputs become one. Literals are in single quotes,
// with a backslash before a quote or a backslash and no other escapes. Branches that only tools, documents or unset
// options reach are dropped, and so are terms of a condition that always hold.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Returns nullopt if the source is not Jinja, or larger than 256 KiB. Time: linear.
std::optional<std::string> survey_template(std::string_view source);

}  // namespace kvasir
