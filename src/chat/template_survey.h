// Reduces a Jinja chat template to a canonical text: its effect on a conversation of system, user and assistant
// messages, in one spelling for equivalent templates. No template is run.
//
//   {% for m in messages %}  {{- "a" + 'b' }}{{ m['role'] }}   becomes   {%for m in messages%}{{'ab'+m.role}}
//
//   - White space around tags is trimmed (trim_blocks and lstrip_blocks, as usual for chat templates); comments are
//     dropped.
//   - Text between tags becomes an output of a literal; adjacent outputs are joined.
//   - Literals are in single quotes.
//   - Only quotes and backslashes are escaped.
//   - Branches that only tools, documents or unset options reach are dropped, and so are conditions that always hold.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Returns nullopt if the source is not Jinja, or larger than 256 KiB. Time: linear.
std::optional<std::string> survey_template(std::string_view source);

}  // namespace kvasir
