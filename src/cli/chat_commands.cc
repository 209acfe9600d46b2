#include "cli/chat_commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/nearest.h"
#include "base/status.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

struct CommandInfo {
  ChatCommand command;
  std::string_view name;
  bool takes_file;
  std::string_view help;
};

constexpr CommandInfo kCommands[] = {
    {ChatCommand::kRead, "/read", true, "put a file's text in front of your next message; several add up"},
    {ChatCommand::kSave, "/save", true, "write the conversation to a session file"},
    {ChatCommand::kLoad, "/load", true, "go on with the conversation of a session file"},
    {ChatCommand::kClear, "/clear", false, "forget everything and start over, with the same options"},
    {ChatCommand::kAgain, "/again", false, "replace the last answer by another, drawn with another seed"},
    {ChatCommand::kKv, "/kv", false, "show which tokens are kept and which are forgotten, and the bytes"},
    {ChatCommand::kHelp, "/help", false, "show this"},
    {ChatCommand::kBye, "/bye", false, "end the chat, as Ctrl-D does"},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

Status unknown(std::string_view name) {
  std::vector<std::string_view> names;
  for (const CommandInfo& info : kCommands) names.push_back(info.name);
  return invalid_argument("there is no command '{}'{} (/help lists them, and '/{}' sends it as a message)",
                          printable(name, 40), did_you_mean(name.substr(0, 40), names), printable(name, 40));
}

}  // namespace

Result<ChatLine> parse_chat_line(std::string_view line) {
  if (line == "/quit" || line == "/exit") return ChatLine{ChatCommand::kBye, ""};
  if (!line.starts_with('/') || line.find('\n') != std::string_view::npos) return ChatLine{{}, std::string(line)};
  if (line.starts_with("//")) return ChatLine{{}, std::string(line.substr(1))};
  const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
  const std::string_view name = line.substr(0, end);
  const std::string_view argument = trimmed(line.substr(end));
  for (const CommandInfo& info : kCommands) {
    if (info.name != name) continue;
    if (info.takes_file && argument.empty())
      return invalid_argument("{} needs the name of a file: {} FILE", info.name, info.name);
    if (!info.takes_file && !argument.empty())
      return invalid_argument("{} takes no argument; '/{}' sends the line as a message", info.name,
                              printable(line, 60));
    return ChatLine{info.command, std::string(argument)};
  }
  return unknown(name);
}

std::string chat_help(bool edits) {
  std::string text;
  for (const CommandInfo& info : kCommands)
    text += fmt::format("  {:<13} {}\n", std::string(info.name) + (info.takes_file ? " FILE" : ""), info.help);
  text += fmt::format("  {:<13} {}\n", "//TEXT", "send a message that begins with a slash");
  text += fmt::format("  {:<13} {}\n", "\\ at the end", "of a line: the message goes on in the next line");
  if (edits) {
    text += fmt::format("  {:<13} {}\n", "Alt-Enter", "a line end inside the message");
    text += fmt::format("  {:<13} {}\n", "paste", "what is pasted is part of one message, with its line ends");
    text += fmt::format("  {:<13} {}\n", "up, down", "earlier messages; Ctrl-R searches them");
  }
  text += fmt::format("  {:<13} {}\n", "Ctrl-C", "stop an answer, or clear the line");
  return text;
}

}  // namespace kvasir::cli
