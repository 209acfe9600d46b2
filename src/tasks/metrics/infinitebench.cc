#include "tasks/metrics/infinitebench.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/metrics/best_of.h"
#include "tasks/metrics/python_text.h"
#include "tasks/metrics/rouge.h"

namespace kvasir::metrics {
namespace {

bool has_word(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string with_single_spaces(std::string_view text) {
  std::string single(text);
  single.erase(std::unique(single.begin(), single.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
               single.end());
  return single;
}

// Returns what follows the first opening, in the order of `openings`, that the text has, and the character after it;
// nullopt without any, empty if nothing follows.
std::optional<std::string_view> after_opening(std::string_view text, std::initializer_list<std::string_view> openings) {
  for (const std::string_view opening : openings) {
    const std::size_t found = text.find(opening);
    if (found == std::string_view::npos) continue;
    const std::string_view rest = text.substr(found + opening.size());
    return rest.empty() ? rest : rest.substr(first_character(rest).size);
  }
  return std::nullopt;
}

// Returns the first match of \d+\.\d+|\d+, in ASCII; empty if none.
std::string first_decimal(std::string_view text) {
  const std::string ascii = digits_to_ascii(text);
  const auto begin = std::find_if(ascii.begin(), ascii.end(), is_ascii_digit);
  auto end = std::find_if_not(begin, ascii.end(), is_ascii_digit);
  if (end != ascii.end() && *end == '.' && end + 1 != ascii.end() && is_ascii_digit(end[1])) {
    end = std::find_if_not(end + 1, ascii.end(), is_ascii_digit);
  }
  return {begin, end};
}

double math_find(const MetricInput& input, bool cut_decimals) {
  const std::string& answer = input.references[0];
  const std::string number = first_decimal(input.prediction);
  if (number.empty()) return 0;
  if (answer.find_first_of(".eE") != std::string::npos) {
    const std::optional<double> expected = parse_float(answer);
    return expected && parse_float(number) == expected ? 1 : 0;
  }
  const std::optional<std::string> expected = parse_int(answer);
  if (!expected) return 0;
  if (!cut_decimals) return parse_int(number) == expected ? 1 : 0;
  // int(float(number)), whose digits are those of the double.
  const std::optional<double> value = parse_float(number);
  return value && fmt::format("{:.0f}", std::trunc(*value)) == *expected ? 1 : 0;
}

bool opens_with_letter(std::string_view prediction, const std::string& letter) {
  const std::size_t first = prediction.empty() ? 0 : first_character(prediction).size;
  const std::size_t second = prediction.size() == first ? 0 : first_character(prediction.substr(first)).size;
  const std::string_view opening = prediction.substr(0, first + second);
  return opening == letter + "." || opening == letter + ":";
}

double code_debug(const MetricInput& input, std::initializer_list<std::string_view> openings) {
  if (input.references.size() < 2) return 0;
  const std::string& function = input.references[0];
  const std::string& letter = input.references[1];
  const std::string_view prediction = strip(input.prediction);
  if (opens_with_letter(prediction, letter)) return 1;
  std::string text = blank_out(prediction, "\n`'\"-*");
  for (const std::string_view word : {"Option", "option"}) text = replace_all(text, word, " ");
  text = with_single_spaces(text);
  const std::optional<std::string_view> answer = after_opening(text, openings);
  return answer && !answer->empty() && (answer->starts_with(letter) || answer->starts_with(function)) ? 1 : 0;
}

}  // namespace

double infinitebench_number(const MetricInput& input) {
  const std::vector<std::string_view> numbers = ascii_digit_runs(input.prediction);
  return input.references[0] == (numbers.empty() ? std::string_view() : numbers[0]) ? 1 : 0;
}

double infinitebench_kv_retrieval(const MetricInput& input) {
  const std::string text = blank_out(input.prediction, "\n:\"'.,?!{}");
  return has_word(split_words(text), input.references[0]) ? 1 : 0;
}

double infinitebench_math_find(const MetricInput& input) {
  return math_find(input, false);
}

double infinitebench_math_calc(const MetricInput& input) {
  const std::vector<std::string_view> numbers = ascii_digit_runs(input.prediction);
  const std::size_t most = std::min(numbers.size(), input.references.size());
  std::size_t same = 0;
  while (same < most) {
    const std::optional<std::string> number = parse_int(numbers[same]);
    if (!number || number != parse_int(input.references[same])) break;
    ++same;
  }
  return static_cast<double>(same) / static_cast<double>(input.references.size());
}

double infinitebench_code_run(const MetricInput& input) {
  const std::string text = blank_out(strip(input.prediction), "\n.`'\":");
  const std::vector<std::string_view> words = split_words(text);
  if (words.empty()) return 0;
  const std::optional<std::string> number = parse_int(words.back());
  return number && number == parse_int(input.references[0]) ? 1 : 0;
}

double infinitebench_code_debug(const MetricInput& input) {
  return code_debug(input, {"answer is:", "is:", "answer:", "correct option is:"});
}

double infinitebench_longbook_choice(const MetricInput& input) {
  const auto is_reference = [&](std::string_view answer) {
    return std::find(input.references.begin(), input.references.end(), answer) != input.references.end() ? 1.0 : 0.0;
  };
  constexpr std::string_view kLetters = "ABCD";
  const std::string_view prediction = strip(input.prediction);
  if (prediction.empty()) return 0;
  if (contains(kLetters, prediction.substr(0, 1))) return is_reference(prediction.substr(0, 1));
  if (is_reference(prediction) > 0) return 1;
  const std::string text = with_single_spaces(blank_out(prediction, "\n\"'.,?!{}"));
  if (const auto answer = after_opening(text, {"answer is:", "answer:", "answer is", "option is"})) {
    return !answer->empty() &&
           std::any_of(input.references.begin(), input.references.end(),
                       [&](const std::string& reference) { return answer->starts_with(reference); });
  }
  for (const std::string_view word : split_words(text)) {
    if (contains(kLetters, word)) return is_reference(word);
  }
  return 0;
}

double infinitebench_longdialogue_qa(const MetricInput& input) {
  const std::string text = upper(blank_out(strip(input.prediction), "\n:\"'.,?!{}"));
  return has_word(split_words(text), input.references[0]) ? 1 : 0;
}

double infinitebench_longbook_sum(const MetricInput& input) {
  return best_of(input, rouge_l_sum);
}

double scbench_kv_retrieval(const MetricInput& input) {
  return contains(input.prediction, input.references[0]) ? 1 : 0;
}

double scbench_math_find(const MetricInput& input) {
  return math_find(input, true);
}

double scbench_code_debug(const MetricInput& input) {
  return code_debug(input, {"answer is:", "is:", "answer:"});
}

double scbench_longdialogue_qa(const MetricInput& input) {
  const std::string text = upper(strip(input.prediction));
  return best_of(input, [&](std::string_view, std::string_view reference) { return contains(text, upper(reference)); });
}

double scbench_string_match_all(const MetricInput& input) {
  const std::string text = lower(input.prediction);
  std::size_t found = 0;
  for (const std::string& reference : input.references) found += contains(text, lower(reference)) ? 1 : 0;
  // Python rounds the exact value of the double, as printing does.
  const std::string rounded =
      fmt::format("{:.2f}", static_cast<double>(found) / static_cast<double>(input.references.size()));
  return parse_float(rounded).value_or(0);
}

}  // namespace kvasir::metrics
