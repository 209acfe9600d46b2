#include "cli/values.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <system_error>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

// The values that an option accepts, in words; the commands check them. Entries of one command come first.
struct Range {
  std::string_view command;  // empty: any
  std::string_view option;
  std::string_view values;
};
constexpr Range kRanges[] = {
    {"run", "tokens", "-1 to 2^40"},
    {"run", "min-tokens", "0 to the number of --tokens"},
    {"run", "ctx", "0, or 5 to 2^40"},
    {"plan", "ctx", "0 to 2^40"},
    {"plan", "prompt", "-1 or more"},
    {"demo", "tokens", "0 or more"},
    {"plan", "batch", "1 to 65536"},
    {"bench", "prefill", "0 to 2^26"},
    {"bench", "decode", "0 to 2^26"},
    {"bench", "batch", "1 to 256"},
    {"replay", "chunk", "1 or more"},
    {"record", "tokens", "0 to 2048"},
    {"inspect", "tokens", "0 to 16384"},
    {"inspect", "bins", "1 to 1024"},
    {"profile", "tokens", "0, or 2 or more"},
    {"profile", "articles", "0 to 1000000"},
    {"profile", "top-k", "1 to 65536"},
    {"profile", "queries", "1 to 65536"},
    {"profile", "reps", "0 to 2^31 - 1"},
    {"profile", "seed", "0 to 2^62"},
    {"", "threads", "0 to 1024"},
    {"", "chunk", "0 to 4096"},
    {"", "page", "16, 32 or 64"},
    {"", "temp", "0 to 100"},
    {"", "top-k", "-1 to 2^31 - 1"},
    {"", "top-p", "above 0, up to 1"},
    {"", "min-p", "0 to 1"},
    {"", "top-n-sigma", "0 to 100"},
    {"", "typical-p", "above 0, up to 1"},
    {"", "xtc-probability", "0 to 1"},
    {"", "xtc-threshold", "0 to 1"},
    {"", "dynatemp-range", "0 to 100"},
    {"", "dynatemp-exponent", "0 to 10"},
    {"", "repeat-penalty", "above 0, up to 10"},
    {"", "frequency-penalty", "-10 to 10"},
    {"", "presence-penalty", "-10 to 10"},
    {"", "length-penalty", "-10 to 10"},
    {"", "penalty-window", "0 to 65536"},
    {"", "dry", "0 to 100"},
    {"", "dry-base", "1 to 10"},
    {"", "dry-length", "1 to 1024"},
    {"", "dry-window", "1 to 65536"},
    {"", "seed", "0 to 2^64 - 1"},
    {"", "samples", "1 to 64"},
    {"", "beams", "0 to 64"},
    {"", "logprobs", "0 to 100"},
    {"", "depth", "0 to 2^26"},
    {"", "depths", "0 to 1"},
    {"", "repeat", "1 to 1000"},
    {"", "trials", "1 to 100000"},
    {"", "lengths", "1 or more"},
    {"", "distances", "1 or more"},
    {"", "kv-heads", "1 or more"},
    {"", "prefill", "0 or more"},
    {"", "tokens", "0 or more"},
    {"", "fill", "0 or more"},
    {"", "window", "0, or 4 to 2^24"},
    {"", "windows", "0 or more"},
    {"", "skip", "0 or more"},
    {"", "bins", "0 or more"},
    {"", "top", "1 to 4096"},
    {"", "matrix", "1 to 1024"},
    {"", "layers", "0 to 2^31 - 1"},
    {"serve", "port", "0 to 65535"},
    {"serve", "queue", "0 to 1000000"},
    {"serve", "drain", "0 to 86400"},
    {"serve", "max-batch", "1 to 64"},
};

std::string range_of(const CLI::App& command, const CLI::Option* option) {
  if (option == nullptr || option->get_lnames().empty()) return "";
  for (const Range& range : kRanges)
    if (range.option == option->get_lnames().front() && (range.command.empty() || range.command == command.get_name()))
      return fmt::format(" ({})", range.values);
  return "";
}

template <class Number>
bool is_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool octal = text.size() > 1 && text.front() == '0';  // as CLI11 would read it
  return error == std::errc() && end == text.data() + text.size() && !octal;
}

// Whether the text is a number too large for a float, which CLI11 would read as infinity.
bool is_beyond_float(const std::string& text) {
  char* end = nullptr;
  const long double value = std::strtold(text.c_str(), &end);
  return *end == '\0' && std::fabs(value) > std::numeric_limits<float>::max() &&
         text.find_first_of("iI") == std::string::npos;  // "inf" is refused under its own name
}

void check_number(const CLI::App& command, CLI::Option* option, bool (*accepts)(const std::string&)) {
  const auto check = [&command, option, accepts](std::string& text) {
    return accepts(text) ? "" : number_complaint(command, option, text);
  };
  option->check(CLI::Validator(check, ""));
}

}  // namespace

std::string number_complaint(const CLI::App& command, const CLI::Option* option, const std::string& text) {
  const bool whole = option == nullptr || option->get_type_name() != "FLOAT";
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  const bool is_whole = digits < text.size() && text.find_first_not_of("0123456789", digits) == std::string::npos &&
                        (text[digits] != '0' || text.size() == digits + 1);
  const bool out_of_range = is_whole || (!whole && is_beyond_float(text));
  const std::string_view problem = out_of_range ? "is out of range"
                                   : whole      ? "is not a whole number"
                                                : "is not a number";
  std::string meant;
  std::int64_t thousands = 0;
  if (whole && text.size() > 1 && text.size() < 10 && (text.back() == 'k' || text.back() == 'K') &&
      std::from_chars(text.data(), text.data() + text.size() - 1, thousands).ptr == text.data() + text.size() - 1 &&
      thousands > 0)
    meant = fmt::format("; give {} or {}", thousands * 1000, thousands * 1024);
  std::string range = range_of(command, option);
  constexpr std::string_view kOpenEnd = " or more";
  if (const std::size_t end = range.rfind(kOpenEnd); is_whole && end != std::string::npos)
    range.replace(end, kOpenEnd.size(), " to 2^63 - 1");
  return fmt::format("'{}' {}{}{}", printable(text, 40), problem, range, meant);
}

void check_values(CLI::App& program) {
  const auto named = [](std::string_view what) {
    return [what](const std::string& text) { return text.empty() ? fmt::format("{} needs a name", what) : ""; };
  };
  for (CLI::Option* option : program.get_options({})) {
    const std::string type = option->get_type_name();
    if (type == "FILE") option->check(CLI::Validator(named("a file"), ""));
    if (type == "FOLDER") option->check(CLI::Validator(named("a folder"), ""));
    if (type == "NAME") option->check(CLI::Validator(named("a model"), ""));
    // CLI11 reads an empty value as 0.
    if (type == "FLOAT")
      check_number(program, option, [](const std::string& text) { return !text.empty() && !is_beyond_float(text); });
    if (type == "INT") check_number(program, option, is_number<std::int64_t>);
    if (type == "UINT") check_number(program, option, is_number<std::uint64_t>);
    if (option->get_expected_max() <= 1 && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (CLI::App* command : program.get_subcommands({})) check_values(*command);
}

}  // namespace kvasir::cli
