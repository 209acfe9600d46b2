#include "cli/chat/chat_commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/nearest.h"
#include "base/status.h"
#include "cli/command.h"
#include "generation/generation.h"

namespace kvasir::cli {
namespace {

struct CommandInfo {
  enum Argument { kNone, kFile, kMay };
  ChatCommand command;
  std::string_view name;
  Argument argument;
  std::string_view shown;  // form of the argument, as help shows it
  std::string_view help;
};
using enum CommandInfo::Argument;

constexpr CommandInfo kCommands[] = {
    {ChatCommand::kRead, "/read", kFile, "FILE", "put a file's text in front of your next message; several add up"},
    {ChatCommand::kSave, "/save", kFile, "FILE", "write the conversation to a session file"},
    {ChatCommand::kLoad, "/load", kFile, "FILE", "go on with the conversation of a session file"},
    {ChatCommand::kClear, "/clear", kNone, "", "forget everything and start over, with the same options"},
    {ChatCommand::kAgain, "/again", kNone, "",
     "replace the last answer by another, drawn with another seed; or send what was stopped"},
    {ChatCommand::kSystem, "/system", kMay, "[TEXT]", "start over with this system message; without text, show it"},
    {ChatCommand::kSet, "/set", kMay, "[NAME VALUE]",
     "set temp, top-k, top-p, min-p, repeat-penalty, seed or tokens; or show"},
    {ChatCommand::kKv, "/kv", kNone, "", "show which tokens are kept and which are forgotten, and the bytes"},
    {ChatCommand::kHelp, "/help", kNone, "", "show this"},
    {ChatCommand::kBye, "/bye", kNone, "", "end the chat, as Ctrl-D does"},
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

struct Setting {
  std::string_view name;
  std::string (*show)(const GenerateOptions& options);
  bool (*set)(std::string_view text, GenerateOptions& options);  // false: no such number
};

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

template <auto Member>
constexpr Setting sampling_setting(std::string_view name) {
  return {name, [](const GenerateOptions& options) { return fmt::format("{}", options.sampling.*Member); },
          [](std::string_view text, GenerateOptions& options) { return read_number(text, options.sampling.*Member); }};
}

constexpr Setting kSettings[] = {
    sampling_setting<&SamplingOptions::temperature>("temp"),
    sampling_setting<&SamplingOptions::top_k>("top-k"),
    sampling_setting<&SamplingOptions::top_p>("top-p"),
    sampling_setting<&SamplingOptions::min_p>("min-p"),
    sampling_setting<&SamplingOptions::repetition_penalty>("repeat-penalty"),
    sampling_setting<&SamplingOptions::seed>("seed"),
    {"tokens", [](const GenerateOptions& options) { return fmt::format("{}", options.max_tokens); },
     [](std::string_view text, GenerateOptions& options) { return read_number(text, options.max_tokens); }},
};

}  // namespace

Result<std::string> set_option(std::string_view text, GenerateOptions& options) {
  const std::size_t end = std::min(text.find_first_of(" \t="), text.size());
  const std::string_view name = text.substr(0, end);
  std::string shown;
  std::vector<std::string_view> names;
  bool found = text.empty();
  for (const Setting& setting : kSettings) {
    names.push_back(setting.name);
    if (setting.name == name) {
      const std::size_t value = std::min(text.find_first_not_of(" \t=", end), text.size());
      GenerateOptions changed = options;
      const bool fresh_seed = name == "seed" && text.substr(value) == "-1";  // as --seed takes it
      if (!setting.set(fresh_seed ? "0" : text.substr(value), changed))
        return invalid_argument("/set {} needs a number, not '{}'", name, printable(text.substr(value), 40));
      KVASIR_RETURN_IF_ERROR(validate(changed));
      options = changed;
      found = true;
    }
    if (text.empty() || setting.name == name)
      shown += fmt::format("  {:<15} {}\n", setting.name, setting.show(options));
  }
  if (!found)
    return invalid_argument("there is no setting '{}'{}; there are {}", printable(name, 40),
                            did_you_mean(name.substr(0, 40), names), fmt::join(names, ", "));
  return shown;
}

Result<ChatLine> parse_chat_line(std::string_view line) {
  if (line == "/?") return ChatLine{ChatCommand::kHelp, ""};
  if (line == "/quit" || line == "/exit") return ChatLine{ChatCommand::kBye, ""};
  if (!line.starts_with('/') || line.find('\n') != std::string_view::npos) return ChatLine{{}, std::string(line)};
  if (line.starts_with("//")) return ChatLine{{}, std::string(line.substr(1))};
  const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
  const std::string_view name = line.substr(0, end);
  const std::string_view argument = trimmed(line.substr(end));
  for (const CommandInfo& info : kCommands) {
    if (info.name != name) continue;
    if (info.argument == kFile && argument.empty())
      return invalid_argument("{} needs the name of a file: {} FILE", info.name, info.name);
    if (info.argument == kNone && !argument.empty())
      return invalid_argument("{} takes no argument; '/{}' sends the line as a message", info.name,
                              printable(line, 60));
    return ChatLine{info.command, std::string(argument)};
  }
  return unknown(name);
}

std::string chat_help(bool edits) {
  std::string text;
  for (const CommandInfo& info : kCommands)
    text += fmt::format("  {:<17} {}\n", fmt::format("{} {}", info.name, info.shown), info.help);
  text += fmt::format("  {:<17} {}\n", "//TEXT", "send a message that begins with a slash");
  text += fmt::format("  {:<17} {}\n", "\\ at the end", "of a line: the message goes on in the next line");
  if (edits) {
    text += fmt::format("  {:<17} {}\n", "Alt-Enter", "a line end inside the message");
    text += fmt::format("  {:<17} {}\n", "paste", "what is pasted is part of one message, with its line ends");
    text += fmt::format("  {:<17} {}\n", "up, down", "earlier messages; Ctrl-R searches them");
  }
  text += fmt::format("  {:<17} {}\n", "Ctrl-C", "stop an answer, or the reading of a message; clear the line");
  return text;
}

}  // namespace kvasir::cli
