#include "retention/layer_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr double kHighest = std::numeric_limits<double>::infinity();

double rank_of(double score) {
  return std::isnan(score) ? kHighest : score;
}

struct Token {
  double score = 0;
  std::int64_t index = 0;
  int head = 0;

  static bool higher(const Token& a, const Token& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.index != b.index ? a.index > b.index : a.head < b.head;
  }
};

// Moves the `count` highest of the tokens to the front.
void select_highest(std::span<Token> tokens, std::int64_t count) {
  if (count > 0 && count < std::ssize(tokens))
    std::nth_element(tokens.begin(), tokens.begin() + count, tokens.end(), Token::higher);
}

// Returns the lower one of the two in the middle, if the number of values is even.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the entropy of a chunk's scores as a share of the most it can be; 0 for one token.
double entropy(std::span<const double> scores) {
  if (scores.size() < 2) return 0;
  constexpr double kEpsilon = 1e-8;
  const double least = std::min(0.0, *std::ranges::min_element(scores));
  double sum = kEpsilon;
  for (const double score : scores) sum += score - least;
  double bits = 0;
  for (const double score : scores) {
    const double share = (score - least) / sum;
    bits -= share * std::log(share + kEpsilon);
  }
  if (!std::isfinite(bits)) return 1;
  return std::clamp(bits / std::log(static_cast<double>(scores.size())), 0.0, 1.0);
}

}  // namespace

std::vector<std::int64_t> share_among_heads(HeadScores scores, std::int64_t total, std::int64_t floor,
                                            std::int64_t protect) {
  std::vector<std::int64_t> shares(scores.size());
  std::vector<Token> contested;
  for (std::size_t head = 0; head < scores.size(); ++head) {
    const auto count = std::ssize(scores[head]);
    const std::int64_t certain = std::min(std::max(floor, protect), count);
    std::vector<Token> tokens;
    tokens.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      tokens.push_back(
          {i < protect ? kHighest : rank_of(scores[head][static_cast<std::size_t>(i)]), i, static_cast<int>(head)});
    select_highest(tokens, certain);
    contested.insert(contested.end(), tokens.begin() + certain, tokens.end());
    shares[head] = certain;
    total -= certain;
  }
  KVASIR_CHECK(total >= 0 && total <= std::ssize(contested));
  select_highest(contested, total);
  for (std::int64_t i = 0; i < total; ++i)
    ++shares[static_cast<std::size_t>(contested[static_cast<std::size_t>(i)].head)];
  return shares;
}

std::vector<bool> choose_chunks(std::span<const double> scores, const ChunkChoice& choice) {
  const auto size = std::ssize(scores);
  std::vector<bool> stays(scores.size(), size <= choice.count);
  if (size <= choice.count) return stays;
  std::int64_t left = choice.count;
  // Keeps the `count` highest tokens of [first, last) that do not stay yet.
  const auto keep_highest = [&](std::int64_t first, std::int64_t last, std::int64_t count) {
    std::vector<Token> tokens;
    for (std::int64_t i = first; i < last; ++i)
      if (!stays[static_cast<std::size_t>(i)]) tokens.push_back({rank_of(scores[static_cast<std::size_t>(i)]), i});
    count = std::min({count, left, std::ssize(tokens)});
    select_highest(tokens, count);
    for (std::int64_t i = 0; i < count; ++i)
      stays[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)].index)] = true;
    left -= count;
  };
  keep_highest(0, std::min(choice.protect, size), choice.protect);

  std::vector<Token> chunks;
  std::vector<double> means, entropies;
  for (std::int64_t first = 0; first < size; first += choice.chunk) {
    const auto own =
        scores.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(choice.chunk, size - first)));
    means.push_back(rank_of(std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(own.size())));
    entropies.push_back(choice.gate ? entropy(own) : 0);
    chunks.push_back({means.back(), std::ssize(chunks)});
  }
  std::ranges::sort(chunks, Token::higher);
  const double median = lower_median(means), spread = lower_median(entropies);
  constexpr std::int64_t kSpiky = 4;
  for (const Token& chunk : chunks) {
    const bool spiky =
        choice.gate && chunk.score >= median && entropies[static_cast<std::size_t>(chunk.index)] < spread;
    const std::int64_t first = chunk.index * choice.chunk;
    keep_highest(first, std::min(first + choice.chunk, size), spiky ? kSpiky : choice.chunk);
  }
  keep_highest(0, size, left);
  return stays;
}

}  // namespace kvasir
