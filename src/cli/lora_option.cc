// --lora FILE[:SCALE].
#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

// The text behind the last colon is the scale, unless a file has the whole name. Throws CLI::ValidationError for a
// scale that is no number.
AdapterFile adapter_file_of(const std::string& text) {
  if (text.empty()) throw CLI::ValidationError("--lora", "needs the name of a file");
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) return {text, 1};
  const std::string path = text.substr(0, colon);
  float scale = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, scale);
  if (rest == end && error == std::errc() && colon + 1 < text.size()) return {path, scale};
  if (!std::filesystem::exists(path, ignored)) return {text, 1};  // whoever opens it says what is wrong
  throw CLI::ValidationError("--lora", "'" + printable(text.substr(colon + 1), 40) +
                                           "' behind the file's name is no scale; give a number, such as :0.5");
}

}  // namespace

CLI::Option* add_lora_option(CLI::App& command, std::vector<AdapterFile>& adapters) {
  const auto read = [&adapters](const std::vector<std::string>& typed) {
    adapters.clear();
    for (const std::string& text : typed) adapters.push_back(adapter_file_of(text));
  };
  return command
      .add_option_function<std::vector<std::string>>(
          "--lora", read,
          "LoRA adapter, a GGUF file, with the scale of what it adds (default: 1; 0: load it for requests that ask for "
          "it); may be repeated")
      ->type_name("FILE[:SCALE]")
      ->take_all()
      ->allow_extra_args(false);
}

}  // namespace kvasir::cli
