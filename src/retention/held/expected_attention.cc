#include "retention/held/expected_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "backend/wide_vectors.h"
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
    head.mean.reserve(dim);
    for (const double x : mean) head.mean.push_back(static_cast<float>(x * scale));
    if (!of.spread) continue;
    head.spread.reserve(spread.size());
    for (const double x : spread) head.spread.push_back(static_cast<float>(x * scale * scale / 2));
  }
  return made;
}

constexpr std::size_t kKeys = 4;  // whose logits are found together

// Adds up the products of kKeys keys ([kKeys][dim]) with the columns of `spread`, from `mean` on, in order of the
// columns: to [kKeys][dim]. Each element has a sum of its own, so its bits do not depend on the vectors, of kBytes
// bytes.
template <std::size_t kBytes>
[[gnu::always_inline]] inline void add_columns_by(const float* __restrict keys, const float* mean,
                                                  const float* __restrict spread, std::size_t dim,
                                                  float* __restrict to) {
  typedef float Lanes [[gnu::vector_size(kBytes)]];
  constexpr std::size_t kLanes = kBytes / sizeof(float);
  constexpr std::size_t kVectors = 16 / kLanes;  // of 16 columns
  std::size_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    Lanes sum[kKeys][kVectors];
    // Vectors are copied one at a time: the compiler keeps an array in memory that is copied whole.
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) __builtin_memcpy(&sum[k][v], mean + i + v * kLanes, sizeof(Lanes));
    for (std::size_t j = 0; j < dim; ++j) {
      Lanes column[kVectors];
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v)
        __builtin_memcpy(&column[v], spread + j * dim + i + v * kLanes, sizeof(Lanes));
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) sum[k][v] += keys[k * dim + j] * column[v];
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kKeys; ++k)
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v)
        __builtin_memcpy(to + k * dim + i + v * kLanes, &sum[k][v], sizeof(Lanes));
  }
  for (std::size_t k = 0; k < kKeys; ++k)
    for (std::size_t left = i; left < dim; ++left) {
      float sum = mean[left];
      for (std::size_t j = 0; j < dim; ++j) sum += keys[k * dim + j] * spread[j * dim + left];
      to[k * dim + left] = sum;
    }
}

// Vectors that are wider than the processor's live on the stack: each width has a function of its own.
KVASIR_AVX512_VECTORS void add_columns_512(const float* keys, const float* mean, const float* spread, std::size_t dim,
                                           float* to) {
  add_columns_by<64>(keys, mean, spread, dim, to);
}
KVASIR_WIDE_VECTORS void add_columns_256(const float* keys, const float* mean, const float* spread, std::size_t dim,
                                         float* to) {
  add_columns_by<32>(keys, mean, spread, dim, to);
}

void add_columns(const float* keys, const float* mean, const float* spread, std::size_t dim, float* to) {
  static const auto add = has_avx512_vectors() ? add_columns_512 : add_columns_256;
  add(keys, mean, spread, dim, to);
}

// Finds the logits of kKeys keys ([kKeys][dim]) by one query head.
class ExpectedLogits {
 public:
  explicit ExpectedLogits(std::size_t dim) : dim_(dim), products_(kKeys * dim) {}

  std::array<double, kKeys> of(const ExpectedHead& head, const float* keys) {
    if (head.spread.empty()) {
      for (std::size_t k = 0; k < kKeys; ++k) std::ranges::copy(head.mean, products_.begin() + offset(k));
    } else {
      add_columns(keys, head.mean.data(), head.spread.data(), dim_, products_.data());
    }
    std::array<double, kKeys> sums{};
    for (std::size_t i = 0; i < dim_; ++i)
      for (std::size_t k = 0; k < kKeys; ++k) sums[k] += double{products_[k * dim_ + i]} * double{keys[k * dim_ + i]};
    return sums;
  }

 private:
  std::ptrdiff_t offset(std::size_t key) const { return static_cast<std::ptrdiff_t>(key * dim_); }

  std::size_t dim_;
  std::vector<float> products_;  // [kKeys][dim]
};

// Returns the logits [head][token].
std::vector<double> logits_of(const ExpectedAttention& of, int table, HeldKv& kv, std::span<const double> biases) {
  const auto tokens = static_cast<std::size_t>(kv.tokens()), heads = static_cast<std::size_t>(of.layout.heads);
  const std::int64_t newest = newest_position(kv);
  std::vector<double> logits(heads * tokens);
  std::vector<ExpectedHead> of_frame;
  std::optional<std::int64_t> origin;
  const auto dim = static_cast<std::size_t>(of.layout.head_dim);
  ExpectedLogits expected(dim);
  std::vector<float> keys(kKeys * dim);
  kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
    if (origin != block.origin) {
      of_frame = {};  // before those of the next frame are made
      of_frame = heads_at(of, table, newest + 1 - block.origin);
    }
    origin = block.origin;
    const auto rows = static_cast<std::size_t>(block.kv.rows), first = static_cast<std::size_t>(block.first);
    // Head by head, whose products stay in the nearest cache meanwhile.
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t row = 0; row < rows; row += kKeys) {
        const std::size_t count = std::min(kKeys, rows - row);
        const float* some = &block.kv.keys[row * dim];
        if (count < kKeys) {
          std::ranges::copy(block.kv.keys.subspan(row * dim, count * dim), keys.begin());  // the others are unused
          some = keys.data();
        }
        const std::array<double, kKeys> sums = expected.of(of_frame[h], some);
        for (std::size_t k = 0; k < count; ++k) {
          double& own = logits[h * tokens + first + row + k];
          own = sums[k];
          if (!biases.empty()) own += biases[first + row + k];
        }
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
