#include "tasks/metrics/rouge.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tasks/metrics/lcs.h"
#include "tasks/metrics/python_text.h"

namespace kvasir::metrics {
namespace {

using Sentence = std::vector<std::int32_t>;
using Sentences = std::vector<Sentence>;

// Numbers distinct tokens from 0. A map, not a hash table: its time does not depend on who chose the tokens.
class TokenNumbers {
 public:
  std::int32_t of(std::string_view token) {
    const auto found = numbers_.find(token);
    if (found != numbers_.end()) return found->second;
    const auto number = static_cast<std::int32_t>(numbers_.size());
    numbers_.emplace(token, number);
    return number;
  }
  std::size_t size() const { return numbers_.size(); }

 private:
  std::map<std::string, std::int32_t, std::less<>> numbers_;
};

// Sentences as the package `rouge` reads them. One of white space alone is a sentence of one empty word.
Sentences dotted_sentences(std::string_view text, TokenNumbers* numbers) {
  Sentences sentences;
  std::size_t words = 0;
  for (const std::string_view part : split_at(text, ".")) {
    if (part.empty()) continue;
    std::vector<std::string_view> tokens = split_words(part);
    if (tokens.empty()) tokens.emplace_back();
    Sentence& sentence = sentences.emplace_back();
    for (const std::string_view token : tokens) {
      if (words++ == kMostRougeWords) return sentences;
      sentence.push_back(numbers->of(token));
    }
  }
  return sentences;
}

std::size_t count_distinct(const Sentences& sentences) {
  std::set<std::int32_t> words;
  for (const Sentence& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return words.size();
}

Sentence alphanumeric_tokens(std::string_view text, TokenNumbers* numbers, std::size_t most) {
  const std::string lowered = lower(text);
  const auto wanted = [](char byte) { return (byte >= 'a' && byte <= 'z') || is_ascii_digit(byte); };
  Sentence tokens;
  for (auto at = lowered.begin();;) {
    const auto begin = std::find_if(at, lowered.end(), wanted);
    if (begin == lowered.end() || tokens.size() == most) return tokens;
    at = std::find_if_not(begin, lowered.end(), wanted);
    tokens.push_back(numbers->of({begin, at}));
  }
}

Sentences line_sentences(std::string_view text, TokenNumbers* numbers) {
  Sentences sentences;
  std::size_t words = 0;
  for (const std::string_view line : split_at(text, "\n")) {
    sentences.push_back(alphanumeric_tokens(line, numbers, kMostRougeWords - words));
    words += sentences.back().size();
    if (words == kMostRougeWords) break;
  }
  return sentences;
}

std::size_t count_words(const Sentences& sentences) {
  std::size_t words = 0;
  for (const Sentence& sentence : sentences) words += sentence.size();
  return words;
}

// Finds the distinct sentences of one text that share a token with a given one.
class SentenceIndex {
 public:
  SentenceIndex(Sentences sentences, std::size_t tokens) : sentences_(std::move(sentences)), with_token_(tokens) {
    std::sort(sentences_.begin(), sentences_.end());
    sentences_.erase(std::unique(sentences_.begin(), sentences_.end()), sentences_.end());
    for (std::size_t i = 0; i < sentences_.size(); ++i) {
      for (const std::int32_t token : sentences_[i]) {
        std::vector<std::size_t>& list = with_token_[static_cast<std::size_t>(token)];
        if (list.empty() || list.back() != i) list.push_back(i);
      }
    }
    seen_at_.assign(sentences_.size(), 0);
  }

  // Returns those that share one of the tokens that satisfy `wanted`. Valid until the next call.
  template <class Wanted>
  const std::vector<const Sentence*>& sharing(const Sentence& sentence, Wanted wanted) {
    found_.clear();
    ++calls_;
    for (const std::int32_t token : sentence) {
      if (!wanted(token)) continue;
      for (const std::size_t i : with_token_[static_cast<std::size_t>(token)]) {
        if (std::exchange(seen_at_[i], calls_) != calls_) found_.push_back(&sentences_[i]);
      }
    }
    return found_;
  }

 private:
  Sentences sentences_;
  std::vector<std::vector<std::size_t>> with_token_;
  std::vector<std::size_t> seen_at_;
  std::size_t calls_ = 0;
  std::vector<const Sentence*> found_;
};

double f_measure(std::size_t hits, std::size_t predicted, std::size_t expected) {
  if (hits == 0) return 0;
  const double precision = static_cast<double>(hits) / static_cast<double>(predicted);
  const double recall = static_cast<double>(hits) / static_cast<double>(expected);
  return 2 * precision * recall / (precision + recall);
}

std::vector<std::uint64_t> n_grams(const Sentence& tokens, int n) {
  std::vector<std::uint64_t> grams;
  for (std::size_t i = static_cast<std::size_t>(n) - 1; i < tokens.size(); ++i) {
    const auto last = static_cast<std::uint64_t>(tokens[i]);
    grams.push_back(n == 1 ? last : static_cast<std::uint64_t>(tokens[i - 1]) << 32 | last);
  }
  std::sort(grams.begin(), grams.end());
  return grams;
}

}  // namespace

double rouge_package_l(std::string_view prediction, std::string_view reference) {
  TokenNumbers numbers;
  Sentences predicted = dotted_sentences(prediction, &numbers);
  const Sentences expected = dotted_sentences(reference, &numbers);
  if (predicted.empty() || expected.empty()) return 0;
  const auto predicted_words = static_cast<double>(count_distinct(predicted));
  const auto expected_words = static_cast<double>(count_distinct(expected));

  // The score depends only on the union of the words that alignments match, so pairs that can add none are skipped.
  SentenceIndex index(std::move(predicted), numbers.size());
  LcsAligner aligner;
  std::vector<char> matched(numbers.size(), 0);
  std::size_t hits = 0;
  for (const Sentence& sentence : std::set<Sentence>(expected.begin(), expected.end())) {
    const auto unmatched = [&](std::int32_t token) { return matched[static_cast<std::size_t>(token)] == 0; };
    for (const Sentence* candidate : index.sharing(sentence, unmatched)) {
      for (const LcsAligner::Pair pair : aligner.align(sentence, *candidate)) {
        if (std::exchange(matched[static_cast<std::size_t>(sentence[pair.x])], 1) == 0) ++hits;
      }
    }
  }
  const double precision = static_cast<double>(hits) / predicted_words;
  const double recall = static_cast<double>(hits) / expected_words;
  return 2.0 * (precision * recall / (precision + recall + 1e-8));
}

double rouge_n(std::string_view prediction, std::string_view reference, int n) {
  TokenNumbers numbers;
  const std::vector<std::uint64_t> predicted = n_grams(alphanumeric_tokens(prediction, &numbers, SIZE_MAX), n);
  const std::vector<std::uint64_t> expected = n_grams(alphanumeric_tokens(reference, &numbers, SIZE_MAX), n);
  std::vector<std::uint64_t> common;
  std::set_intersection(predicted.begin(), predicted.end(), expected.begin(), expected.end(),
                        std::back_inserter(common));
  return f_measure(common.size(), predicted.size(), expected.size());
}

double rouge_l(std::string_view prediction, std::string_view reference) {
  TokenNumbers numbers;
  const Sentence predicted = alphanumeric_tokens(prediction, &numbers, kMostRougeWords);
  const Sentence expected = alphanumeric_tokens(reference, &numbers, kMostRougeWords);
  return f_measure(LcsAligner().align(predicted, expected).size(), predicted.size(), expected.size());
}

double rouge_l_sum(std::string_view prediction, std::string_view reference) {
  TokenNumbers numbers;
  Sentences predicted = line_sentences(prediction, &numbers);
  const Sentences expected = line_sentences(reference, &numbers);
  const std::size_t predicted_words = count_words(predicted);

  // A token counts at most as often as either text has it.
  std::vector<std::size_t> left_predicted(numbers.size(), 0);
  std::vector<std::size_t> left_expected(numbers.size(), 0);
  const auto count = [](const Sentences& sentences, std::vector<std::size_t>* counts) {
    for (const Sentence& sentence : sentences) {
      for (const std::int32_t token : sentence) ++(*counts)[static_cast<std::size_t>(token)];
    }
  };
  count(predicted, &left_predicted);
  count(expected, &left_expected);

  SentenceIndex index(std::move(predicted), numbers.size());
  LcsAligner aligner;
  std::size_t hits = 0;
  for (const Sentence& sentence : expected) {
    std::vector<char> matched(sentence.size(), 0);
    std::size_t missing = sentence.size();
    for (const Sentence* candidate : index.sharing(sentence, [](std::int32_t) { return true; })) {
      if (missing == 0) break;
      for (const LcsAligner::Pair pair : aligner.align(*candidate, sentence)) {
        if (std::exchange(matched[pair.y], 1) == 0) --missing;
      }
    }
    for (std::size_t i = 0; i < sentence.size(); ++i) {
      const auto token = static_cast<std::size_t>(sentence[i]);
      if (matched[i] == 0 || left_predicted[token] == 0 || left_expected[token] == 0) continue;
      ++hits;
      --left_predicted[token];
      --left_expected[token];
    }
  }
  return f_measure(hits, predicted_words, count_words(expected));
}

}  // namespace kvasir::metrics
