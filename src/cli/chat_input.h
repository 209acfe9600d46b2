// What commands read of chats: templates and conversations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "cli/command.h"

namespace kvasir::cli {

// --chat-template FILE, which leaves the file's content.
CLI::Option* add_chat_template_option(CLI::App& command, std::string& file);

// The file's content; "" for no file. Errors: those of reading; kInvalidArgument if it is empty.
Result<std::string> read_chat_template(const std::string& file);

// On standard error, for a template that is not recognised: the form that takes its place.
void note_stand_in(std::string_view name);

// [{"role": "user", "content": "Hello"}, ...]. Errors: kInvalidArgument.
Result<std::vector<ChatMessage>> parse_messages(std::string_view json);

}  // namespace kvasir::cli
