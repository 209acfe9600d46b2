#include "tasks/generated/filler.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "text/utf8.h"

namespace kvasir::generated {
namespace {

constexpr std::size_t kLongestSentence = 200;  // in words

constexpr std::string_view kNoise[] = {"The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
                                       "There and back again."};

bool closes_sentence(std::string_view word) {
  while (!word.empty()) {
    const char c = word.back();
    if (c == '.' || c == '!' || c == '?') return true;
    if (c == '"' || c == '\'' || c == ')') {
      word.remove_suffix(1);
    } else if (word.ends_with("\u201D") || word.ends_with("\u2019")) {
      word.remove_suffix(3);
    } else {
      return false;
    }
  }
  return false;
}

void sort_by_depth(std::vector<HiddenLine>* lines) {
  std::ranges::stable_sort(*lines, {}, &HiddenLine::depth);
}

}  // namespace

Result<Filler> Filler::create(std::string_view text) {
  if (const Status valid = check_utf8(text, 0, "the filler"); !valid.ok()) return Status(valid).about({"filler"});
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  Filler filler;
  std::size_t since_end = 0;
  for (std::size_t at = text.find_first_not_of(kSpace); at < text.size(); at = text.find_first_not_of(kSpace, at)) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const bool ends = ++since_end == kLongestSentence || closes_sentence(word);
    if (ends) since_end = 0;
    filler.words_.emplace_back(word);
    filler.ends_sentence_.push_back(ends);
    at = end;
  }
  if (filler.words_.size() < kLeastWords)
    return invalid_argument("the filler has {} words; give a text of {} or more, separated by white space",
                            filler.words_.size(), kLeastWords)
        .about({"filler"});
  filler.ends_sentence_.back() = true;
  return filler;
}

std::int64_t Filler::draw_begin(Draws* draws) const {
  std::int64_t begin = draws->below(words());
  while (begin > 0 && !ends_sentence(begin - 1)) --begin;
  return begin;
}

// Returns the number of words before the place.
std::int64_t Filler::nearest_end(std::int64_t begin, std::int64_t count, double depth) const {
  const std::int64_t wanted = std::llround(depth * static_cast<double>(count));
  const auto fits = [&](std::int64_t at) { return at <= 0 || at >= count || ends_sentence(begin + at - 1); };
  std::int64_t away = 0;
  while (!fits(wanted - away) && !fits(wanted + away)) ++away;
  return std::clamp<std::int64_t>(fits(wanted - away) ? wanted - away : wanted + away, 0, count);
}

std::string Filler::with_lines(std::int64_t begin, std::int64_t count, std::vector<HiddenLine> lines) const {
  sort_by_depth(&lines);
  std::string text;
  const auto append = [&](std::string_view what) {
    if (!text.empty() && text.back() != '\n' && !what.starts_with('\n')) text += ' ';
    text += what;
  };
  std::int64_t at = 0;
  const auto append_words = [&](std::int64_t end) {
    for (; at < end; ++at) append(word(begin + at));
  };
  for (const HiddenLine& line : lines) {
    append_words(nearest_end(begin, count, line.depth));
    append(line.text);
  }
  append_words(count);
  return text;
}

std::vector<std::string> noise_lines(std::int64_t sentences) {
  constexpr auto kPerLine = static_cast<std::int64_t>(std::size(kNoise));
  std::vector<std::string> lines;
  lines.reserve(static_cast<std::size_t>(sentences / kPerLine + 1));
  for (std::int64_t i = 0; i < sentences; ++i) {
    if (i % kPerLine == 0) {
      lines.emplace_back();
    } else {
      lines.back() += ' ';
    }
    lines.back() += kNoise[i % kPerLine];
  }
  return lines;
}

std::string lines_with(const std::vector<std::string>& lines, std::vector<HiddenLine> hidden) {
  sort_by_depth(&hidden);
  std::string text;
  const auto append = [&](std::string_view line) {
    if (!text.empty()) text += '\n';
    text += line;
  };
  std::size_t at = 0;
  for (const HiddenLine& line : hidden) {
    const auto place = static_cast<std::size_t>(std::llround(line.depth * static_cast<double>(lines.size())));
    for (; at < place; ++at) append(lines[at]);
    append(line.text);
  }
  for (; at < lines.size(); ++at) append(lines[at]);
  return text;
}

}  // namespace kvasir::generated
