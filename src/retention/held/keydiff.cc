#include <cmath>

#include "base/status.h"
#include "retention/held/held_scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kKeyDiffOptions[] = {
    kHeldBudgetOption,
    {"measure", "cosine", "cosine, distance or norm",
     "what sets a key apart: its direction (KeyDiff), its place (ManifoldKV), or a small norm (Knorm)"},
    {"span", "0", "0 to 2^40", "distance: from the mean of so many neighbours in the cache; 0: of all keys"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"recent", "0", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    kHeldEveryOption,
    kPromptOption,
    kPosOption,
    kProtectOption,
};

enum class Measure { kCosine, kDistance, kNorm };

class KeyDiffPolicy final : public HeldScoredPolicy {
 public:
  KeyDiffPolicy(Traits traits, const HeldScoredOptions& options, Measure measure, std::int64_t span)
      : HeldScoredPolicy(std::move(traits), options), measure_(measure), span_(span) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<KeyDiffPolicy>(*this); }

 private:
  using Mean = std::vector<double>;
  // Receives a key, the place of its token, and the mean that it is compared with.
  using Visit = std::function<void(std::size_t place, std::span<const float> key, Mean& mean)>;

  static std::span<double> of_block(std::span<double> scores, const HeldKv::Block& block) {
    return scores.subspan(static_cast<std::size_t>(block.first), static_cast<std::size_t>(block.kv.rows));
  }

  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    const std::int64_t means = span_ > 0 ? (tokens + span_ - 1) / span_ : 1;
    return (static_cast<std::uint64_t>(means) + 1) *
           (sizeof(Mean) + static_cast<std::uint64_t>(layout.head_dim) * sizeof(double));
  }

  void score_held(int, HeldKv& kv, std::span<double> scores, std::int64_t) override {
    const auto size = static_cast<std::int64_t>(scores.size());
    const std::int64_t span = span_ > 0 ? span_ : size;
    std::vector<Mean> means(static_cast<std::size_t>((size - 1) / span + 1),
                            Mean(static_cast<std::size_t>(layout().head_dim)));
    const auto visit = [&](const Visit& visit) {
      kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
        for (int row = 0; row < block.kv.rows; ++row)
          visit(static_cast<std::size_t>(block.first + row), block.kv.key(0, row),
                means[static_cast<std::size_t>((block.first + row) / span)]);
      });
    };
    switch (measure_) {
      case Measure::kNorm:
        return visit([&](std::size_t place, std::span<const float> key, Mean&) { scores[place] = -norm_of(key); });
      case Measure::kCosine: {
        Mean& mean = means.front();
        kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
          const std::span<double> norms = of_block(scores, block);
          norms_of(block.kv.keys, norms);
          for (int row = 0; row < block.kv.rows; ++row) {
            const double norm = std::max(norms[static_cast<std::size_t>(row)], 1e-12);
            const std::span<const float> key = block.kv.key(0, row);
            for (std::size_t i = 0; i < key.size(); ++i) mean[i] += key[i] / norm;
          }
        });
        double square = 0;  // the mean's length does not matter to the cosine
        for (const double x : mean) square += x * x;
        const double length = std::max(std::sqrt(square), 1e-8);
        std::vector<double> products;
        return kv.visit(HeldKv::Sides::kKeys, [&](const HeldKv::Block& block) {
          const std::span<double> own = of_block(scores, block);  // the norms
          products.resize(own.size());
          products_of(block.kv.keys, mean, products);
          for (std::size_t row = 0; row < own.size(); ++row)
            own[row] = -products[row] / (std::max(own[row], 1e-8) * length);
        });
      }
      case Measure::kDistance:
        visit([&](std::size_t place, std::span<const float> key, Mean& mean) {
          const std::int64_t begin = static_cast<std::int64_t>(place) / span * span;
          const auto among = static_cast<double>(std::min(span, size - begin));
          for (std::size_t i = 0; i < key.size(); ++i) mean[i] += key[i] / among;
        });
        return visit([&](std::size_t place, std::span<const float> key, const Mean& mean) {
          double square = 0;
          for (std::size_t i = 0; i < key.size(); ++i) square += (key[i] - mean[i]) * (key[i] - mean[i]);
          scores[place] = std::sqrt(square);
        });
    }
  }

  Measure measure_;
  std::int64_t span_;
};

Result<std::unique_ptr<RetentionPolicy>> make_keydiff(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions options, HeldScoredOptions::read(given));
  constexpr std::string_view kMeasures[] = {"cosine", "distance", "norm"};
  KVASIR_ASSIGN_OR_RETURN(const std::string measure, given.get_choice("measure", kMeasures));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t span, given.get_int("span", 0, kMostTokens));
  if (span > 0 && measure != "distance")
    return invalid_argument("policy 'keydiff': span={} belongs to measure=distance; omit it", span);
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  const Measure kind = measure == "cosine"     ? Measure::kCosine
                       : measure == "distance" ? Measure::kDistance
                                               : Measure::kNorm;
  return {std::make_unique<KeyDiffPolicy>(traits, options, kind, span)};
}

}  // namespace

const PolicyInfo kKeyDiffPolicy{
    .name = "keydiff",
    .summary = "the keys that differ most from the others of their head; looks at no attention",
    .formula =
        "score = -cos(key, mean direction of the keys held); or the distance from their mean, or minus the norm; keep "
        "sinks, the last recent and the highest scores, budget in all",
    .reference =
        "KeyDiff, Park et al., arXiv 2504.15364; ManifoldKV, arXiv 2602.08343; Knorm, Devoto et al., arXiv 2406.11430",
    .options = kKeyDiffOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_keydiff,
};

}  // namespace kvasir
