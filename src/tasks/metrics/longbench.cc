#include "tasks/metrics/longbench.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "tasks/metrics/best_of.h"
#include "tasks/metrics/python_text.h"
#include "tasks/metrics/rouge.h"
#include "tasks/metrics/sequence_ratio.h"

namespace kvasir::metrics {
namespace {

double share_of_numbers(std::string_view prediction, std::string_view wanted) {
  const std::vector<std::string_view> numbers = digit_runs(prediction);
  if (numbers.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), wanted)) / static_cast<double>(numbers.size());
}

// Returns the digits after the first "Paragraph " that has some; empty if none.
std::string_view paragraph_number(std::string_view reference) {
  constexpr std::string_view kBefore = "Paragraph ";
  for (std::size_t found; (found = reference.find(kBefore)) != std::string_view::npos;) {
    reference.remove_prefix(found + kBefore.size());
    const std::vector<std::string_view> numbers = digit_runs(reference.substr(0, reference.find(kBefore)));
    if (!numbers.empty() && numbers[0].data() == reference.data()) return numbers[0];
  }
  return {};
}

double classification_of(const MetricInput& input, std::string_view reference) {
  std::vector<std::string_view> named;
  for (const std::string& name : input.classes) {
    if (contains(input.prediction, name)) named.push_back(name);
  }
  // The original removes from the list that it walks, and so skips the name after each that it removes.
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i] != reference && contains(reference, named[i]))
      named.erase(std::find(named.begin(), named.end(), named[i]));
  }
  if (std::find(named.begin(), named.end(), reference) == named.end()) return 0;
  return 1.0 / static_cast<double>(named.size());
}

std::string_view first_code_line(std::string_view prediction) {
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  for (const std::string_view line : split_at(prediction, "\n")) {
    if (!contains(line, "`") && !contains(line, "#") && !contains(line, "//")) return line;
  }
  return {};
}

// fuzzywuzzy.fuzz.ratio over difflib, over 100.
double fuzzy_ratio(std::string_view a, std::string_view b) {
  if (a == b) return 1;
  if (a.empty() || b.empty()) return 0;
  return std::nearbyint(100 * sequence_ratio(a, b)) / 100;
}

}  // namespace

double word_f1(std::string_view prediction, std::string_view reference) {
  const std::string normal_prediction = normalize_answer(prediction, true);
  const std::string normal_reference = normalize_answer(reference, true);
  const std::vector<std::string_view> predicted = split_words(normal_prediction);
  const std::vector<std::string_view> expected = split_words(normal_reference);
  std::map<std::string_view, std::size_t> left;
  for (const std::string_view word : expected) ++left[word];
  std::size_t same = 0;
  for (const std::string_view word : predicted) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++same;
  }
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(predicted.size());
  const double recall = static_cast<double>(same) / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

double qa_f1_score(const MetricInput& input) {
  return best_of(input, word_f1);
}

double longbench_rouge_score(const MetricInput& input) {
  return best_of(input, rouge_package_l);
}

double classification_score(const MetricInput& input) {
  return best_of(input,
                 [&](std::string_view, std::string_view reference) { return classification_of(input, reference); });
}

double retrieval_score(const MetricInput& input) {
  return best_of(input, [](std::string_view prediction, std::string_view reference) {
    return share_of_numbers(prediction, paragraph_number(reference));
  });
}

double count_score(const MetricInput& input) {
  return best_of(input, share_of_numbers);
}

double code_sim_score(const MetricInput& input) {
  const std::string_view line = first_code_line(input.prediction);
  return best_of(input, [&](std::string_view, std::string_view reference) { return fuzzy_ratio(line, reference); });
}

std::optional<std::string> longbench_v2_letter(std::string_view response) {
  const std::string plain = replace_all(response, "*", "");
  for (const std::string_view before : {"The correct answer is (", "The correct answer is "}) {
    const bool bracket = before.back() == '(';
    for (std::size_t at = 0; (at = plain.find(before, at)) != std::string::npos;) {
      at += before.size();
      if (at == plain.size() || plain[at] < 'A' || plain[at] > 'D') continue;
      if (!bracket || plain.compare(at + 1, 1, ")") == 0) return plain.substr(at, 1);
    }
  }
  return std::nullopt;
}

double longbench_v2_accuracy(const MetricInput& input) {
  const std::optional<std::string> letter = longbench_v2_letter(input.prediction);
  return letter && std::find(input.references.begin(), input.references.end(), *letter) != input.references.end() ? 1
                                                                                                                  : 0;
}

std::string ruler_postprocess(std::string_view prediction) {
  std::string text(strip(prediction));
  std::replace_if(
      text.begin(), text.end(), [](char byte) { return byte >= '\0' && byte < ' '; }, '\n');
  return std::string(strip(text));
}

double string_match_all(const MetricInput& input) {
  const std::string text = lower(ruler_postprocess(input.prediction));
  std::size_t found = 0;
  for (const std::string& reference : input.references) found += contains(text, lower(reference)) ? 1 : 0;
  return static_cast<double>(found) / static_cast<double>(input.references.size());
}

double string_match_part(const MetricInput& input) {
  const std::string text = lower(ruler_postprocess(input.prediction));
  return best_of(input, [&](std::string_view, std::string_view reference) { return contains(text, lower(reference)); });
}

}  // namespace kvasir::metrics
