#include <cmath>
#include <numeric>

#include "base/status.h"
#include "retention/held/held_scored.h"
#include "retention/prompt_window.h"

namespace kvasir {
namespace {

constexpr PolicyOption kRkvOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept per head, or their share of the tokens seen, rounded up"},
    {"window", "8", "1 to 2^24",
     "last queries, which are observed, and their tokens, which are kept; counted in budget"},
    {"kernel", "7", "1 to 1023, odd", "width of the pooling of attention, by the maximum"},
    {"lambda", "0.1", "0 to 1", "weight of attention; that of redundancy is 1 - lambda"},
    {"alike", "0.5", "0 to 1",
     "for each key, the cosine to the newest key of a larger cosine than this does not count"},
    kBlocksOption,
    {"every", "128", "0 to 2^40", "while writing, prune after so many tokens by the last of them; 0: never"},
    kPosOption,
    kProtectOption,
};

class RkvPolicy final : public PromptWindowPolicy {
 public:
  RkvPolicy(Traits traits, const PromptWindowOptions& options, double lambda, double alike)
      : PromptWindowPolicy(std::move(traits), options), lambda_(lambda), alike_(alike) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<RkvPolicy>(*this); }

  bool wants_held(const PolicyChunk& chunk, int table) const override { return prunes(chunk, table); }

  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) override {
    ScoreList& list = this->list(table);
    enter(list, chunk);
    KVASIR_CHECK(list.all() == kv.tokens());
    const std::vector<double> redundancy = this->redundancy(kv);
    std::ranges::copy(redundancy, list.values(kRedundancy).begin());
  }

  // All keys, normalised, and a number for each.
  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(tokens) *
               (static_cast<std::uint64_t>(layout.head_dim) * sizeof(float) + sizeof(double)) +
           static_cast<std::uint64_t>(layout.head_dim) * sizeof(double);
  }

 private:
  static constexpr int kRedundancy = 1;  // column; column 0 has the attention

  Capabilities capabilities() const override { return PromptWindowPolicy::capabilities().with<ReadsHeldKv>(this); }

  // A row counts by how it divides what it gives to the tokens before the window.
  void add_row(ScoreList& list, const Step&, std::int64_t, std::span<const double> mass) override {
    const double sum = std::accumulate(mass.begin(), mass.end(), 0.0);
    if (!(sum > 0)) return;
    double* scores = list.values().data();
    for (std::size_t i = 0; i < mass.size(); ++i) scores[i] += mass[i] / sum;
  }

  void rank(ScoreList& list, std::int64_t rows, std::span<double> scores) override {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = list.values()[i] / static_cast<double>(rows);
  }

  void weigh(int table, std::span<double> scores) override {
    const auto redundancy = list(table).values(kRedundancy);
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = lambda_ * scores[i] - (1 - lambda_) * redundancy[i];
  }

  // Returns the softmax of each key's mean cosine to the other keys. For each key i, one cosine counts as 0 in the mean
  // of another key j: that of the newest j whose cosine to i is above `alike`.
  std::vector<double> redundancy(HeldKv& kv) const {
    const auto count = static_cast<std::size_t>(kv.tokens()), dim = static_cast<std::size_t>(layout().head_dim);
    std::vector<float> units;
    units.reserve(count * dim);
    std::vector<double> sum(dim);
    kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
      for (int row = 0; row < block.kv.rows; ++row) {
        const std::span<const float> key = block.kv.key(0, row);
        const double norm = norm_of(key) + 1e-8;
        for (std::size_t i = 0; i < dim; ++i) {
          units.push_back(static_cast<float>(key[i] / norm));
          sum[i] += double{units.back()};
        }
      }
    });
    const auto unit = [&](std::size_t i) { return std::span<const float>(units).subspan(i * dim, dim); };
    std::vector<double> means(count);
    for (std::size_t j = 0; j < count; ++j) {
      const auto own = unit(j);
      for (std::size_t i = 0; i < dim; ++i) means[j] += (sum[i] - own[i]) * own[i];
    }
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t j = count; j-- > 0;) {
        const double cosine = j == i ? 0 : dot(unit(i), unit(j));
        if (cosine <= alike_) continue;
        means[j] -= cosine;
        break;
      }
    double most = -INFINITY, total = 0;
    for (double& mean : means) most = std::max(most, mean /= static_cast<double>(count));
    for (double& mean : means) total += mean = std::exp(mean - most);
    for (double& mean : means) mean /= total;
    return means;
  }

  // In 8 parts, so that the compiler may use vectors: their order is the same everywhere.
  static double dot(std::span<const float> a, std::span<const float> b) {
    std::array<float, 8> parts{};
    std::size_t i = 0;
    for (; i + parts.size() <= a.size(); i += parts.size())
      for (std::size_t k = 0; k < parts.size(); ++k) parts[k] += a[i + k] * b[i + k];
    double sum = 0;
    for (const float part : parts) sum += double{part};
    for (; i < a.size(); ++i) sum += double{a[i] * b[i]};
    return sum;
  }

  double lambda_;
  double alike_;
};

Result<std::unique_ptr<RetentionPolicy>> make_rkv(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(PromptWindowOptions options, PromptWindowOptions::read(given));
  options.max_pool = true;
  options.maximum = true;  // over query heads; rows are averaged
  KVASIR_ASSIGN_OR_RETURN(const double lambda, given.get_double("lambda", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(const double alike, given.get_double("alike", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits,
                          ScoredPolicy::Traits::read(given, {"budget", "window", "kernel"}));
  traits.values_per_token = 2;
  return {std::make_unique<RkvPolicy>(std::move(traits), options, lambda, alike)};
}

}  // namespace

const PolicyInfo kRkvPolicy{
    .name = "rkv",
    .summary = "tokens that the last queries attend to and whose keys others do not repeat: for long reasoning",
    .formula =
        "score = lambda * max-pooled mean mass of the last window queries - (1 - lambda) * softmax of the mean cosine "
        "to the other keys; keep the window and the highest of the earlier tokens, budget in all",
    .reference = "R-KV, Cai et al., arXiv 2505.24133",
    .options = kRkvOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_rkv,
};

}  // namespace kvasir
