// ROUGE of the two Python packages, which differ in tokens, in what they count and in how they compare sentences.
//
// `rouge` 1.0.1: sentences end at ".", words are what white space separates, and each distinct word counts once.
// `rouge-score` 0.1.2 without stemming: tokens are runs of [a-z0-9] in the lower-case text, and repetitions count.
// ROUGE-L and ROUGE-Lsum read the first kMostRougeWords words of each text, which bounds their quadratic time: two
// texts of that length take under a second, ones made of thousands of different short sentences a few seconds.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace kvasir::metrics {

inline constexpr std::size_t kMostRougeWords = 16384;

// The F-measure of rouge.Rouge().get_scores()["rouge-l"]; 0 where it raises because a text has no sentence.
double rouge_package_l(std::string_view prediction, std::string_view reference);

// F-measures of rouge_score.rouge_scorer.RougeScorer. n: 1 or 2.
double rouge_n(std::string_view prediction, std::string_view reference, int n);
double rouge_l(std::string_view prediction, std::string_view reference);
// Sentences are lines.
double rouge_l_sum(std::string_view prediction, std::string_view reference);

}  // namespace kvasir::metrics
