#include "retention/held/expected_attention.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "retention/held/held_scored.h"

namespace kvasir {
namespace {

// The logit of a key k by one query head is mean . k + k . spread k.
struct ExpectedHead {
  std::vector<float> mean;    // [head_dim]
  std::vector<float> spread;  // [head_dim][head_dim], symmetric
};

// Returns the mean turn of each pair over the positions [begin, begin + future): cosines, then sines.
std::vector<double> mean_turns(const QueryTurn& turn, std::int64_t begin, std::int64_t future) {
  const std::size_t pairs = turn.frequencies.size();
  std::vector<double> turns(2 * pairs);
  const auto count = static_cast<double>(future);
  for (std::size_t i = 0; i < pairs; ++i) {
    // The sum of turns in equal steps is the turn in their middle, shortened.
    const double step = turn.frequencies[i], half = std::sin(step / 2);
    const double length = half == 0 ? 1 : std::sin(count * step / 2) / (count * half);
    const double middle = (static_cast<double>(begin) + (count - 1) / 2) * step;
    turns[i] = length * std::cos(middle);
    turns[pairs + i] = length * std::sin(middle);
  }
  return turns;
}

// Turns the pairs of a vector whose elements are `step` apart.
void turn_pairs(std::span<const double> turns, double magnitude, double* vector, std::size_t step) {
  const std::size_t pairs = turns.size() / 2;
  for (std::size_t i = 0; i < pairs; ++i) {
    double& a = vector[2 * i * step];
    double& b = vector[(2 * i + 1) * step];
    const double x = a, y = b, cosine = turns[i] * magnitude, sine = turns[pairs + i] * magnitude;
    a = cosine * x - sine * y;
    b = sine * x + cosine * y;
  }
}

// Returns the heads of a table for queries at `next` and the positions behind it.
std::vector<ExpectedHead> heads_at(const ExpectedAttention& of, int table, std::int64_t next) {
  const auto dim = static_cast<std::size_t>(of.layout.head_dim), heads = static_cast<std::size_t>(of.layout.heads);
  const QueryTurn turn = turn_of(of.layout, table / of.layout.per_layer);
  const std::vector<double> turns = mean_turns(turn, next, of.future);
  const double scale = turn.scale;
  std::vector<ExpectedHead> made(heads);
  for (int h = 0; h < of.layout.heads; ++h) {
    ExpectedHead& head = made[static_cast<std::size_t>(h)];
    auto [mean, spread] = of.queries.moments(table, h);
    turn_pairs(turns, turn.magnitude, mean.data(), 1);
    for (std::size_t i = 0; i < dim; ++i) turn_pairs(turns, turn.magnitude, &spread[i * dim], 1);
    for (std::size_t j = 0; j < dim; ++j) turn_pairs(turns, turn.magnitude, &spread[j], dim);
    for (const double x : mean) head.mean.push_back(static_cast<float>(x * scale));
    if (!of.spread) continue;
    for (const double x : spread) head.spread.push_back(static_cast<float>(x * scale * scale / 2));
  }
  return made;
}

double expected_logit(const ExpectedHead& head, std::span<const float> key, std::vector<float>& product) {
  const std::size_t dim = key.size();
  product.assign(head.mean.begin(), head.mean.end());
  // By columns: vector operations whose sums have one order.
  for (std::size_t j = 0; j < dim && !head.spread.empty(); ++j) {
    const float x = key[j];
    const float* const column = &head.spread[j * dim];
    for (std::size_t i = 0; i < dim; ++i) product[i] += x * column[i];
  }
  double sum = 0;
  for (std::size_t i = 0; i < dim; ++i) sum += double{product[i]} * double{key[i]};
  return sum;
}

// Returns the logits [head][token].
std::vector<double> logits_of(const ExpectedAttention& of, int table, HeldKv& kv, std::span<const double> biases) {
  const auto tokens = static_cast<std::size_t>(kv.tokens()), heads = static_cast<std::size_t>(of.layout.heads);
  const std::int64_t newest = newest_position(kv);
  std::vector<double> logits(heads * tokens);
  std::vector<ExpectedHead> of_frame;
  std::optional<std::int64_t> origin;
  std::vector<float> product;
  kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
    if (origin != block.origin) of_frame = heads_at(of, table, newest + 1 - block.origin);
    origin = block.origin;
    for (int row = 0; row < block.kv.rows; ++row)
      for (std::size_t h = 0; h < heads; ++h) {
        const auto token = static_cast<std::size_t>(block.first + row);
        double& own = logits[h * tokens + token];
        own = expected_logit(of_frame[h], block.kv.key(0, row), product);
        if (!biases.empty()) own += biases[token];
      }
  });
  return logits;
}

}  // namespace

void ExpectedAttention::weigh(int table, HeldKv& kv, std::size_t first, std::span<const double> biases,
                              std::span<double> weights) const {
  const auto heads = static_cast<std::size_t>(layout.heads);
  std::vector<double> logits = logits_of(*this, table, kv, biases);
  std::ranges::fill(weights, 0.0);
  for (std::size_t h = 0; h < heads; ++h) {
    const auto own = std::span(logits).subspan(h * weights.size(), weights.size()).subspan(first);
    const double most = *std::ranges::max_element(own);
    double sum = 0;
    for (double& x : own) {
      x = std::exp(x - most);
      sum += x;
    }
    for (std::size_t i = 0; i < own.size(); ++i) weights[first + i] += own[i] / sum / static_cast<double>(heads);
  }
}

}  // namespace kvasir
