// What a line typed in a chat means: a message, or a command that begins with a slash.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::cli {

enum class ChatCommand { kRead, kSave, kLoad, kClear, kAgain, kKv, kHelp, kBye };

struct ChatLine {
  std::optional<ChatCommand> command;  // none: a message
  std::string text;                    // the message, or the command's argument without spaces around it
};

// `line`: one message as it was typed. Text of several lines is a message, whatever it begins with; "//x" is the
// message "/x". Errors: kInvalidArgument for an unknown command (the message names the nearest), and one that lacks its
// file or has an argument too many.
Result<ChatLine> parse_chat_line(std::string_view line);

// Returns the lines that /help shows. `edits`: the line can be edited.
std::string chat_help(bool edits);

}  // namespace kvasir::cli
