#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "retention/held/held_scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kExpectedOptions[] = {
    kHeldBudgetOption,
    {"sinks", "4", "0 to 2^40",
     "first tokens of the text, never dropped; counted in budget; their queries do not count"},
    {"recent", "0", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"future", "512", "1 to 2^20", "positions behind the text over which the queries to come are averaged"},
    {"spread", "on", "on or off", "whether the covariance of queries counts, or their mean alone"},
    {"norm", "on", "on or off", "whether a token's weight is multiplied by the norm of its value"},
    {"epsilon", "0", "0 to 1", "added to a token's weight before it meets the norm of its value"},
    kHeldEveryOption,
    kPromptOption,
    kPosOption,
    kProtectOption,
};

struct ExpectedOptions {
  std::int64_t future = 512;
  bool spread = true;
  bool norm = true;
  double epsilon = 0;
};

class ExpectedPolicy final : public HeldScoredPolicy, public SumsQueries {
 public:
  ExpectedPolicy(Traits traits, const HeldScoredOptions& held, const ExpectedOptions& options)
      : HeldScoredPolicy(std::move(traits), held), options_(options) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<ExpectedPolicy>(*this); }

  void begin(const TableLayout& layout) override {
    HeldScoredPolicy::begin(layout);
    queries_.assign(static_cast<std::size_t>(layout.tables()), Queries{0, std::vector<double>(doubles(layout))});
  }
  // The queries of a cached prefix are not shown.
  std::int64_t exact_prefix(std::int64_t n) const override {
    return std::min(HeldScoredPolicy::exact_prefix(n), rule().sinks);
  }
  bool wants_queries(const PolicyChunk& chunk, int row) const override { return chunk.first + row >= rule().sinks; }

  void read_queries(const PolicyChunk&, int table, const QuerySums& sums) override {
    Queries& all = queries_[static_cast<std::size_t>(table)];
    all.rows += sums.rows;
    auto to = all.sums.begin();
    for (const std::span<const double> added : {sums.sums, sums.products})
      for (const double x : added) *to++ += x;
  }

 private:
  // What a table has summed: the queries of each head, then their products, in the order of QuerySums.
  struct Queries {
    std::int64_t rows = 0;
    std::vector<double> sums;
  };
  // The logit of a key k by one query head is mean . k + k . spread k.
  struct Head {
    std::vector<float> mean;    // [head_dim]
    std::vector<float> spread;  // [head_dim][head_dim], symmetric
  };

  static std::size_t doubles(const TableLayout& layout) {
    const auto dim = static_cast<std::size_t>(layout.head_dim);
    return static_cast<std::size_t>(layout.heads) * (dim + dim * (dim + 1) / 2);
  }

  Capabilities capabilities() const override { return HeldScoredPolicy::capabilities().with<SumsQueries>(this); }

  std::uint64_t table_state_bytes(const TableLayout& layout) const override {
    return sizeof(Queries) + doubles(layout) * sizeof(double);
  }
  void save_table(int table, ByteWriter& out) const override {
    const Queries& queries = queries_[static_cast<std::size_t>(table)];
    out.put(queries.rows);
    out.put_values(std::span<const double>(queries.sums));
  }
  bool restore_table(int table, ByteReader& in) override {
    Queries& queries = queries_[static_cast<std::size_t>(table)];
    return in.get(queries.rows) && queries.rows >= 0 && in.get_values(std::span(queries.sums)) &&
           std::ranges::all_of(queries.sums, [](double x) { return std::isfinite(x); });
  }

  QueryTurn turn_of(int layer) const {
    if (layout().turns != nullptr) return (*layout().turns)[static_cast<std::size_t>(layer)];
    return {.scale = 1 / std::sqrt(static_cast<float>(std::max(layout().head_dim, 1)))};
  }

  // Returns the mean turn of each pair over the positions [begin, begin + future): cosines, then sines.
  std::vector<double> mean_turns(const QueryTurn& turn, std::int64_t begin) const {
    const std::size_t pairs = turn.frequencies.size();
    std::vector<double> turns(2 * pairs);
    const auto count = static_cast<double>(options_.future);
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
  static void turn_pairs(std::span<const double> turns, double magnitude, double* vector, std::size_t step) {
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
  std::vector<Head> heads_at(int table, std::int64_t next) const {
    const Queries& queries = queries_[static_cast<std::size_t>(table)];
    const auto dim = static_cast<std::size_t>(layout().head_dim), heads = static_cast<std::size_t>(layout().heads);
    const std::span<const double> all = queries.sums;
    const QuerySums sums{queries.rows, layout().heads, layout().head_dim, all.first(heads * dim),
                         all.subspan(heads * dim)};
    const QueryTurn turn = turn_of(table / layout().per_layer);
    const std::vector<double> turns = mean_turns(turn, next);
    const auto count = static_cast<double>(std::max<std::int64_t>(queries.rows, 1));
    const double scale = turn.scale;
    std::vector<Head> made(heads);
    for (int h = 0; h < layout().heads; ++h) {
      Head& head = made[static_cast<std::size_t>(h)];
      std::vector<double> mean(dim), spread(dim * dim);
      for (std::size_t i = 0; i < dim; ++i) mean[i] = sums.sum(h, static_cast<int>(i)) / count;
      for (std::size_t i = 0; i < dim; ++i)
        for (std::size_t j = 0; j < dim; ++j)
          spread[i * dim + j] = sums.product(h, static_cast<int>(i), static_cast<int>(j)) / count - mean[i] * mean[j];
      turn_pairs(turns, turn.magnitude, mean.data(), 1);
      for (std::size_t i = 0; i < dim; ++i) turn_pairs(turns, turn.magnitude, &spread[i * dim], 1);
      for (std::size_t j = 0; j < dim; ++j) turn_pairs(turns, turn.magnitude, &spread[j], dim);
      for (const double x : mean) head.mean.push_back(static_cast<float>(x * scale));
      if (!options_.spread) continue;
      for (const double x : spread) head.spread.push_back(static_cast<float>(x * scale * scale / 2));
    }
    return made;
  }

  static double logit(const Head& head, std::span<const float> key, std::vector<float>& product) {
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
  std::vector<double> logits(int table, HeldKv& kv) const {
    const auto tokens = static_cast<std::size_t>(kv.tokens()), heads = static_cast<std::size_t>(layout().heads);
    const std::int64_t newest = newest_position(kv);
    std::vector<double> logits(heads * tokens);
    std::vector<Head> of_frame;
    std::optional<std::int64_t> origin;
    std::vector<float> product;
    kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
      if (origin != block.origin) of_frame = heads_at(table, newest + 1 - block.origin);
      origin = block.origin;
      for (int row = 0; row < block.kv.rows; ++row)
        for (std::size_t h = 0; h < heads; ++h)
          logits[h * tokens + static_cast<std::size_t>(block.first + row)] =
              logit(of_frame[h], block.kv.key(0, row), product);
    });
    return logits;
  }

  void score_held(int table, HeldKv& kv, std::span<double> scores) override {
    const auto heads = static_cast<std::size_t>(layout().heads);
    const std::size_t first = std::min(static_cast<std::size_t>(rule().sinks), scores.size() - 1);
    std::vector<double> logits = this->logits(table, kv);
    std::ranges::fill(scores, 0.0);
    for (std::size_t h = 0; h < heads; ++h) {
      const auto own = std::span(logits).subspan(h * scores.size(), scores.size()).subspan(first);
      const double most = *std::ranges::max_element(own);
      double sum = 0;
      for (double& x : own) {
        x = std::exp(x - most);
        sum += x;
      }
      for (std::size_t i = 0; i < own.size(); ++i) scores[first + i] += own[i] / sum / static_cast<double>(heads);
    }
    if (!options_.norm) return;
    kv.visit(HeldKv::Sides::kValues, [&](const HeldKv::Block& block) {
      for (int row = 0; row < block.kv.rows; ++row) {
        double& score = scores[static_cast<std::size_t>(block.first + row)];
        score = (score + options_.epsilon) * norm_of(block.kv.value(0, row));
      }
    });
  }

  // Scores of all heads, apart.
  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(layout.heads) * static_cast<std::uint64_t>(tokens) * sizeof(double);
  }

  ExpectedOptions options_;
  std::vector<Queries> queries_;
};

Result<std::unique_ptr<RetentionPolicy>> make_expected(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions held, HeldScoredOptions::read(given));
  ExpectedOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.future, given.get_int("future", 1, std::int64_t{1} << 20));
  KVASIR_ASSIGN_OR_RETURN(options.epsilon, given.get_double("epsilon", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(options.spread, get_switch(given, "spread"));
  KVASIR_ASSIGN_OR_RETURN(options.norm, get_switch(given, "norm"));
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  return {std::make_unique<ExpectedPolicy>(traits, held, options)};
}

}  // namespace

const PolicyInfo kExpectedPolicy{
    .name = "expected",
    .summary = "the tokens that queries to come may attend to, by the mean and the covariance of those so far",
    .formula =
        "logit = scale * m . k + scale^2 / 2 * k . S k, with m and S turned to the positions to come; score = (mean "
        "over heads of the softmax + epsilon) * |v|; keep sinks, the last recent and the highest scores, budget in all",
    .reference = "Expected Attention, Devoto et al., arXiv 2510.00636",
    .options = kExpectedOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_expected,
};

}  // namespace kvasir
