// --lora FILE[:SCALE].
#include <charconv>
#include <string>
#include <system_error>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

// The text behind the last colon is the scale, if it is a number.
AdapterFile adapter_file_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return {text, 1};
  float scale = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, scale);
  if (rest != end || error != std::errc()) return {text, 1};
  return {text.substr(0, colon), scale};
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
