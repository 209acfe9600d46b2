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

// Adds --template-arg NAME=VALUE, which may be repeated; stores the pairs.
CLI::Option* add_template_arg_option(CLI::App& command, std::vector<std::pair<std::string, std::string>>& arguments);

// Parses [{"role": "user", "content": "Hello"}, ...], as in OpenAI's API: also with "tool_calls", "tool_call_id",
// "name" and "reasoning_content". Errors: kInvalidArgument.
Result<std::vector<ChatMessage>> parse_messages(std::string_view json);

}  // namespace kvasir::cli
