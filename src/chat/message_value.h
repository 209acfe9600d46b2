// Messages as variables of a chat template, in the form that transformers gives them.
//
// Templates differ in what they take: some print a call's arguments, which must then be text, others go through them,
// which needs an object; thoughts have three names. What a template takes is found by rendering it.
// Thread-safety: pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"
#include "kvasir/request.h"

namespace kvasir {

struct MessageForm {
  bool writes_calls = false;      // the template writes the calls of an assistant's message
  bool writes_results = false;    // the template writes messages of tools
  bool object_arguments = false;  // arguments are objects; false: JSON as text
  bool null_content = false;      // the content of a message that only calls is none; false: ""
  std::string reasoning;          // name of the thoughts' variable; "": the template writes none
};

// Returns the variable of one message. Roles count as the template's text: templates write them inside their marks.
jinja::Value message_value(const Message& message, const MessageForm& form);

// Renders messages, given as variables; nothing if the template refuses them.
using RenderMessages = std::function<std::optional<std::string>(const std::vector<jinja::Value>& messages)>;

// `source`: of the template.
MessageForm find_message_form(std::string_view source, const RenderMessages& render);

}  // namespace kvasir
