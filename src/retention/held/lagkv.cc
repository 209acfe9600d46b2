#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/wide_vectors.h"
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

constexpr std::size_t kRowsTogether = 4;  // summed side by side: each addition waits for the one before it

// Sets scaled[c][r] to channel c of row r in units of its range, counted from `least`; to 0 where the range is 0.
// scaled: [dim][kRowsTogether].
KVASIR_WIDE_VECTORS void scale_channels(const float* __restrict rows, const float* __restrict least,
                                        const double* __restrict ranges, std::size_t dim, double* __restrict scaled) {
  for (std::size_t c = 0; c < dim; ++c)
    for (std::size_t r = 0; r < kRowsTogether; ++r)
      scaled[c * kRowsTogether + r] = ranges[c] > 0 ? (double{rows[r * dim + c]} - double{least[c]}) / ranges[c] : 0;
}

// Sets squares[r] to the sum over c, in order, of the squared distances of scaled[c][r] from their mean.
KVASIR_WIDE_VECTORS void sum_squares(const double* __restrict scaled, std::size_t dim, double* __restrict squares) {
  double mean[kRowsTogether] = {}, sum[kRowsTogether] = {};
  const auto count = static_cast<double>(dim);
  for (std::size_t c = 0; c < dim; ++c)
    for (std::size_t r = 0; r < kRowsTogether; ++r) mean[r] += scaled[c * kRowsTogether + r] / count;
  for (std::size_t c = 0; c < dim; ++c)
    for (std::size_t r = 0; r < kRowsTogether; ++r) {
      const double off = scaled[c * kRowsTogether + r] - mean[r];
      sum[r] += off * off;
    }
  for (std::size_t r = 0; r < kRowsTogether; ++r) squares[r] = sum[r];
}

// Sets deviations[r] to the sample standard deviation over the channels of row r, each scaled by its range. rows:
// [deviations.size()][dim].
void find_deviations(const float* rows, const float* least, const double* ranges, std::size_t dim,
                     std::span<double> deviations) {
  std::vector<double> scaled(dim * kRowsTogether);
  std::vector<float> padded;
  for (std::size_t row = 0; row < deviations.size(); row += kRowsTogether, rows += kRowsTogether * dim) {
    const std::size_t count = std::min(kRowsTogether, deviations.size() - row);
    if (count < kRowsTogether) {  // the rows behind them are not used
      padded.assign(rows, rows + count * dim);
      padded.resize(kRowsTogether * dim);
      rows = padded.data();
    }
    scale_channels(rows, least, ranges, dim, scaled.data());
    double squares[kRowsTogether];
    sum_squares(scaled.data(), dim, squares);
    for (std::size_t r = 0; r < count; ++r)
      deviations[row + r] = dim > 1 ? std::sqrt(squares[r] / static_cast<double>(dim - 1)) : 0;
  }
}

// Keys or values of consecutive tokens, with the range of each channel.
class Partition {
 public:
  Partition(std::size_t dim, std::size_t tokens) : dim_(dim), least_(dim), most_(dim) {
    rows_.reserve(tokens * dim);
    clear();
  }

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
    std::vector<double> deviations(scores.size()), ranges(dim_);
    for (std::size_t c = 0; c < dim_; ++c) ranges[c] = double{next.most_[c]} - double{next.least_[c]};
    find_deviations(rows_.data(), next.least_.data(), ranges.data(), dim_, deviations);
    const double most = *std::ranges::max_element(deviations);
    double sum = 0;
    for (double& x : deviations) {
      x = std::exp(x - most);
      sum += x;
    }
    for (std::size_t row = 0; row < scores.size(); ++row) scores[row] += deviations[row] / sum / 2;
  }

 private:
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
    Sides(std::size_t dim, std::size_t tokens) : keys(dim, tokens), values(dim, tokens) {}
    Partition keys, values;
  };

  // Tokens that no partition judges, the last full one and those behind it, stay before all others: the newest longest.
  void score_held(int, HeldKv& kv, std::span<double> scores, std::int64_t) override {
    std::iota(scores.begin(), scores.end(), 2.0);
    const std::int64_t sinks = rule().sinks;
    const std::int64_t judging = (kv.tokens() - sinks) / lag_ * lag_;  // tokens of full partitions
    if (judging < 2 * lag_) return;
    const auto dim = static_cast<std::size_t>(layout().head_dim);
    Sides judged(dim, static_cast<std::size_t>(lag_)), judges(dim, static_cast<std::size_t>(lag_));
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

  // Four partitions with their ranges; of the one that is judged the deviations, and the ranks in order, sorted with as
  // much room again; and of some rows the scaled channels.
  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    if (tokens < 2 * lag_) return 0;
    const auto lag = static_cast<std::uint64_t>(lag_), dim = static_cast<std::uint64_t>(layout.head_dim);
    return 4 * (lag + 2) * dim * sizeof(float) + lag * (sizeof(double) + 2 * sizeof(std::size_t)) +
           dim * (sizeof(double) + kRowsTogether * (sizeof(double) + sizeof(float)));
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
