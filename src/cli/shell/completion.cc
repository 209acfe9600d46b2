#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "backend/page_format.h"
#include "base/status.h"
#include "cli/shell/shell.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// "-m --model"
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> strings_of(const std::vector<std::string_view>& views) {
  return {views.begin(), views.end()};
}

// Returns the values that an option takes if they are few; else empty.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
  if (name == "kv" || name == "policy") {
    std::vector<std::string> policies;
    for (const PolicyInfo* info : all_policies()) policies.emplace_back(info->name);
    return policies;
  }
  if (name == "kv-type" || name == "kv-types") return strings_of(kv_type_names());
  if (name == "page") return {"16", "32", "64"};
  if (name == "isa") return {"auto", "generic", "avx2", "avx512", "amx"};
  if (name == "score") return {"all", "second-half"};
  if (name == "log-format") return {"text", "json"};
  if (name == "log-level") return {"debug", "info", "warning", "error"};
  return {};
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

struct Command {
  std::string path;  // "kvasir eval ppl"
  const CLI::App* app;
};

void add_commands(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  commands.push_back({path, &app});
  for (const CLI::App* command : shown_commands(app))
    add_commands(*command, path + " " + command->get_name(), commands);
}

std::vector<Command> all_commands(const CLI::App& program) {
  std::vector<Command> commands;
  add_commands(program, program.get_name(), commands);
  return commands;
}

std::vector<std::string> words_of(const Command& command) {
  std::vector<std::string> words;
  for (const CLI::App* below : shown_commands(*command.app)) words.push_back(below->get_name());
  if (command.app->get_name() == "policies")
    for (const PolicyInfo* info : all_policies()) words.emplace_back(info->name);
  return words;
}

// Where a script offers no words, the shell completes file names.
std::string bash_script(const CLI::App& program) {
  std::vector<std::string> paths;
  std::string by_command;
  std::vector<std::string> with_value;
  std::string by_option;
  for (const Command& command : all_commands(program)) {
    if (command.app != &program) paths.push_back('"' + command.path + '"');
    std::vector<std::string> options;
    for (const CLI::Option* option : shown_options(*command.app)) {
      const std::vector<std::string> names = names_of(*option);
      options.insert(options.end(), names.begin(), names.end());
      if (!takes_value(*option)) continue;
      if (const std::vector<std::string> values = values_of(*option); !values.empty()) {
        const std::string line = fmt::format("    {}) words=\"{}\" ;;\n", fmt::join(names, "|"), joined(values));
        if (by_option.find(line) == std::string::npos) by_option += line;
      } else {
        for (const std::string& name : names)
          if (std::ranges::find(with_value, name) == with_value.end()) with_value.push_back(name);
      }
    }
    by_command += fmt::format("    \"{}\") options=\"{}\" words=\"{}\" ;;\n", command.path, joined(options),
                              joined(words_of(command)));
  }
  return fmt::format(R"(# Completes kvasir in bash. Written by: kvasir completion bash
_kvasir() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local path=kvasir options= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
    {}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case $path in
{}  esac
  [[ $current == -* ]] && words=$options
  case $previous in
{}    {}) words= ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _kvasir kvasir
)",
                     fmt::join(paths, "|"), by_command, by_option, fmt::join(with_value, "|"));
}

// Escapes a text for single quotes of fish.
std::string in_fish(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\'' || c == '\\' ? fmt::format("\\{}", c) : std::string(1, c);
  return out;
}

// Escapes a text for single quotes of zsh, within a specification of _arguments or _describe.
std::string in_zsh(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '\''                                                     ? R"('\'')"
           : std::string_view("[]:\\").find(c) != std::string_view::npos ? fmt::format("\\{}", c)
                                                                         : std::string(1, c);
  return out;
}

std::string zsh_function(const Command& command) {
  std::string function = "_" + command.path;
  std::ranges::replace(function, ' ', '_');
  std::string out = fmt::format("\n{}() {{\n", function);
  if (const std::vector<const CLI::App*> below = shown_commands(*command.app); !below.empty()) {
    out += fmt::format(R"(  if (( CURRENT > 2 )); then
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    (( $+functions[{0}_$command] )) && {0}_$command
    return
  fi
  local -a commands=(
)",
                       function);
    for (const CLI::App* app : below)
      out += fmt::format("    '{}:{}'\n", app->get_name(), in_zsh(app->get_description()));
    return out + "  )\n  _describe command commands\n}\n";
  }
  out += "  _arguments";
  for (const CLI::Option* option : shown_options(*command.app)) {
    std::string value;
    if (takes_value(*option)) {
      const std::vector<std::string> values = values_of(*option);
      value = values.empty() ? ":value:_files" : fmt::format(":value:({})", joined(values));
    }
    for (const std::string& name : names_of(*option))
      out += fmt::format(" \\\n    '*{}[{}]{}'", name, in_zsh(option->get_description()), value);
  }
  const std::vector<std::string> words = words_of(command);
  return out +
         (words.empty() ? " \\\n    '*:file:_files'\n}\n" : fmt::format(" \\\n    '*:word:({})'\n}}\n", joined(words)));
}

std::string zsh_script(const CLI::App& program) {
  std::string out = "#compdef kvasir\n# Completes kvasir in zsh. Written by: kvasir completion zsh\n";
  for (const Command& command : all_commands(program)) out += zsh_function(command);
  return out + "\n_kvasir \"$@\"\n";
}

std::string fish_script(const CLI::App& program) {
  std::string out = "# Completes kvasir in fish. Written by: kvasir completion fish\n";
  for (const Command& command : all_commands(program)) {
    // The condition under which the command's words apply.
    std::string condition = "__fish_use_subcommand";
    if (command.app != &program) {
      condition = "__fish_seen_subcommand_from " + command.app->get_name();
      if (command.app->get_parent() != &program)
        condition += "; and __fish_seen_subcommand_from " + command.app->get_parent()->get_name();
    }
    const std::string front = fmt::format("complete -c kvasir -n {}", "'" + condition + "'");
    for (const CLI::App* below : shown_commands(*command.app))
      out += fmt::format("{} -f -a {} -d '{}'\n", front, below->get_name(), in_fish(below->get_description()));
    if (command.app->get_name() == "policies")
      for (const std::string& word : words_of(command)) out += fmt::format("{} -f -a {}\n", front, word);
    for (const CLI::Option* option : shown_options(*command.app)) {
      out += front;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      const std::vector<std::string> values = values_of(*option);
      if (takes_value(*option)) out += values.empty() ? " -r" : fmt::format(" -x -a '{}'", joined(values));
      out += fmt::format(" -d '{}'\n", in_fish(option->get_description()));
    }
  }
  return out;
}

}  // namespace

std::vector<const CLI::App*> shown_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

Result<std::string> completion_script(const CLI::App& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  return invalid_argument("there is no completion for '{}'; the shells are: bash, zsh, fish", shell);
}

}  // namespace kvasir::cli
