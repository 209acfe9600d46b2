#include "tasks/metrics/math_equivalence.h"

#include <cstddef>
#include <vector>

#include "tasks/metrics/best_of.h"
#include "tasks/metrics/python_text.h"

namespace kvasir::metrics {
namespace {

// The functions below return nullopt where their originals raise.

// Writes \frac12 and \frac1{2} as \frac{1}{2}.
std::optional<std::string> with_braced_fractions(const std::string& text) {
  const std::vector<std::string_view> parts = split_at(text, "\\frac");
  std::string fixed(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    std::string_view rest = parts[i];
    if (rest.empty()) return std::nullopt;
    fixed += "\\frac";
    if (rest[0] == '{') {
      fixed += rest;
      continue;
    }
    const std::string_view above = rest.substr(0, first_character(rest).size);
    rest.remove_prefix(above.size());
    if (rest.empty()) return text;
    fixed.append("{").append(above).append("}");
    if (rest[0] != '{') {
      const std::string_view below = rest.substr(0, first_character(rest).size);
      rest.remove_prefix(below.size());
      fixed.append("{").append(below).append("}");
    }
    fixed += rest;
  }
  return fixed;
}

// Writes \sqrt3 as \sqrt{3}.
std::optional<std::string> with_braced_roots(std::string_view text) {
  const std::vector<std::string_view> parts = split_at(text, "\\sqrt");
  std::string fixed(parts[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    std::string_view rest = parts[i];
    if (rest.empty()) return std::nullopt;
    fixed += "\\sqrt";
    if (rest[0] != '{') {
      const std::string_view under = rest.substr(0, first_character(rest).size);
      rest.remove_prefix(under.size());
      fixed.append("{").append(under).append("}");
    }
    fixed += rest;
  }
  return fixed;
}

// Writes 1/2 as \frac{1}{2}.
std::optional<std::string> with_slash_as_fraction(const std::string& text) {
  const std::vector<std::string_view> parts = split_at(text, "/");
  if (parts.size() != 2) return text;
  const std::optional<std::string> above = parse_int(parts[0]);
  const std::optional<std::string> below = parse_int(parts[1]);
  if (!above || !below) return std::nullopt;
  if (*above != parts[0] || *below != parts[1]) return text;
  return "\\frac{" + *above + "}{" + *below + "}";
}

std::optional<std::string> canonical_answer(std::string_view answer) {
  std::string text = replace_all(answer, "\n", "");
  const auto remove = [&](std::string_view part) { text = replace_all(text, part, ""); };
  remove("\\!");
  text = replace_all(text, "\\\\", "\\");
  text = replace_all(text, "tfrac", "frac");
  text = replace_all(text, "dfrac", "frac");
  for (const std::string_view part : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"}) remove(part);

  // What follows "\text{ " is taken for a unit.
  const std::vector<std::string_view> before_units = split_at(text, "\\text{ ");
  if (before_units.size() > 2) return std::nullopt;
  text = std::string(before_units[0]);

  remove("\\%");
  text = replace_all(text, " .", " 0.");
  text = replace_all(text, "{.", "{0.");
  if (text.empty()) return text;
  if (text[0] == '.') text = "0" + text;

  // "x = 5" is 5.
  const std::vector<std::string_view> sides = split_at(text, "=");
  if (sides.size() == 2 && count_code_points(sides[0]) <= 2) text = std::string(sides[1]);

  std::optional<std::string> fixed = with_braced_roots(text);
  if (fixed) fixed = with_braced_fractions(replace_all(*fixed, " ", ""));
  if (!fixed) return std::nullopt;
  if (*fixed == "0.5") fixed = "\\frac{1}{2}";
  return with_slash_as_fraction(*fixed);
}

}  // namespace

std::optional<std::string> last_boxed(std::string_view text) {
  constexpr std::string_view kSpaced = "\\boxed ";
  if (const std::size_t found = text.rfind(kSpaced); found != std::string_view::npos) {
    const std::string_view rest = text.substr(found + kSpaced.size());
    return std::string(rest.substr(0, rest.find('$')));
  }
  constexpr std::string_view kBraced = "\\boxed{";
  const std::size_t found = text.rfind("\\boxed");
  if (found == std::string_view::npos || !text.substr(found).starts_with(kBraced)) return std::nullopt;
  const std::string_view content = text.substr(found + kBraced.size());
  std::size_t open = 1;
  for (std::size_t i = 0; i < content.size(); ++i) {
    if (content[i] == '{') ++open;
    if (content[i] == '}' && --open == 0) return std::string(content.substr(0, i));
  }
  return std::nullopt;
}

std::string between_dollars(std::string_view text) {
  const std::size_t first = text.find('$');
  const std::size_t last = text.rfind('$');
  return std::string(first == last ? text : text.substr(first + 1, last - first - 1));
}

bool is_math_equivalent(std::string_view a, std::string_view b) {
  const std::optional<std::string> canonical_a = canonical_answer(a);
  const std::optional<std::string> canonical_b = canonical_answer(b);
  return canonical_a && canonical_b ? *canonical_a == *canonical_b : a == b;
}

double math_equivalence(const MetricInput& input) {
  return best_of(input, is_math_equivalent);
}

double hendrycks_math(const MetricInput& input) {
  const std::string answer = between_dollars(input.prediction);
  return math_equivalence({.prediction = answer, .references = input.references, .classes = {}});
}

}  // namespace kvasir::metrics
