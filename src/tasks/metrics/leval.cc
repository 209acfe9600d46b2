#include "tasks/metrics/leval.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tasks/metrics/best_of.h"
#include "tasks/metrics/python_text.h"
#include "tasks/metrics/rouge.h"

namespace kvasir::metrics {
namespace {

constexpr std::string_view kLetters = "ABCD";

bool is_letter(char byte) {
  return byte >= 'A' && byte <= 'D';
}

// Returns the letters A to D of a text, sorted, each once.
std::string distinct_letters(std::string_view text) {
  std::set<char> letters;
  std::copy_if(text.begin(), text.end(), std::inserter(letters, letters.end()), is_letter);
  return {letters.begin(), letters.end()};
}

double exact_match_score(std::string_view prediction, std::string_view reference) {
  const std::string expected = normalize_answer(reference, false);
  if (std::all_of(expected.begin(), expected.end(), is_letter)) {
    const std::string predicted = normalize_answer(prediction, false);
    if (predicted == expected) return 1;
    const bool no_other = std::all_of(predicted.begin(), predicted.end(), [&](char byte) {
      return contains(expected, {&byte, 1});
    });
    return no_other ? 0.25 : 0;
  }
  const std::optional<double> predicted_number = parse_float(prediction);
  const std::optional<double> expected_number = parse_float(reference);
  if (predicted_number && expected_number) return *predicted_number == *expected_number ? 1 : 0;
  const auto squeezed = [](std::string_view text) { return replace_all(lower(text), " ", ""); };
  return contains(squeezed(prediction), squeezed(reference)) ? 1 : 0;
}

// Returns the answer of a reference "A", "A." or "AC": the letters of its first word; nullopt without a word.
std::optional<std::string> letters_of_reference(std::string_view reference) {
  const std::vector<std::string_view> words = split_words(reference);
  if (words.empty()) return std::nullopt;
  std::string letters;
  std::copy_if(words[0].begin(), words[0].end(), std::back_inserter(letters), is_letter);
  return letters.empty() ? "A" : letters;
}

// Returns all capital letters that stand before white space, "." or ")" and are A to D.
std::string marked_letters(std::string_view text) {
  std::string letters;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (!is_letter(text[i])) continue;
    const Character next = first_character(text.substr(i + 1));
    if (next.code == '.' || next.code == ')' || is_space(next.code)) letters += text[i];
  }
  return letters;
}

// process_output_mc(). An answer without any letter counts as A.
std::string letters_of_answer(std::string_view answer, bool several) {
  if (strip(answer).empty()) return "None";
  if (contains(kLetters, answer)) return std::string(answer);
  if (!several) {
    const auto first = std::find_if(answer.begin(), answer.end(), is_letter);
    return first == answer.end() ? "A" : std::string(1, *first);
  }
  const auto leading_end = std::find_if_not(answer.begin(), answer.end(), is_letter);
  const std::string leading(answer.begin(), leading_end);
  if (leading.size() > 1) return distinct_letters(leading);
  std::string_view rest = answer.substr(leading.size());
  rest = rest.substr(0, rest.find("Question"));
  std::string letters = distinct_letters(leading + marked_letters(rest));
  if (letters.empty()) {
    const auto begin = std::find_if(rest.begin(), rest.end(), is_letter);
    letters.assign(begin, std::find_if_not(begin, rest.end(), is_letter));
  }
  return letters.empty() ? "A" : letters;
}

// str.isdigit() of ASCII and of decimal digits; superscripts, which it also takes, do not count.
bool has_digit(std::string_view text) {
  return !digit_runs(text).empty();
}

// Returns the digits before the first "." of the number after "The answer is ", or else of the last word with a digit
// in the first paragraph.
std::string number_of_solution(std::string_view solution) {
  constexpr std::string_view kBefore = "The answer is ";
  std::string_view number;
  for (std::size_t found = 0; number.empty() && (found = solution.find(kBefore, found)) != std::string_view::npos;) {
    found += kBefore.size();
    number = first_word(solution.substr(found));
  }
  if (number.empty()) {
    const std::vector<std::string_view> words = split_at(solution.substr(0, solution.find("\n\n")), " ");
    const auto last = std::find_if(words.rbegin(), words.rend(), has_digit);
    if (last != words.rend()) number = *last;
  }
  std::string digits;
  for (const std::string_view run : digit_runs(number.substr(0, number.find('.')))) digits += run;
  return digits;
}

// process_gt_code(): a program's output without commas, quotes and the like.
std::string plain_output(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  std::string plain = join(words, " ");
  // White space at an end becomes a space too.
  if (!words.empty() && words.front().data() != text.data()) plain = " " + plain;
  if (lstrip(text).empty() ? !text.empty() : rstrip(text).size() != text.size()) plain += " ";
  for (const std::string_view removed : {",", "'", "\\", ".0"}) plain = replace_all(plain, removed, "");
  plain = replace_all(plain, "] [", "][");
  plain = replace_all(plain, "[ [", "[[");
  return replace_all(plain, "] ]", "]]");
}

// process_output_code(): the words of a program's output, taken from a sentence about it. `words`: how many the
// reference has.
std::string output_of_answer(std::string_view answer, std::size_t words) {
  std::string text = plain_output(answer);
  for (const std::string_view removed :
       {"will be", "of the code", "is", "would be", "the value of", "the result of", "printed"}) {
    text = replace_all(text, removed, "");
  }
  constexpr std::string_view kBefore = "the final output";
  const std::size_t most = words + 3;
  const std::size_t found = text.rfind(kBefore);
  // Split at runs of white space, with an empty part at an end that has some.
  const std::string part = found == std::string::npos ? text : text.substr(found + kBefore.size());
  std::vector<std::string_view> parts = split_words(part);
  if (parts.empty() || parts.front().data() != part.data()) parts.insert(parts.begin(), std::string_view());
  if (!part.empty() && rstrip(part).size() != part.size()) parts.emplace_back();
  if (parts.size() > most) {
    const auto extra = static_cast<std::ptrdiff_t>(parts.size() - most);
    if (found == std::string::npos) {
      parts.erase(parts.begin(), parts.begin() + extra);
    } else {
      parts.resize(most);
    }
  }
  return join(parts, " ");
}

double exam_score(const MetricInput& input, bool several) {
  const std::string predicted = letters_of_answer(input.prediction, several);
  return best_of(input, [&](std::string_view, std::string_view reference) {
    const std::optional<std::string> expected = letters_of_reference(reference);
    return expected ? exact_match_score(predicted, *expected) : 0;
  });
}

}  // namespace

double leval_exact_match(const MetricInput& input) {
  return best_of(input, exact_match_score);
}

double leval_exam(const MetricInput& input) {
  return exam_score(input, false);
}

double leval_exam_coursera(const MetricInput& input) {
  return exam_score(input, true);
}

double leval_gsm(const MetricInput& input) {
  return best_of(input, [](std::string_view prediction, std::string_view reference) {
    return exact_match_score(number_of_solution(prediction), number_of_solution(reference));
  });
}

double leval_code(const MetricInput& input) {
  return best_of(input, [](std::string_view prediction, std::string_view reference) {
    return exact_match_score(output_of_answer(prediction, split_words(reference).size()), plain_output(reference));
  });
}

double leval_rouge_1(const MetricInput& input) {
  return best_of(
      input, [](std::string_view prediction, std::string_view reference) { return rouge_n(prediction, reference, 1); });
}

double leval_rouge_2(const MetricInput& input) {
  return best_of(
      input, [](std::string_view prediction, std::string_view reference) { return rouge_n(prediction, reference, 2); });
}

double leval_rouge_l(const MetricInput& input) {
  return best_of(input, rouge_l);
}

}  // namespace kvasir::metrics
