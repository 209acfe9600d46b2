#include <algorithm>
#include <cmath>
#include <complex>

#include "base/status.h"
#include "retention/held/held_scored.h"
#include "retention/profile_file.h"
#include "retention/query_profile.h"

namespace kvasir {
namespace {

constexpr PolicyOption kTriAttentionOptions[] = {
    {"budget", "2048", kBudgetRange, "tokens kept per head, or their share of the tokens seen, rounded up"},
    {"profile", "-", "a file, or -",
     "query profile that kvasir profile --query-profile wrote; -: the queries of the text itself"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"recent", "128", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"every", "128", "0 to 2^40", "while writing, prune when this many tokens are above the budget; 0: never"},
    kPromptOption,
    kPosOption,
    kProtectOption,
};

// Distances to the queries to come over which a score is averaged: 1, 2, 4, … 65536.
constexpr int kOffsets = 17;

class TriAttentionPolicy final : public HeldScoredPolicy, public SumsQueries, public DependsOnModel {
 public:
  TriAttentionPolicy(Traits traits, const HeldScoredOptions& options, std::shared_ptr<const QueryProfile> profile)
      : HeldScoredPolicy(std::move(traits), options), profile_(std::move(profile)) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<TriAttentionPolicy>(*this); }

  Status check_model(const PolicyModel& model) const override {
    if (profile_ == nullptr) return {};
    if (profile_->layers == model.layers && (model.heads == 0 || profile_->heads == model.heads) &&
        (model.head_dim == 0 || profile_->head_dim == model.head_dim) &&
        (model.fingerprint == nullptr || profile_->fingerprint == *model.fingerprint))
      return {};
    return invalid_argument("policy '{}': the query profile is of another model; make one of this model",
                            traits().spec);
  }
  std::string remark(int) const override {
    if (profile_ != nullptr) return {};
    return fmt::format("'{}' has no query profile: each text's own queries stand in for it", traits().spec);
  }

  void begin(const TableLayout& layout) override {
    HeldScoredPolicy::begin(layout);
    KVASIR_CHECK(profile_ == nullptr ||  // check_model was asked
                 (profile_->layers == layout.layers && profile_->heads == layout.per_layer * layout.heads &&
                  profile_->head_dim == layout.head_dim));
    if (profile_ == nullptr)
      queries_.assign(static_cast<std::size_t>(layout.tables()), Queries{0, std::vector<double>(doubles(layout))});
  }
  // The queries of a cached prefix are not shown.
  std::int64_t exact_prefix(std::int64_t n) const override {
    return profile_ == nullptr ? 0 : HeldScoredPolicy::exact_prefix(n);
  }

  void read_queries(const PolicyChunk&, int table, const QuerySums& sums) override {
    Queries& all = queries_[static_cast<std::size_t>(table)];
    all.rows += sums.rows;
    double* to = all.sums.data();
    for (int head = 0; head < sums.heads; ++head) {
      for (int i = 0; i < sums.head_dim; ++i) *to++ += sums.sum(head, i);
      for (int i = 0; i + 1 < sums.head_dim; i += 2)
        *to++ += sums.product(head, i, i) + sums.product(head, i + 1, i + 1);
    }
  }

 private:
  // The sums of a table without a profile: of each head its queries, then the squared lengths of their pairs.
  struct Queries {
    std::int64_t rows = 0;
    std::vector<double> sums;
  };
  // The score of a key k by one query head is direction . k + the sum over pairs of length * |pair of k|.
  struct Head {
    std::vector<float> direction;  // [head_dim]
    std::vector<float> length;     // [pairs]
  };

  static std::size_t doubles(const TableLayout& layout) {
    const auto dim = static_cast<std::size_t>(layout.head_dim);
    return static_cast<std::size_t>(layout.heads) * (dim + dim / 2);
  }

  Capabilities capabilities() const override {
    return HeldScoredPolicy::capabilities().with<DependsOnModel>(this).with<SumsQueries>(profile_ ? nullptr : this);
  }

  std::uint64_t table_state_bytes(const TableLayout& layout) const override {
    return profile_ != nullptr ? 0 : sizeof(Queries) + doubles(layout) * sizeof(double);
  }
  void save_table(int table, ByteWriter& out) const override {
    if (profile_ != nullptr) return;
    const Queries& queries = queries_[static_cast<std::size_t>(table)];
    out.put(queries.rows);
    out.put_values(std::span<const double>(queries.sums));
  }
  bool restore_table(int table, ByteReader& in) override {
    if (profile_ != nullptr) return true;
    Queries& queries = queries_[static_cast<std::size_t>(table)];
    return in.get(queries.rows) && queries.rows >= 0 && in.get_values(std::span(queries.sums)) &&
           std::ranges::all_of(queries.sums, [](double x) { return std::isfinite(x); }) && lengths_are_sound(queries);
  }
  bool lengths_are_sound(const Queries& queries) const {
    const auto dim = static_cast<std::size_t>(layout().head_dim), size = dim + dim / 2;
    for (std::size_t i = 0; i < queries.sums.size(); ++i)
      if (i % size >= dim && queries.sums[i] < 0) return false;
    return queries.rows <= seen();
  }

  // Returns the mean query of a head, pair by pair, and the mean lengths of its pairs: those of the profile, or the
  // mean of the text's queries and the roots of their mean squared lengths.
  std::pair<std::vector<double>, std::vector<double>> statistics(int table, int head) const {
    const auto dim = static_cast<std::size_t>(layout().head_dim);
    if (profile_ != nullptr) {
      const int query_head = table % layout().per_layer * layout().heads + head;
      const auto mean = profile_->mean(table / layout().per_layer, query_head);
      const auto length = profile_->length(table / layout().per_layer, query_head);
      return {{mean.begin(), mean.end()}, {length.begin(), length.end()}};
    }
    const Queries& queries = queries_[static_cast<std::size_t>(table)];
    const auto rows = static_cast<double>(std::max<std::int64_t>(queries.rows, 1));
    const std::span<const double> own =
        std::span(queries.sums).subspan(static_cast<std::size_t>(head) * (dim + dim / 2), dim + dim / 2);
    std::pair<std::vector<double>, std::vector<double>> made;
    for (std::size_t i = 0; i < dim; ++i) made.first.push_back(own[i] / rows);
    for (std::size_t i = dim; i < own.size(); ++i) made.second.push_back(std::sqrt(own[i] / rows));
    return made;
  }

  // Returns the heads of a table for queries at `next` and the offsets behind it, averaged over the offsets.
  // Where keys are not rotated, the score is the product with the mean query.
  std::vector<Head> heads_at(int table, std::int64_t next) const {
    static const QueryTurn kNoTurn;
    const int layer = table / layout().per_layer;
    const QueryTurn& turn = layout().turns != nullptr ? (*layout().turns)[static_cast<std::size_t>(layer)] : kNoTurn;
    std::vector<Head> heads;
    for (int h = 0; h < layout().heads; ++h) {
      const auto [mean, length] = statistics(table, h);
      Head head;
      if (turn.frequencies.empty()) {
        head.direction.assign(mean.begin(), mean.end());
      } else {
        head.direction.assign(mean.size(), 0);
      }
      for (std::size_t f = 0; f < turn.frequencies.size(); ++f) {
        std::complex<double> turned = 0;
        for (int o = 0; o < kOffsets; ++o)
          turned += std::polar(1.0, static_cast<double>(next + (std::int64_t{1} << o)) * double{turn.frequencies[f]});
        const std::complex<double> own(mean[2 * f], mean[2 * f + 1]);
        const std::complex<double> product = own * turned / double{kOffsets};
        head.direction[2 * f] = static_cast<float>(product.real());
        head.direction[2 * f + 1] = static_cast<float>(product.imag());
        head.length.push_back(static_cast<float>(std::max(length[f] - std::abs(own), 0.0)));
      }
      heads.push_back(std::move(head));
    }
    return heads;
  }

  static double score_of(const Head& head, std::span<const float> key) {
    double sum = 0;
    for (std::size_t i = 0; i < key.size(); ++i) sum += double{head.direction[i]} * double{key[i]};
    for (std::size_t f = 0; f < head.length.size(); ++f)
      sum +=
          double{head.length[f]} * std::sqrt(double{key[2 * f]} * key[2 * f] + double{key[2 * f + 1]} * key[2 * f + 1]);
    return sum;
  }

  void score_held(int table, HeldKv& kv, std::span<double> scores, std::int64_t) override {
    const std::int64_t newest = newest_position(kv);
    const auto heads = static_cast<std::size_t>(layout().heads);
    std::vector<double> own(heads * scores.size());
    std::vector<Head> of_frame;
    std::optional<std::int64_t> origin;
    kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
      if (origin != block.origin) of_frame = heads_at(table, newest + 1 - block.origin);
      origin = block.origin;
      for (int row = 0; row < block.kv.rows; ++row)
        for (std::size_t h = 0; h < heads; ++h)
          own[h * scores.size() + static_cast<std::size_t>(block.first + row)] =
              score_of(of_frame[h], block.kv.key(0, row));
    });
    for (std::size_t h = 0; h < heads; ++h) {
      const std::span<double> of_head = std::span(own).subspan(h * scores.size(), scores.size());
      normalise(of_head);
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = h == 0 ? of_head[i] : std::max(scores[i], of_head[i]);
    }
  }

  // Scores of all heads, apart.
  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(layout.heads) * static_cast<std::uint64_t>(tokens) * sizeof(double);
  }

  // Shifts and scales scores to a mean of 0 and a standard deviation of 1.
  static void normalise(std::span<double> scores) {
    const auto count = static_cast<double>(scores.size());
    double mean = 0, square = 0;
    for (const double score : scores) mean += score / count;
    for (const double score : scores) square += (score - mean) * (score - mean) / count;
    const double deviation = std::max(std::sqrt(square), 1e-6);
    for (double& score : scores) score = (score - mean) / deviation;
  }

  std::shared_ptr<const QueryProfile> profile_;  // null: queries_ stand in for it
  std::vector<Queries> queries_;
};

Result<std::unique_ptr<RetentionPolicy>> make_triattention(const PolicyOptions& given) {
  PolicyOptions filled = given;
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions held, HeldScoredOptions::read(given));
  std::shared_ptr<const QueryProfile> profile;
  if (filled.value("profile") != "-") {
    KVASIR_ASSIGN_OR_RETURN(QueryProfile read, read_profile_option<QueryProfile>(
                                                   filled, "query profile", read_query_profile, format_query_profile));
    profile = std::make_shared<const QueryProfile>(std::move(read));
  }
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(filled, {"budget"}));
  return {std::make_unique<TriAttentionPolicy>(traits, held, std::move(profile))};
}

}  // namespace

const PolicyInfo kTriAttentionPolicy{
    .name = "triattention",
    .summary =
        "the keys that the model's typical queries will score highest at distances to come; looks at no attention",
    .formula =
        "score of a query head = mean over distances of Re(E[q] conj(k)) turned to them, + sum over pairs of (E|q| - "
        "|E[q]|) |k|, standardised; the most over the group; keep sinks, the last recent and the highest, budget in "
        "all",
    .reference = "TriAttention, Mao et al., arXiv 2604.04921",
    .options = kTriAttentionOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_triattention,
};

}  // namespace kvasir
