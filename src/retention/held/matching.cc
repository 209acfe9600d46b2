#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "backend/wide_vectors.h"
#include "base/status.h"
#include "retention/held/expected_attention.h"
#include "retention/held/summed_queries.h"

namespace kvasir {
namespace {

constexpr PolicyOption kMatchingOptions[] = {
    kHeldBudgetOption,
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"recent", "32", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"fit", "output", "output, mass or off",
     "what biases restore: attention's output and its mass, the mass alone, or nothing, without biases"},
    {"queries", "8", "1 to 256", "reference queries of each query head"},
    {"future", "512", "1 to 2^20", "positions behind the text over which the reference queries are spread"},
    {"every", "256", "0 to 2^40", "while writing, prune when this many tokens are above the budget; 0: never"},
    kPromptOption,
    kPosOption,
    kProtectOption,
};

enum class Fit { kOutput, kMass, kOff };

struct MatchingOptions {
  Fit fit = Fit::kOutput;
  int queries = 8;
  std::int64_t future = 512;
};

// The factors that minimise, over the references r and the kept tokens j,
//   sum_r (1 - sum_j w_j p_rj)^2 + lambda |o_r - sum_j w_j p_rj v_j|^2 + sum_j (c_j + kRidge c) (w_j - 1)^2
// with c_j the curvature of the first two terms in w_j and c the mean of c_j, by coordinate descent within
// [1 / kMostFactor, kMostFactor].
constexpr double kOutputWeight = 4;  // lambda, in units of 1 / the mean |o_r|^2
constexpr double kRidge = 0.01;
constexpr double kMostFactor = 8;
constexpr int kSweeps = 4;
constexpr double kMostBias = 8;  // of a token, over all prunes

// What a table's references give the tokens that it holds.
struct References {
  std::size_t count = 0;
  std::size_t dim = 0;
  std::vector<float> weights;  // [tokens][count]: p
  std::vector<float> outputs;  // [count][dim]: o

  std::span<const float> of(std::size_t token) const { return std::span(weights).subspan(token * count, count); }
};

// to += factor * from
void add_scaled(float factor, std::span<const float> from, std::span<float> to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += factor * from[i];
}

// to += the sum over r, in order, of factors[r] * rows[r]
KVASIR_WIDE_VECTORS void add_rows(const float* __restrict factors, const float* __restrict rows, std::size_t count,
                                  std::size_t dim, float* __restrict to) {
  for (std::size_t r = 0; r < count; ++r)
    for (std::size_t i = 0; i < dim; ++i) to[i] += factors[r] * rows[r * dim + i];
}

// rows[r] += factor * factors[r] * from
KVASIR_WIDE_VECTORS void add_to_rows(float factor, const float* __restrict factors, const float* __restrict from,
                                     std::size_t count, std::size_t dim, float* __restrict rows) {
  for (std::size_t r = 0; r < count; ++r) {
    const float scaled = factor * factors[r];
    for (std::size_t i = 0; i < dim; ++i) rows[r * dim + i] += scaled * from[i];
  }
}

// Returns the lower triangle L with L L^T = the covariance: [dim][dim]. A dimension whose variance is no more than
// rounding of the second moments gets zeros.
std::vector<double> cholesky(const QueryMoments::Moments& moments) {
  const std::vector<double>& a = moments.covariance;
  const std::size_t dim = moments.mean.size();
  double squares = 0;
  for (std::size_t i = 0; i < dim; ++i) squares += a[i * dim + i] + moments.mean[i] * moments.mean[i];
  const double least = std::max(1e-9 * squares / static_cast<double>(dim), 0.0);
  std::vector<double> lower(dim * dim);
  for (std::size_t j = 0; j < dim; ++j) {
    double pivot = a[j * dim + j];
    for (std::size_t k = 0; k < j; ++k) pivot -= lower[j * dim + k] * lower[j * dim + k];
    if (!(pivot > least)) continue;
    const double root = lower[j * dim + j] = std::sqrt(pivot);
    for (std::size_t i = j + 1; i < dim; ++i) {
      double sum = a[i * dim + j];
      for (std::size_t k = 0; k < j; ++k) sum -= lower[i * dim + k] * lower[j * dim + k];
      lower[i * dim + j] = sum / root;
    }
  }
  return lower;
}

// Draws from the normal distribution, by Box and Muller.
double normal(SplitMix& draws) {
  const double length = std::sqrt(-2 * std::log(1 - draws.unit()));
  return length * std::cos(2 * std::numbers::pi * draws.unit());
}

class MatchingPolicy final : public SummedQueriesPolicy, public WeighsSlots {
 public:
  MatchingPolicy(Traits traits, const HeldScoredOptions& held, const MatchingOptions& options)
      : SummedQueriesPolicy(std::move(traits), held), options_(options) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<MatchingPolicy>(*this); }

  bool biases(int table, int, std::span<float> biases) const override {
    if (!has_biases()) return false;
    const std::span<const double> own = list(table).values(kBias).first(biases.size());
    if (std::ranges::all_of(own, [](double bias) { return bias == 0; })) return false;
    std::ranges::transform(own, biases.begin(), [](double bias) { return static_cast<float>(bias); });
    return true;
  }

 private:
  static constexpr int kBias = 1;  // column: a token's bias

  Capabilities capabilities() const override {
    return SummedQueriesPolicy::capabilities().with<WeighsSlots>(options_.fit == Fit::kOff ? nullptr : this);
  }
  // Demoted tokens are read again, and give what they gave: nothing has to make up for them.
  bool has_biases() const { return options_.fit != Fit::kOff && !traits().demotion; }

  // Returns the biases of the tokens that a table holds; empty: there are none.
  std::span<const double> biases_of(int table) const {
    return has_biases() ? list(table).values(kBias) : std::span<const double>();
  }

  bool restore_table(int table, ByteReader& in) override {
    if (!SummedQueriesPolicy::restore_table(table, in)) return false;
    if (options_.fit == Fit::kOff) return true;
    const double most = has_biases() ? kMostBias : 0;
    const auto biases = std::as_const(*this).list(table).values(kBias);
    return std::ranges::all_of(biases.first(static_cast<std::size_t>(list(table).size())),
                               [&](double bias) { return std::abs(bias) <= most; });
  }

  std::size_t references(const TableLayout& layout) const {
    return static_cast<std::size_t>(layout.heads) * static_cast<std::size_t>(options_.queries);
  }

  // Draws the references of a table before rotation: [references][head_dim], head by head.
  std::vector<double> draw(int table) const {
    constexpr std::int64_t kSeed = 1;
    SplitMix draws = draws_of_table(kSeed, table);
    const auto dim = static_cast<std::size_t>(layout().head_dim);
    std::vector<double> drawn, normals(dim);
    drawn.reserve(references(layout()) * dim);
    for (int h = 0; h < layout().heads; ++h) {
      const QueryMoments::Moments moments = queries().moments(table, h);
      const std::vector<double> lower = cholesky(moments);
      for (int q = 0; q < options_.queries; ++q) {
        for (double& x : normals) x = normal(draws);
        for (std::size_t i = 0; i < dim; ++i) {
          double x = moments.mean[i];
          for (std::size_t k = 0; k <= i; ++k) x += lower[i * dim + k] * normals[k];
          drawn.push_back(x);
        }
      }
    }
    return drawn;
  }

  // Sets the references as they meet the keys of a frame, scaled, one after the other at positions from `next` on:
  // [head_dim][references].
  void turn(const std::vector<double>& drawn, int table, std::int64_t next, std::vector<float>& queries) const {
    const QueryTurn turn = turn_of(layout(), table / layout().per_layer);
    const auto dim = static_cast<std::size_t>(layout().head_dim);
    const std::size_t count = drawn.size() / dim, pairs = turn.frequencies.size();
    queries.resize(drawn.size());
    for (std::size_t r = 0; r < count; ++r) {
      const auto number = static_cast<std::int64_t>(r) % options_.queries;
      const auto position = static_cast<double>(next + (2 * number + 1) * options_.future / (2 * options_.queries));
      const double* const query = &drawn[r * dim];
      const auto put = [&](std::size_t i, double x) {
        queries[i * count + r] = static_cast<float>(x * double{turn.scale});
      };
      for (std::size_t p = 0; p < pairs; ++p) {
        const double angle = position * double{turn.frequencies[p]}, magnitude = turn.magnitude;
        const double cosine = std::cos(angle) * magnitude, sine = std::sin(angle) * magnitude;
        put(2 * p, cosine * query[2 * p] - sine * query[2 * p + 1]);
        put(2 * p + 1, sine * query[2 * p] + cosine * query[2 * p + 1]);
      }
      for (std::size_t i = 2 * pairs; i < dim; ++i) put(i, query[i]);
    }
  }

  // Sets the references' weights on all tokens that a table holds: their softmax, biases included.
  void weigh(int table, HeldKv& kv, References& of) const {
    const std::vector<double> drawn = draw(table);
    const std::span<const double> biases = biases_of(table);
    const std::int64_t newest = newest_position(kv);
    std::vector<float> queries, most(of.count, -std::numeric_limits<float>::infinity());
    std::optional<std::int64_t> origin;
    kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
      if (origin != block.origin) turn(drawn, table, newest + 1 - block.origin, queries);
      origin = block.origin;
      for (int row = 0; row < block.kv.rows; ++row) {
        const auto token = static_cast<std::size_t>(block.first + row);
        const auto logits = std::span(of.weights).subspan(token * of.count, of.count);
        std::ranges::fill(logits, static_cast<float>(biases[token]));
        add_rows(block.kv.key(0, row).data(), queries.data(), of.dim, of.count, logits.data());
        for (std::size_t r = 0; r < of.count; ++r) most[r] = std::max(most[r], logits[r]);
      }
    });
    std::vector<double> sums(of.count);
    const std::size_t tokens = of.weights.size() / of.count;
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t r = 0; r < of.count; ++r) {
        float& weight = of.weights[t * of.count + r];
        weight = std::exp(weight - most[r]);
        sums[r] += double{weight};
      }
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t r = 0; r < of.count; ++r)
        of.weights[t * of.count + r] = static_cast<float>(double{of.weights[t * of.count + r]} / sums[r]);
  }

  void score_held(int table, HeldKv& kv, std::span<double> scores, std::int64_t excess) override {
    const std::size_t first = std::min(static_cast<std::size_t>(rule().sinks), scores.size() - 1);
    ExpectedAttention{layout(), queries(), options_.future}.weigh(table, kv, first, biases_of(table), scores);
    References of;
    of.dim = static_cast<std::size_t>(layout().head_dim);
    if (has_biases()) {
      of.count = references(layout());
      of.weights.resize(scores.size() * of.count);
      of.outputs.resize(of.count * of.dim);
      weigh(table, kv, of);
    }
    std::vector<double> norms;
    kv.visit(HeldKv::Sides::kValues, [&](const HeldKv::Block& block) {
      norms.resize(static_cast<std::size_t>(block.kv.rows));
      norms_of(block.kv.values, norms);
      for (int row = 0; row < block.kv.rows; ++row) {
        const auto token = static_cast<std::size_t>(block.first + row);
        const std::span<const float> value = block.kv.value(0, row);
        scores[token] *= norms[static_cast<std::size_t>(row)];
        if (options_.fit == Fit::kOutput)
          add_to_rows(1, of.of(token).data(), value.data(), of.count, of.dim, of.outputs.data());
      }
    });
    if (has_biases()) fit(table, kv, of, staying(scores, excess));
  }

  // Changes the biases of the tokens that stay, so that they alone give the references what all gave. Uses up `of`.
  void fit(int table, HeldKv& kv, References& of, const std::vector<bool>& stays) {
    double square = 0;  // 0 with fit=mass
    for (const float x : of.outputs) square += double{x} * double{x};
    const double lambda = square > 0 ? kOutputWeight * static_cast<double>(of.count) / square : 0;

    // What the kept tokens leave over of the mass and of the outputs.
    std::vector<float> mass(of.count, 1), values;
    std::vector<std::size_t> kept;
    kept.reserve(stays.size());
    for (std::size_t token = 0; token < stays.size(); ++token)
      if (stays[token]) kept.push_back(token);
    values.reserve(kept.size() * of.dim);
    kv.visit(HeldKv::Sides::kValues, [&](const HeldKv::Block& block) {
      for (int row = 0; row < block.kv.rows; ++row) {
        const auto token = static_cast<std::size_t>(block.first + row);
        if (!stays[token]) continue;
        const std::span<const float> weights = of.of(token), value = block.kv.value(0, row);
        values.insert(values.end(), value.begin(), value.end());
        add_scaled(-1, weights, mass);
        if (lambda > 0) add_to_rows(-1, weights.data(), value.data(), of.count, of.dim, of.outputs.data());
      }
    });

    std::vector<double> factors(kept.size(), 1), curvatures(kept.size()), norms(kept.size());
    norms_of(values, norms);
    for (std::size_t j = 0; j < kept.size(); ++j) {
      for (const float weight : of.of(kept[j])) curvatures[j] += double{weight} * double{weight};
      curvatures[j] *= 1 + lambda * norms[j] * norms[j];
    }
    const double ridge = kRidge * std::accumulate(curvatures.begin(), curvatures.end(), 0.0) /
                         static_cast<double>(std::max<std::size_t>(kept.size(), 1));
    std::vector<float> pulled(of.dim);
    for (int sweep = 0; sweep < kSweeps; ++sweep)
      for (std::size_t j = 0; j < kept.size(); ++j) {
        const std::span<const float> weights = of.of(kept[j]), value = std::span(values).subspan(j * of.dim, of.dim);
        double gradient = 0;
        for (std::size_t r = 0; r < of.count; ++r) gradient += double{weights[r]} * double{mass[r]};
        if (lambda > 0) {
          std::ranges::fill(pulled, 0);
          add_rows(weights.data(), of.outputs.data(), of.count, of.dim, pulled.data());
          double along = 0;
          for (std::size_t i = 0; i < of.dim; ++i) along += double{pulled[i]} * double{value[i]};
          gradient += lambda * along;
        }
        double& factor = factors[j];
        const double penalty = curvatures[j] + ridge;
        const double step = (gradient + penalty * (1 - factor)) / (curvatures[j] + penalty);
        const double changed = std::clamp(factor + step, 1 / kMostFactor, kMostFactor);
        if (!std::isfinite(changed)) continue;  // no reference looks at any token, or a key or value is no number
        const auto change = static_cast<float>(changed - factor);
        factor = changed;
        add_scaled(-change, weights, mass);
        if (lambda > 0) add_to_rows(-change, weights.data(), value.data(), of.count, of.dim, of.outputs.data());
      }

    const std::span<double> biases = list(table).values(kBias);
    for (std::size_t j = 0; j < kept.size(); ++j)
      biases[kept[j]] = std::clamp(biases[kept[j]] + std::log(factors[j]), -kMostBias, kMostBias);
  }

  // Expected weights, the references' weights, outputs and queries, the kept tokens' values and factors, and a head's
  // moments.
  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    const auto held = static_cast<std::uint64_t>(tokens), dim = static_cast<std::uint64_t>(layout.head_dim),
               count = static_cast<std::uint64_t>(references(layout));
    return ExpectedAttention::bytes(layout, tokens) +
           count * (held * sizeof(float) + dim * (2 * sizeof(float) + sizeof(double)) + 4 * sizeof(double)) +
           held * (dim * sizeof(float) + 6 * sizeof(double)) + 2 * dim * (dim + 2) * sizeof(double);
  }

  MatchingOptions options_;
};

Result<std::unique_ptr<RetentionPolicy>> make_matching(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions held, HeldScoredOptions::read(given));
  MatchingOptions options;
  constexpr std::string_view kFits[] = {"output", "mass", "off"};
  KVASIR_ASSIGN_OR_RETURN(const std::string fit, given.get_choice("fit", kFits));
  options.fit = fit == "output" ? Fit::kOutput : fit == "mass" ? Fit::kMass : Fit::kOff;
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t queries, given.get_int("queries", 1, 256));
  options.queries = static_cast<int>(queries);
  KVASIR_ASSIGN_OR_RETURN(options.future, given.get_int("future", 1, std::int64_t{1} << 20));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  traits.values_per_token = options.fit == Fit::kOff ? 1 : 2;
  return {std::make_unique<MatchingPolicy>(std::move(traits), held, options)};
}

}  // namespace

const PolicyInfo kMatchingPolicy{
    .name = "matching",
    .summary = "the tokens that queries to come may attend to, with biases that make up for those that were dropped",
    .formula =
        "score as expected's; keep sinks, the last recent and the highest scores, budget in all; draw reference "
        "queries from the mean and covariance of those so far, and fit each kept token's bias, so that the mass and "
        "the output "
        "of attention stay what they were for the references",
    .reference = "Attention Matching, Zweiger et al., arXiv 2602.16284",
    .options = kMatchingOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_matching,
};

}  // namespace kvasir
