// Reads the chat templates and conversations given to commands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "cli/command.h"

namespace kvasir::cli {

// Adds --chat-template FILE; stores the file's name.
CLI::Option* add_chat_template_option(CLI::App& command, std::string& file);

// Returns the file's content; "" if `file` is empty. Errors: those of reading; kInvalidArgument for an empty template.
Result<std::string> read_chat_template(const std::string& file);

// Reports on standard error that the model's template is not recognised, and which one replaces it.
void note_stand_in(std::string_view name);

// Parses [{"role": "user", "content": "Hello"}, ...]. Errors: kInvalidArgument.
Result<std::vector<ChatMessage>> parse_messages(std::string_view json);

}  // namespace kvasir::cli
