// Parses a line typed in a chat: a message, or a command that begins with a slash.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvasir/options.h"
#include "kvasir/status.h"

namespace kvasir::cli {

enum class ChatCommand { kRead, kSave, kLoad, kClear, kAgain, kSystem, kSet, kKv, kHelp, kBye };

struct ChatLine {
  std::optional<ChatCommand> command;  // none: a message
  std::string text;                    // the message, or the command's argument without surrounding spaces
};

// Sets one of the options that /set knows: "temp 0.5", with an = or a space between. Returns lines to show: the option
// with its value, or all options if `text` is empty. Errors: kInvalidArgument for an unknown name or a value that is no
// number or out of range; then nothing has changed.
Result<std::string> set_option(std::string_view text, GenerateOptions& options);

// `line`: one message as typed. Text of several lines is always a message; "//x" is the message "/x". Errors:
// kInvalidArgument for an unknown command (the message names the nearest), for one that lacks its file, and for one
// argument too many.
Result<ChatLine> parse_chat_line(std::string_view line);

// Returns the lines that /help shows. `edits`: the line can be edited.
std::string chat_help(bool edits);

}  // namespace kvasir::cli
