#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/status.h"
#include "retention/held/held_scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kLagKvOptions[] = {
    kHeldBudgetOption,
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"lag", "128", "2 to 2^20", "tokens of a partition, which the next partition judges"},
    {"rank", "own", "own or all", "rank a token within its partition, so that each keeps as many, or among all"},
    kHeldEveryOption,
    kPromptOption,
    kPosOption,
    kProtectOption,
};

// Keys or values of consecutive tokens, with the range of each channel.
class Partition {
 public:
  explicit Partition(std::size_t dim) : dim_(dim), least_(dim), most_(dim) { clear(); }

  void clear() {
    rows_.clear();
    std::ranges::fill(least_, std::numeric_limits<float>::infinity());
    std::ranges::fill(most_, -std::numeric_limits<float>::infinity());
  }

  void add(std::span<const float> row) {
    rows_.insert(rows_.end(), row.begin(), row.end());
    for (std::size_t c = 0; c < dim_; ++c) {
      least_[c] = std::min(least_[c], row[c]);
      most_[c] = std::max(most_[c], row[c]);
    }
  }

  // Adds half the softmax over the rows of the deviation of a row's channels, each scaled by its range in `next`.
  void add_scores(const Partition& next, std::span<double> scores) const {
    std::vector<double> deviations(scores.size());
    for (std::size_t row = 0; row < scores.size(); ++row)
      deviations[row] = deviation(std::span(rows_).subspan(row * dim_, dim_), next);
    const double most = *std::ranges::max_element(deviations);
    double sum = 0;
    for (double& x : deviations) {
      x = std::exp(x - most);
      sum += x;
    }
    for (std::size_t row = 0; row < scores.size(); ++row) scores[row] += deviations[row] / sum / 2;
  }

 private:
  // Returns the sample standard deviation. A channel that is constant in `next` counts as 0.
  static double deviation(std::span<const float> row, const Partition& next) {
    const auto scaled = [&](std::size_t c) {
      const double range = double{next.most_[c]} - double{next.least_[c]};
      return range > 0 ? (double{row[c]} - double{next.least_[c]}) / range : 0;
    };
    double mean = 0;
    for (std::size_t c = 0; c < row.size(); ++c) mean += scaled(c) / static_cast<double>(row.size());
    double square = 0;
    for (std::size_t c = 0; c < row.size(); ++c) square += (scaled(c) - mean) * (scaled(c) - mean);
    return row.size() > 1 ? std::sqrt(square / static_cast<double>(row.size() - 1)) : 0;
  }

  std::size_t dim_;
  std::vector<float> rows_;
  std::vector<float> least_, most_;
};

class LagKvPolicy final : public HeldScoredPolicy {
 public:
  LagKvPolicy(Traits traits, const HeldScoredOptions& options, std::int64_t lag, bool own)
      : HeldScoredPolicy(std::move(traits), options), lag_(lag), own_(own) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<LagKvPolicy>(*this); }

 private:
  struct Sides {
    explicit Sides(std::size_t dim) : keys(dim), values(dim) {}
    Partition keys, values;
  };

  // Tokens that no partition judges, the last full one and those behind it, stay before all others: the newest longest.
  void score_held(int, HeldKv& kv, std::span<double> scores, std::int64_t) override {
    std::iota(scores.begin(), scores.end(), 2.0);
    const std::int64_t sinks = rule().sinks;
    const std::int64_t judging = (kv.tokens() - sinks) / lag_ * lag_;  // tokens of full partitions
    if (judging < 2 * lag_) return;
    const auto dim = static_cast<std::size_t>(layout().head_dim);
    Sides judged(dim), judges(dim);
    kv.visit(HeldKv::Sides::kBoth, [&](const HeldKv::Block& block) {
      for (int row = 0; row < block.kv.rows; ++row) {
        const std::int64_t place = block.first + row - sinks;
        if (place < 0 || place >= judging) continue;
        judges.keys.add(block.kv.key(0, row));
        judges.values.add(block.kv.value(0, row));
        if (place % lag_ != lag_ - 1) continue;
        if (place >= lag_)
          judge(judged, judges,
                scores.subspan(static_cast<std::size_t>(sinks + place + 1 - 2 * lag_), static_cast<std::size_t>(lag_)));
        std::swap(judged, judges);
        judges.keys.clear();
        judges.values.clear();
      }
    });
  }

  void judge(const Sides& judged, const Sides& judges, std::span<double> scores) const {
    std::ranges::fill(scores, 0.0);
    judged.keys.add_scores(judges.keys, scores);
    judged.values.add_scores(judges.values, scores);
    if (!own_) return;
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return scores[i]; });
    for (std::size_t rank = 0; rank < order.size(); ++rank)
      scores[order[rank]] = static_cast<double>(rank) / static_cast<double>(order.size());
  }

  std::int64_t lag_;
  bool own_;
};

Result<std::unique_ptr<RetentionPolicy>> make_lagkv(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions options, HeldScoredOptions::read(given));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t lag, given.get_int("lag", 2, std::int64_t{1} << 20));
  constexpr std::string_view kRanks[] = {"own", "all"};
  KVASIR_ASSIGN_OR_RETURN(const std::string rank, given.get_choice("rank", kRanks));
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  return {std::make_unique<LagKvPolicy>(traits, options, lag, rank == "own")};
}

}  // namespace

const PolicyInfo kLagKvPolicy{
    .name = "lagkv",
    .summary = "the tokens whose keys and values stand out from the tokens behind them; looks at no attention",
    .formula =
        "channels scaled to the next partition's range; score = mean over key and value of the softmax, over the "
        "partition, of the deviation over channels; keep sinks, the last full partition and what follows, and the best",
    .reference = "LagKV, Liang et al., arXiv 2504.04704",
    .options = kLagKvOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_lagkv,
};

}  // namespace kvasir
