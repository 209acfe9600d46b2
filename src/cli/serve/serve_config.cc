#include "cli/serve/serve_config.h"

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/nearest.h"
#include "cli/command.h"
#include "cli/values.h"
#include "server/admin/config_file.h"

namespace kvasir::cli {
namespace {

using server::ConfigValue;

constexpr std::size_t kLargestFile = 1 << 20;
constexpr const char* kTables = "TABLES";  // type of the option that counts [[models]]

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

bool is_configurable(const CLI::Option& option) {
  return option.get_configurable() && !option.get_lnames().empty();
}

// Returns an option's type without what its checks add behind a colon.
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

[[noreturn]] void refuse(const std::string& problem) {
  throw CLI::ParseError(problem, CLI::ExitCodes::InvalidError);
}

CLI::Option* find(CLI::App& command, const std::string& name) {
  for (CLI::Option* option : command.get_options({}))
    if (is_configurable(*option) && long_name(*option) == name) return option;
  return nullptr;
}

std::string unknown(const CLI::App& command, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    if (is_configurable(*option) && option->get_type_name() != kTables) names.push_back(long_name(*option));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string meant = did_you_mean(name, views);
  // Options of a table are no command's.
  const bool in_table = command.get_name().empty() && meant.empty();
  return fmt::format("there is no option '{}'{}{}", name, meant,
                     in_table ? " of a model; those of the server stand above the first table [[models]]" : "");
}

// Returns the problem with the type of a value, or "".
std::string type_problem(const CLI::Option& option, ConfigValue::Type type) {
  using Type = ConfigValue::Type;
  const std::string wanted = type_of(option);
  if (wanted == kTables)
    return type == Type::kTables ? "" : fmt::format("tables are expected, each below a line [[{}]]", long_name(option));
  if (type == Type::kTables) return "this is a table; options stand in none, each on a line such as port = 8080";
  if (option.get_items_expected_max() == 0) return type == Type::kFlag ? "" : "true or false is expected, unquoted";
  if (wanted == "INT" || wanted == "UINT") return type == Type::kInteger ? "" : "a whole number is expected, unquoted";
  if (wanted == "FLOAT") return type == Type::kInteger || type == Type::kNumber ? "" : "a number is expected, unquoted";
  if (wanted == "BYTES")
    return type == Type::kInteger || type == Type::kText ? ""
                                                         : "a number of bytes or a string is expected, as \"2GiB\"";
  if (type == Type::kTexts) return option.get_items_expected_max() > 1 ? "" : "a single string is expected, not a list";
  return type == Type::kText ? "" : "a string is expected, in quotes";
}

// Returns a parse error's message without the option's name.
std::string complaint(const CLI::App& command, const CLI::Option& option, const CLI::ParseError& error,
                      const ConfigValue& value) {
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    return number_complaint(command, &option, value.texts.front());
  const std::string text = error.what();
  const std::string name = option.get_name() + ": ";
  return text.starts_with(name) ? text.substr(name.size()) : text;
}

// `tables`: gets those of the file; null where there are none.
void apply(CLI::App& command, const std::string& file, const ConfigValue& value, ConfigTables* tables) {
  const std::string place = server::config_place(file, value.line, value.column);
  CLI::Option* option = find(command, value.name);
  if (option == nullptr) refuse(place + unknown(command, value.name));
  if (const std::string problem = type_problem(*option, value.type); !problem.empty())
    refuse(fmt::format("{}{}: {}", place, value.name, problem));
  if (value.type == ConfigValue::Type::kTables) {
    *tables = {file, value.tables};
    return static_cast<void>(option->add_result("[[models]]"));
  }
  if (option->count() > 0 || value.texts.empty()) return;
  for (const std::string& text : value.texts) option->add_result(text);
  try {
    option->run_callback();
  } catch (const CLI::ParseError& error) {
    refuse(fmt::format("{}{}: {}", place, value.name, complaint(command, *option, error, value)));
  }
}

void apply_all(CLI::App& command, const std::string& file, const std::vector<ConfigValue>& values,
               ConfigTables* tables) {
  for (const ConfigValue& value : values) apply(command, file, value, tables);
  for (const ConfigValue& value : values)
    for (const CLI::Option* needed : find(command, value.name)->get_needs())
      if (needed->count() == 0)
        refuse(fmt::format("{}{}: it needs '{}' too", server::config_place(file, value.line, value.column), value.name,
                           long_name(*needed)));
}

void read_config(CLI::App& command, const std::string& file, ConfigTables* tables) {
  const Result<std::string> text = read_file(file, kLargestFile);
  if (!text.ok()) refuse(text.status().message());
  const Result<std::vector<ConfigValue>> values = server::parse_config(*text, file);
  if (!values.ok()) refuse(values.status().message());
  apply_all(command, file, *values, tables);
}

// Returns an option's value as TOML; empty if it has none.
std::string value_of(const CLI::Option& option) {
  const std::string type = type_of(option);
  if (option.get_items_expected_max() == 0) {
    const std::string otherwise = option.get_default_str().empty() ? "false" : option.get_default_str();
    return option.count() > 0 ? option.results().back() : otherwise;
  }
  const bool number = type == "INT" || type == "UINT" || type == "FLOAT" || type == "BYTES";
  const auto quoted = [&](const std::string& text) { return number ? text : server::toml_string(text); };
  if (option.get_items_expected_max() > 1) {
    std::string list;
    for (const std::string& text : option.results()) list += (list.empty() ? "" : ", ") + quoted(text);
    return "[" + list + "]";
  }
  if (option.count() > 0) return quoted(option.results().back());
  return option.get_default_str().empty() ? "" : quoted(option.get_default_str());
}

// Returns a value of a table as TOML.
std::string value_of(const ConfigValue& value) {
  const auto quoted = [&](const std::string& text) {
    const bool text_type = value.type == ConfigValue::Type::kText || value.type == ConfigValue::Type::kTexts;
    return text_type ? server::toml_string(text) : text;
  };
  if (value.type != ConfigValue::Type::kTexts) return quoted(value.texts.front());
  std::string list;
  for (const std::string& text : value.texts) list += (list.empty() ? "" : ", ") + quoted(text);
  return "[" + list + "]";
}

std::string printed(const CLI::App& command, const ConfigTables* tables) {
  std::string out = fmt::format("# Options of kvasir {}: 'kvasir {} --config FILE' reads them.\n", command.get_name(),
                                command.get_name());
  for (const CLI::Option* option : command.get_options()) {
    if (!is_configurable(*option) || option->get_type_name() == kTables) continue;
    const std::string value = value_of(*option);
    out += fmt::format("\n# {}\n{}{} = {}\n", option->get_description(), value.empty() ? "#" : "", long_name(*option),
                       value.empty() ? "\"\"" : value);
  }
  if (tables != nullptr)
    for (const std::vector<ConfigValue>& table : tables->tables) {
      out += "\n[[models]]\n";
      for (const ConfigValue& value : table) out += fmt::format("{} = {}\n", value.name, value_of(value));
    }
  out.pop_back();  // the last line end is added when the text is printed
  return out;
}

}  // namespace

void add_config_option(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--config", [&command](const std::string& file) { read_config(command, file, nullptr); },
          "TOML file with values of these options, such as: port = 8080")
      ->type_name("FILE")
      ->configurable(false);
}

void add_config_option(CLI::App& command, ConfigTables& tables) {
  command
      .add_option_function<std::string>(
          "--config", [&command, &tables](const std::string& file) { read_config(command, file, &tables); },
          "TOML file with values of these options, such as: port = 8080, and with tables [[models]]")
      ->type_name("FILE")
      ->configurable(false);
  command
      .add_option_function<std::string>(
          "--models",
          [&tables](const std::string&) {
            if (tables.tables.empty())
              throw CLI::ValidationError("--models", "models stand in the configuration file, each below [[models]]");
          },
          "Models of the configuration file")
      ->type_name(kTables)
      ->group("");
}

void apply_config(CLI::App& options, const std::string& file, const std::vector<server::ConfigValue>& values) {
  apply_all(options, file, values, nullptr);
}

void add_print_config_option(CLI::App& command, const ConfigTables* tables) {
  command
      .add_flag_callback(
          "--print-config", [&command, tables] { throw CLI::CallForVersion(printed(command, tables), 0); },
          "Print the values of all options as a configuration file, and end")
      ->configurable(false);
}

}  // namespace kvasir::cli
