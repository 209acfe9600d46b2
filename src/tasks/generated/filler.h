// Text to hide facts in, cut at words and repeated as often as needed.
// Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "tasks/generated/draws.h"

namespace kvasir::generated {

// A line to hide, and its place: 0 is the start of the text, 1 its end.
struct HiddenLine {
  double depth = 0;
  std::string text;
};

class Filler {
 public:
  static constexpr std::size_t kLeastWords = 64;

  Filler() = default;  // holds nothing; for tasks that need no filler

  // Splits `text` at white space. Errors: kInvalidArgument for invalid UTF-8 and for fewer than kLeastWords words.
  static Result<Filler> create(std::string_view text);

  // Returns `count` words from word `begin` on, with the lines among them, joined by single spaces. Each line is put at
  // the end of a sentence, at the one nearest to depth * count words, or at an end of the text. A sentence without an
  // end counts as ended after 200 words.
  std::string with_lines(std::int64_t begin, std::int64_t count, std::vector<HiddenLine> lines) const;

  // Draws a word that starts a sentence.
  std::int64_t draw_begin(Draws* draws) const;

 private:
  std::int64_t words() const { return static_cast<std::int64_t>(words_.size()); }
  const std::string& word(std::int64_t at) const { return words_[static_cast<std::size_t>(at % words())]; }
  bool ends_sentence(std::int64_t at) const { return ends_sentence_[static_cast<std::size_t>(at % words())]; }
  std::int64_t nearest_end(std::int64_t begin, std::int64_t count, double depth) const;

  std::vector<std::string> words_;
  std::vector<bool> ends_sentence_;  // per word
};

// The haystack "noise" of RULER and of passkey: `sentences` sentences, five to a line.
std::vector<std::string> noise_lines(std::int64_t sentences);

// Puts each hidden line before line round(depth * number of lines), and joins all with newlines.
std::string lines_with(const std::vector<std::string>& lines, std::vector<HiddenLine> hidden);

}  // namespace kvasir::generated
