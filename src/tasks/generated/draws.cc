#include "tasks/generated/draws.h"

#include <algorithm>
#include <numeric>

#include "tasks/generated/words.h"

namespace kvasir::generated {
namespace {

std::int64_t count_of(std::span<const std::string_view> words) {
  return static_cast<std::int64_t>(words.size());
}

}  // namespace

Draws Draws::of_part(std::uint64_t seed, std::int64_t part) {
  // Two rounds: states of one SplitMix that are close together would overlap.
  SplitMix mixed(seed ^ SplitMix(static_cast<std::uint64_t>(part)).next());
  return Draws(mixed.next());
}

std::string Draws::digits(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>('0' + below(10));
  return text;
}

std::string Draws::number(int digits_in_it) {
  std::string text(1, static_cast<char>('1' + below(9)));
  return text + digits(digits_in_it - 1);
}

std::string Draws::letters(int count, char first) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(first + below(26));
  return text;
}

std::string Draws::uuid() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 32; ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) text += '-';
    if (i == 12) {
      text += '4';  // the version
    } else if (i == 16) {
      text += kHex[static_cast<std::size_t>(8 + below(4))];  // the variant
    } else {
      text += kHex[static_cast<std::size_t>(below(16))];
    }
  }
  return text;
}

std::string Draws::word_pair() {
  std::string text(pick(adjectives()));
  text += '-';
  text += pick(nouns());
  return text;
}

std::vector<std::int64_t> Draws::distinct(std::int64_t of, std::size_t count) {
  std::vector<std::int64_t> chosen;
  while (chosen.size() < count) {
    const std::int64_t number = below(of);
    if (std::ranges::find(chosen, number) == chosen.end()) chosen.push_back(number);
  }
  return chosen;
}

WordSequence::WordSequence(Draws* draws) {
  const std::int64_t pairs = count_of(adjectives()) * count_of(nouns());
  pairs_ = permutation(draws, pairs);
  triples_ = permutation(draws, pairs * count_of(adjectives()));
}

WordSequence::Permutation WordSequence::permutation(Draws* draws, std::int64_t size) {
  Permutation made{size, 1, draws->below(size)};
  do made.multiplier = draws->between(size / 4, size - 1);
  while (std::gcd(made.multiplier, size) != 1);
  return made;
}

std::string WordSequence::at(std::int64_t index) const {
  const std::int64_t adjective_count = count_of(adjectives());
  const bool pair = index < pairs_.size;
  std::int64_t code = pair ? pairs_.at(index) : triples_.at(index - pairs_.size);
  std::string text;
  for (int i = pair ? 1 : 2; i > 0; --i, code /= adjective_count) {
    text += adjectives()[static_cast<std::size_t>(code % adjective_count)];
    text += '-';
  }
  return text += nouns()[static_cast<std::size_t>(code)];
}

}  // namespace kvasir::generated
