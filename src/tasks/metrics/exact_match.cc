#include "tasks/metrics/exact_match.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "tasks/metrics/python_text.h"

namespace kvasir {

Result<ExactMatch> ExactMatch::create(const ExactMatchOptions& options) {
  ExactMatch match;
  for (const std::string& expression : options.regexes_to_ignore) {
    KVASIR_ASSIGN_OR_RETURN(metrics::Pattern pattern, metrics::Pattern::compile(expression));
    match.ignored_.push_back(std::move(pattern));
  }
  match.options_ = options;
  return match;
}

std::string ExactMatch::reduce(std::string_view bytes) const {
  std::string text = metrics::replace_invalid_utf8(bytes);
  for (const metrics::Pattern& pattern : ignored_) text = pattern.erase_from(text);
  if (options_.ignore_case) text = metrics::lower(text);
  if (options_.ignore_punctuation) text = metrics::remove_punctuation(text);
  if (options_.ignore_numbers) text = metrics::remove_ascii_digits(text);
  return text;
}

double ExactMatch::score(const MetricInput& input) const {
  const std::string prediction = reduce(input.prediction);
  return std::any_of(input.references.begin(), input.references.end(),
                     [&](const std::string& reference) { return reduce(reference) == prediction; });
}

RegexFilter::RegexFilter(metrics::Pattern pattern, RegexFilterOptions options)
    : pattern_(std::move(pattern)), options_(std::move(options)) {}

Result<RegexFilter> RegexFilter::create(RegexFilterOptions options) {
  KVASIR_ASSIGN_OR_RETURN(metrics::Pattern pattern, metrics::Pattern::compile(options.pattern));
  return RegexFilter(std::move(pattern), std::move(options));
}

std::string RegexFilter::apply(std::string_view bytes) const {
  const std::string text = metrics::replace_invalid_utf8(bytes);
  // Several groups that are all empty count as a match without a value.
  std::vector<std::pair<std::string_view, bool>> matches;
  pattern_.find_all(text, [&](std::span<const std::string_view> groups) {
    if (groups.size() <= 2) {
      matches.emplace_back(groups.back(), true);
      return;
    }
    const auto found =
        std::find_if(groups.begin() + 1, groups.end(), [](std::string_view group) { return !group.empty(); });
    matches.emplace_back(found == groups.end() ? std::string_view() : *found, found != groups.end());
  });
  const std::ptrdiff_t count = std::ssize(matches);
  const std::ptrdiff_t index = options_.group_select < 0 ? count + options_.group_select : options_.group_select;
  if (index < 0 || index >= count) return options_.fallback;
  const auto& [value, has_value] = matches[static_cast<std::size_t>(index)];
  return has_value ? std::string(metrics::strip(value)) : options_.fallback;
}

namespace metrics {
namespace {

template <class T>
T must(Result<T> made) {
  KVASIR_CHECK(made.ok());
  return std::move(*made);
}

double gsm8k_exact_match(const std::string& answer, const MetricInput& input) {
  static const ExactMatch match =
      must(ExactMatch::create({.regexes_to_ignore = {",", R"(\$)", "(?s).*#### ", R"(\.$)"}, .ignore_case = true}));
  return match.score({.prediction = answer, .references = input.references, .classes = {}});
}

}  // namespace

std::string gsm8k_strict_filter(std::string_view text) {
  static const RegexFilter filter = must(RegexFilter::create({}));
  return filter.apply(text);
}

std::string gsm8k_flexible_filter(std::string_view text) {
  static const RegexFilter filter =
      must(RegexFilter::create({.pattern = R"((-?[$0-9.,]{2,})|(-?[0-9]+))", .group_select = -1}));
  return filter.apply(text);
}

double gsm8k_strict_match(const MetricInput& input) {
  return gsm8k_exact_match(gsm8k_strict_filter(input.prediction), input);
}

double gsm8k_flexible_extract(const MetricInput& input) {
  return gsm8k_exact_match(gsm8k_flexible_filter(input.prediction), input);
}

double plain_exact_match(const MetricInput& input) {
  return std::find(input.references.begin(), input.references.end(), input.prediction) != input.references.end() ? 1
                                                                                                                 : 0;
}

}  // namespace metrics
}  // namespace kvasir
