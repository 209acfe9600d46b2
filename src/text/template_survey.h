// What a Jinja chat template says about a conversation of system, user and assistant messages, as one canonical text
// that differently written templates share. Nothing is run.
//
//   {% for m in messages %}  {{- "a" + 'b' }}{{ m['role'] }}   becomes   {%for m in messages%}{{'ab'+m.role}}
//
// Whitespace control is applied as chat templates are read (trim_blocks, lstrip_blocks); comments are gone; text
// between tags is output like any literal, and outputs that follow each other are one; literals are in single quotes,
// with a backslash before a quote or a backslash and no other escapes. What only tools, documents or options that
// nobody sets would reach is left out, and so are the terms of a condition that are always so. Thread-safety: pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// nullopt for what is no Jinja, or larger than any chat template is. Time: linear.
std::optional<std::string> survey_template(std::string_view source);

}  // namespace kvasir
