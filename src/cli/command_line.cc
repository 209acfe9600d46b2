#include "cli/command_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/nearest.h"
#include "cli/command.h"
#include "cli/values.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

// Names that other programs use for some options.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"temperature", "--temp"},
    {"max-tokens", "--tokens"},
    {"max-new-tokens", "--tokens"},
    {"n-predict", "--tokens"},
    {"num-predict", "--tokens"},
    {"ctx-size", "--ctx"},
    {"context", "--ctx"},
    {"num-ctx", "--ctx"},
    {"max-model-len", "--ctx"},
    {"policy", "--kv"},
    {"kv", "--policy"},
    {"cache-type-k", "--kv-type"},
    {"cache-type-v", "--kv-type"},
    {"kv-cache-dtype", "--kv-type"},
    {"repetition-penalty", "--repeat-penalty"},
    {"repeat-last-n", "--penalty-window"},
    {"batch-size", "--chunk"},
    {"ubatch-size", "--chunk"},
    {"system-prompt", "--system"},
    {"reverse-prompt", "--stop"},
    {"parallel", "--samples"},
    {"ctk", "--kv-type"},
    {"ctv", "--kv-type"},
    {"ub", "--chunk"},
    {"np", "--samples"},
    {"output", "--out"},
    {"silent", "--quiet"},
};

// An option of another program and its counterpart here.
struct Foreign {
  enum Value { kNone, kMay, kNeeded };
  std::string_view name;
  std::string_view other_name;
  Value value = kNone;
  std::string_view here;    // kvasir's option; empty: none, and `why` says why none is needed
  std::string_view prefix;  // put before its value
  std::string_view why;
};
constexpr Foreign kForeign[] = {
    {"-hf", "-hfr", Foreign::kNeeded, "-m", "hf:", {}},
    {"-cnv", "--conversation", Foreign::kNone, "--chat", {}, {}},
    {"-no-cnv", "--no-conversation", Foreign::kNone, "--raw", {}, {}},
    {"-ngl", "--n-gpu-layers", Foreign::kNeeded, {}, {}, "all layers run on the CPU"},
    {"--gpu-layers", {}, Foreign::kNeeded, {}, {}, "all layers run on the CPU"},
    {"-fa", "--flash-attn", Foreign::kMay, {}, {}, "attention always reads the pages as they are"},
    {"--jinja", {}, Foreign::kNone, {}, {}, "the model's chat template is always used"},
    {"--mmap", "--no-mmap", Foreign::kNone, {}, {}, "weights are always packed for the kernels"},
};

// Returns whether a text is the value of an option that may stand without one.
bool is_switch(std::string_view text) {
  return text == "on" || text == "off" || text == "auto" || text == "0" || text == "1";
}

// Returns the program, followed by the (sub)commands that were parsed.
std::vector<const CLI::App*> commands(const CLI::App& program) {
  std::vector<const CLI::App*> path = {&program};
  while (!path.back()->get_subcommands().empty()) path.push_back(path.back()->get_subcommands().front());
  return path;
}

std::string no_command(const std::string& name, const CLI::App& above) {
  std::vector<std::string> names;
  for (const CLI::App* app : above.get_subcommands([](const CLI::App* app) { return !app->get_group().empty(); }))
    names.push_back(app->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  return fmt::format("there is no command '{}'{}", name, did_you_mean(name, views));
}

// Returns the long names of the options, without dashes.
std::vector<std::string_view> long_names(const CLI::App& app) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty())  // otherwise help does not show it
      for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

std::string no_argument(std::string_view argument, const CLI::App& app) {
  std::string typed(argument.substr(0, argument.find('=')));
  const bool dashed = typed.starts_with('-');
  typed.erase(0, typed.find_first_not_of('-'));
  const std::vector<std::string_view> names = long_names(app);
  std::string question;
  const auto exists = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (exists(typed) || (dashed && typed.size() > 1)) {
    question = did_you_mean(typed, names);
    std::ranges::replace(typed, '_', '-');
    for (const auto& [elsewhere, here] : kElsewhere)
      if (elsewhere == typed && exists(here.substr(2))) question = fmt::format("; did you mean '{}'?", here.substr(2));
    if (const std::size_t quote = question.find('\''); quote != std::string::npos) question.insert(quote + 1, "--");
  }
  std::error_code error;
  if (!dashed && question.empty() && exists("file") && std::filesystem::is_regular_file(argument, error))
    question = "; a text is given by -f";
  return fmt::format("the argument '{}' is not expected{}", argument, question);
}

// Adds how to get help on the last of the commands.
std::string with_hint(std::string_view problem, const std::vector<const CLI::App*>& path) {
  std::string command;
  for (const CLI::App* app : path) command += (command.empty() ? "" : " ") + app->get_name();
  return fmt::format("{} (see '{} --help')", printable(problem, 300), command);
}

// Returns the option that sets a setting, or null.
const CLI::Option* option_of(std::string_view setting, const CLI::App& command) {
  // Settings whose options have other names.
  static constexpr std::pair<std::string_view, const char*> kOptions[] = {{"policy", "--kv"},
                                                                          {"policies", "--kv"},
                                                                          {"page_slots", "--page"},
                                                                          {"max_tokens", "--tokens"},
                                                                          {"depths", "--depth"},
                                                                          {"first_scored", "--skip"},
                                                                          {"tokens", "--fill"},
                                                                          {"temperature", "--temp"},
                                                                          {"repetition_penalty", "--repeat-penalty"},
                                                                          {"template_arguments", "--template-arg"},
                                                                          {"dry_multiplier", "--dry"},
                                                                          {"dry_allowed_length", "--dry-length"}};
  std::string name = "--" + std::string(setting);
  std::ranges::replace(name, '_', '-');
  for (const auto& [other, option] : kOptions)
    if (command.get_option_no_throw(name) == nullptr && other == setting) name = option;
  return command.get_option_no_throw(name);
}

}  // namespace

CommandLine::CommandLine(int argc, const char* const* argv) : arguments_(argv + (argc > 0 ? 1 : 0), argv + argc) {}

std::vector<std::string> CommandLine::translate(const CLI::App& program) {
  const CLI::App* command = &program;
  std::vector<std::string> translated, dropped;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::string& argument = arguments_[i];
    if (argument == "--") {
      translated.insert(translated.end(), arguments_.begin() + static_cast<std::ptrdiff_t>(i), arguments_.end());
      break;
    }
    const auto found = command->get_subcommands([&](const CLI::App* app) { return app->get_name() == argument; });
    if (!found.empty()) command = found.front();
    const std::string name = argument.substr(0, argument.find('='));
    const auto* foreign = std::ranges::find_if(kForeign, [&](const Foreign& option) {
      return !name.empty() && (option.name == name || option.other_name == name);
    });
    const bool known = foreign != std::end(kForeign) && command->get_option_no_throw("--model") != nullptr &&
                       (foreign->here.empty() || command->get_option_no_throw(std::string(foreign->here)) != nullptr);
    if (!known) {
      translated.push_back(argument);
      continue;
    }
    std::optional<std::string> value;
    if (name != argument) value = argument.substr(name.size() + 1);
    // An optional value is taken only if it looks like one.
    const bool may_follow =
        i + 1 < arguments_.size() &&
        (foreign->value == Foreign::kNeeded || (foreign->value == Foreign::kMay && is_switch(arguments_[i + 1])));
    if (!value && may_follow) value = arguments_[++i];
    if (foreign->here.empty()) {
      dropped.push_back(fmt::format("{} has no effect: {}", name, foreign->why));
    } else {
      translated.emplace_back(foreign->here);
      if (foreign->value == Foreign::kNeeded && value)
        translated.push_back(foreign->prefix.empty() || value->starts_with(foreign->prefix)
                                 ? *value
                                 : std::string(foreign->prefix) + *value);
    }
  }
  arguments_ = std::move(translated);
  return dropped;
}

std::vector<std::string> CommandLine::typed_names(const CLI::Option& option) const {
  std::vector<std::string> names;
  for (const std::string& argument : arguments_) {
    if (argument == "--") break;
    if (argument.starts_with("--")) {
      const std::string given = argument.substr(2, argument.find('=') - 2);
      if (option.check_lname(given)) names.push_back("--" + given);
    } else if (argument.size() > 1 && argument[0] == '-' && option.check_sname(argument.substr(1, 1))) {
      names.push_back(argument.substr(0, 2));
    }
  }
  return names;
}

bool CommandLine::gives(const CLI::Option& option) const {
  if (option.count() == 0) return false;
  if (option.get_envname().empty() || !typed_names(option).empty()) return true;
  if (!option.get_positional()) return false;
  const char* value = std::getenv(option.get_envname().c_str());
  return value == nullptr || option.results() != std::vector<std::string>{value};
}

bool CommandLine::is_configured(const CLI::Option& option, const CLI::App& command) const {
  const CLI::Option* config = command.get_option_no_throw("--config");
  if (config == nullptr || config->count() == 0 || option.count() == 0 || !typed_names(option).empty()) return false;
  if (!option.get_envname().empty() && std::getenv(option.get_envname().c_str()) != nullptr) return false;
  return !option.get_positional() || std::ranges::find(arguments_, option.results().back()) == arguments_.end();
}

std::string CommandLine::name_of(const CLI::Option& option) const {
  const std::vector<std::string> typed = typed_names(option);
  if (!typed.empty()) return typed.back();
  if (option.count() == 0) return option.get_name();
  if (!gives(option)) return option.get_envname();
  return option.get_positional() ? option.get_name(true) : option.get_name();
}

std::optional<std::string> CommandLine::single_dash(const CLI::App& program) const {
  std::vector<const CLI::App*> path = {&program};
  for (const std::string& argument : arguments_) {
    if (argument == "--") break;
    const auto found = path.back()->get_subcommands([&](const CLI::App* app) { return app->get_name() == argument; });
    if (!found.empty()) path.push_back(found.front());
    if (argument.size() < 3 || argument[0] != '-' || argument[1] == '-') continue;
    const std::string name = argument.substr(1, argument.find('=') - 1);
    const bool elsewhere = std::ranges::any_of(kElsewhere, [&](const auto& names) { return names.first == name; });
    if (name.size() > 1 && (elsewhere || path.back()->get_option_no_throw("--" + name) != nullptr))
      return with_hint(no_argument(argument, *path.back()), path);
  }
  return std::nullopt;
}

void CommandLine::check_places(const CLI::App& program) const {
  const CLI::App& command = *commands(program).back();
  const CLI::Option* model = command.get_option_no_throw("--model");
  if (model == nullptr) return;
  const std::vector<std::string> typed = typed_names(*model);
  if (typed.empty() || model->count() <= typed.size()) return;
  const CLI::Option* prompt = command.get_option_no_throw("--prompt");
  const bool reads_text = prompt != nullptr && prompt->get_type_name() == "TEXT";
  throw CLI::ParseError(fmt::format("the model is given by its place and by {}; omit one of them{}", typed.back(),
                                    reads_text ? ", or give a text with -p" : ""),
                        CLI::ExitCodes::ExtrasError);
}

std::string CommandLine::error_text(const Status& status, const CLI::App& program) const {
  const CLI::App& command = *commands(program).back();
  std::string message = status.message();
  std::string options;
  // Names an option that was not given as a line of the file, if another named option is in the file.
  const bool in_file = std::ranges::any_of(status.settings(), [&](std::string_view setting) {
    const CLI::Option* option = option_of(setting, command);
    return option != nullptr && is_configured(*option, command);
  });
  const auto name_in = [&](const CLI::Option& option) {
    if (!is_configured(option, command) && !(in_file && option.count() == 0 && option.get_configurable()))
      return name_of(option);
    return command.get_option("--config")->results().back() + ": " + option.get_lnames().front();
  };
  const auto add = [&](const CLI::Option& option) { options += (options.empty() ? " [" : ", ") + name_in(option); };
  for (const std::string_view setting : status.settings()) {
    const CLI::Option* option = option_of(setting, command);
    if (option == nullptr) continue;  // an option of another command
    const std::string_view rest = std::string_view(message).substr(std::min(setting.size(), message.size()));
    if (message.starts_with(setting) && (rest.starts_with('=') || rest.starts_with(" is "))) {
      message = name_in(*option) + " " + std::string(rest.substr(1));
    } else {
      add(*option);
    }
  }
  // These errors have no settings. The message tells whether a variable or the configuration is at fault.
  const auto is_from_elsewhere = [&](const CLI::Option* option) {
    return option != nullptr && options.empty() && option->count() == 1 &&
           (!gives(*option) || is_configured(*option, command));
  };
  if (const CLI::Option* kv = command.get_option_no_throw("--kv");
      is_from_elsewhere(kv) && make_policy(kv->results().front()).status().message() == status.message())
    add(*kv);
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_place = type == "FILE" || type == "FOLDER" || type == "ENDPOINT" || option->check_lname("model");
    if (is_place && is_from_elsewhere(option) &&
        status.message().find("'" + option->results().front() + "'") != std::string::npos)
      add(*option);
  }
  return printable(message, 2000) + options + (options.empty() ? "" : "]");
}

std::string CommandLine::error_text(const CLI::ParseError& error, const CLI::App& program) const {
  const std::vector<const CLI::App*> path = commands(program);
  const CLI::App& at = *path.back();
  const std::vector<std::string> rest = at.remaining();
  std::string problem = error.what();
  // Returns the name as typed if there is such an option.
  const auto typed = [&](const std::string& name) {
    const CLI::Option* option = at.get_option_no_throw(name);
    return option != nullptr ? name_of(*option) : name;
  };
  const std::string option = typed(problem.substr(0, problem.find(':')));
  const auto unknown = std::ranges::find_if(rest, [](const std::string& text) { return text.starts_with('-'); });
  if (at.get_require_subcommand_min() > 0) {
    problem = rest.empty()                    ? "a command is missing"
              : rest.front().starts_with('-') ? fmt::format("a command is missing before '{}'", rest.front())
              : rest.front().ends_with(".gguf")
                  ? fmt::format("{}; did you mean 'run {}'?", no_command(rest.front(), at), rest.front())
                  : no_command(rest.front(), at);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && unknown != rest.end()) {
    problem = no_argument(*unknown, at);  // perhaps the missing option, misspelt
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !rest.empty()) {
    problem = no_argument(unknown != rest.end() ? *unknown : rest.front(), at);
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    problem = problem.ends_with("missing") ? option + " needs a value" : option + " is given more than once";
  } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    // "Could not convert: --chunk = 99999999999"
    const std::string what = problem.substr(problem.find(':') + 2);
    const std::string name = what.substr(0, what.find(" = "));
    problem = fmt::format(
        "{}: {}", typed(name),
        number_complaint(at, at.get_option_no_throw(name), what.substr(std::min(what.find(" = ") + 3, what.size()))));
  } else if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    problem = option + problem.substr(std::min(problem.find(':'), problem.size()));
  } else if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr ||
             dynamic_cast<const CLI::RequiresError*>(&error) != nullptr) {
    // "--prompt excludes --file"
    const std::size_t first = problem.find(' '), second = problem.rfind(' ');
    problem =
        typed(problem.substr(0, first)) + problem.substr(first, second + 1 - first) + typed(problem.substr(second + 1));
  }
  return with_hint(problem, path);
}

std::optional<std::string> CommandLine::unknown_command(const CLI::App& program) {
  std::vector<const CLI::App*> path;
  for (const CLI::App* app : commands(program)) {
    path.push_back(app);
    const std::vector<std::string> rest = app->remaining();
    if (app->get_require_subcommand_min() > 0 && !rest.empty() && !rest.front().starts_with('-'))
      return with_hint(no_command(rest.front(), *app), path);
  }
  return std::nullopt;
}

}  // namespace kvasir::cli
