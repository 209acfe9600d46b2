#include "eval/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/counted.h"
#include "base/status.h"
#include "retention/head_profile.h"
#include "retention/hoyer.h"

namespace kvasir {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr int kLags[] = {1, 2, 4, 8, 16, 32, 64};
constexpr std::size_t kRing = 65;  // queries remembered: the longest lag plus the current one

class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : kNothing; }

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
};

std::vector<double> values(const std::vector<Mean>& means) {
  std::vector<double> result;
  for (const Mean& mean : means) result.push_back(mean.value());
  return result;
}

// A head's most important tokens, ascending; empty if it saw too few.
struct TopSet {
  std::vector<TokenIndex> ids;
  std::size_t seen = 0;
};

struct Shape {
  int heads = 1;
  int kv_heads = 1;
  std::int64_t tokens = 0;
  std::size_t top = 1;
  std::size_t bins = 1;
  TokenIndex reference = 0;
  std::size_t cells = 0;
  std::int64_t cell_tokens = 1;

  std::size_t bin(TokenIndex id) const {
    return static_cast<std::size_t>(id * static_cast<std::int64_t>(bins) / tokens);
  }
};

// Accumulates the figures of one layer.
class LayerStudy {
 public:
  explicit LayerStudy(const Shape* shape)
      : shape_(*shape),
        hoyer_(shape->bins),
        kept_(shape->bins),
        drift_(shape->bins),
        locality_(std::size(kLags)),
        by_chance_(std::size(kLags)),
        similarity_(square(shape->kv_heads)),
        query_similarity_(square(shape->heads)),
        matrix_(shape->cells * shape->cells, std::numeric_limits<float>::quiet_NaN()),
        cells_(shape->cells),
        ring_(kRing, std::vector<TopSet>(static_cast<std::size_t>(shape->kv_heads))),
        query_sets_(static_cast<std::size_t>(shape->heads)) {}

  void observe(const ObservedRow& row) {
    gather(row);
    const std::size_t bin = shape_.bin(row.query());
    if (mass_.size() > 1) {
      const double sparsity = hoyer_sparsity(mass_);
      hoyer_[bin].add(sparsity);
      hoyer_mean_.add(sparsity);
    }
    compare_sets(row, bin);
    add_to_matrix(row.query());
  }

  InspectedLayer result() {
    return {values(hoyer_),      hoyer_mean_.value(),       values(kept_),
            values(drift_),      values(locality_),         values(by_chance_),
            values(similarity_), values(query_similarity_), std::move(matrix_)};
  }

 private:
  static std::size_t square(int side) { return static_cast<std::size_t>(side) * static_cast<std::size_t>(side); }

  // Sums the mass of each token over the heads that see it.
  void gather(const ObservedRow& row) {
    by_id_.assign(static_cast<std::size_t>(row.query()) + 1, kNothing);
    for (int head = 0; head < shape_.heads; ++head) {
      const std::span<const TokenIndex> ids = row.ids(head);
      const std::span<const float> weights = row.weights(head);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        double& sum = by_id_[static_cast<std::size_t>(ids[i])];
        sum = (std::isnan(sum) ? 0 : sum) + static_cast<double>(weights[i]);
      }
    }
    mass_.clear();
    for (const double sum : by_id_)
      if (!std::isnan(sum)) mass_.push_back(sum);
  }

  void take_top(std::span<const TokenIndex> ids, std::span<const float> weights, TopSet& set) {
    set.seen = ids.size();
    set.ids.clear();
    if (ids.size() <= shape_.top) return;
    order_.resize(ids.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const auto before = [&](std::size_t a, std::size_t b) {
      return weights[a] != weights[b] ? weights[a] > weights[b] : a > b;
    };
    std::ranges::nth_element(order_, order_.begin() + static_cast<std::ptrdiff_t>(shape_.top), before);
    for (std::size_t i = 0; i < shape_.top; ++i) set.ids.push_back(ids[order_[i]]);
    std::ranges::sort(set.ids);
  }

  void compare_sets(const ObservedRow& row, std::size_t bin) {
    std::vector<TopSet>& sets = ring_[static_cast<std::size_t>(row.query()) % kRing];
    const int group = shape_.heads / shape_.kv_heads;
    double kept = 0;
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const std::span<const TokenIndex> ids = row.ids(kv * group);
      kept += static_cast<double>(ids.size());
      pooled_.assign(ids.size(), 0);
      for (int head = kv * group; head < (kv + 1) * group; ++head) {
        const std::span<const float> weights = row.weights(head);
        for (std::size_t i = 0; i < weights.size(); ++i) pooled_[i] = std::max(pooled_[i], weights[i]);
        take_top(ids, weights, query_sets_[static_cast<std::size_t>(head)]);
      }
      take_top(ids, pooled_, sets[static_cast<std::size_t>(kv)]);
    }
    kept_[bin].add(kept / shape_.kv_heads);
    compare_heads(sets, similarity_);
    compare_heads(query_sets_, query_similarity_);
    for (std::size_t lag = 0; lag < std::size(kLags); ++lag)
      if (row.query() >= kLags[lag]) compare_with(row.query() - kLags[lag], sets, lag);
    if (row.query() == shape_.reference) reference_ = sets;
    if (row.query() > shape_.reference)
      for (std::size_t kv = 0; kv < sets.size(); ++kv)
        if (!sets[kv].ids.empty() && !reference_[kv].ids.empty())
          drift_[bin].add(overlap_coefficient(sets[kv].ids, reference_[kv].ids));
  }

  void compare_with(TokenIndex earlier, const std::vector<TopSet>& sets, std::size_t lag) {
    const std::vector<TopSet>& others = ring_[static_cast<std::size_t>(earlier) % kRing];
    for (std::size_t kv = 0; kv < sets.size(); ++kv) {
      if (sets[kv].ids.empty() || others[kv].ids.empty()) continue;
      locality_[lag].add(overlap_coefficient(sets[kv].ids, others[kv].ids));
      by_chance_[lag].add(static_cast<double>(shape_.top) /
                          static_cast<double>(std::max(sets[kv].seen, others[kv].seen)));
    }
  }

  static void compare_heads(const std::vector<TopSet>& sets, std::vector<Mean>& means) {
    for (std::size_t a = 0; a < sets.size(); ++a)
      for (std::size_t b = 0; b < sets.size(); ++b)
        if (!sets[a].ids.empty() && !sets[b].ids.empty())
          means[a * sets.size() + b].add(overlap_coefficient(sets[a].ids, sets[b].ids));
  }

  // Sums the queries of one row of cells, and writes the row when it is complete; queries come in order.
  void add_to_matrix(TokenIndex query) {
    for (std::size_t id = 0; id < by_id_.size(); ++id) {
      if (std::isnan(by_id_[id])) continue;
      Cell& cell = cells_[id / static_cast<std::size_t>(shape_.cell_tokens)];
      cell.sum += by_id_[id] / shape_.heads;
      cell.seen = true;
    }
    const bool last = (query + 1) % shape_.cell_tokens == 0 || query + 1 == shape_.tokens;
    if (!last) return;
    const auto row = static_cast<std::size_t>(query / shape_.cell_tokens);
    const auto queries = static_cast<double>(query % shape_.cell_tokens + 1);
    for (std::size_t column = 0; column < cells_.size(); ++column) {
      if (cells_[column].seen) matrix_[row * shape_.cells + column] = static_cast<float>(cells_[column].sum / queries);
      cells_[column] = {};
    }
  }

  struct Cell {
    double sum = 0;
    bool seen = false;
  };

  const Shape& shape_;
  std::vector<Mean> hoyer_, kept_, drift_, locality_, by_chance_, similarity_, query_similarity_;
  Mean hoyer_mean_;
  std::vector<float> matrix_;
  std::vector<Cell> cells_;
  std::vector<std::vector<TopSet>> ring_;  // [query % kRing][KV heads]
  std::vector<TopSet> reference_;          // [KV heads]
  std::vector<TopSet> query_sets_;         // [query heads] of this row
  // For the current row:
  std::vector<double> by_id_;  // NaN: no head attends to it
  std::vector<double> mass_;
  std::vector<float> pooled_;
  std::vector<std::size_t> order_;
};

class Inspector final : public RowObserver {
 public:
  Inspector(const Shape& shape, int layers) : shape_(shape) {
    for (int layer = 0; layer < layers; ++layer) layers_.emplace_back(&shape_);
  }
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

  Status observe(const ObservedRow& row) override {
    layers_[static_cast<std::size_t>(row.layer())].observe(row);
    return {};
  }

  std::vector<InspectedLayer> result() {
    std::vector<InspectedLayer> result;
    for (LayerStudy& layer : layers_) result.push_back(layer.result());
    return result;
  }

 private:
  Shape shape_;
  std::vector<LayerStudy> layers_;
};

Status check_count(std::string_view name, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return {};
  return invalid_argument("{}={} must be from 1 to {}", name, value, most).about({name});
}

}  // namespace

Status check_inspect_options(const LoadedModel& model, std::int64_t tokens, const InspectOptions& options) {
  if (tokens < 2 || tokens > kMostInspectedTokens)
    return invalid_argument("a text of {} cannot be inspected; give one of 2 to {}", counted(tokens, "token"),
                            kMostInspectedTokens)
        .about({"tokens"});
  KVASIR_RETURN_IF_ERROR(check_count("top", options.top, 4096));
  KVASIR_RETURN_IF_ERROR(check_count("bins", options.bins, 1024));
  KVASIR_RETURN_IF_ERROR(check_count("matrix", options.matrix, 1024));
  return check_observed_text(model, tokens, options.reading);
}

Result<InspectResult> inspect_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                        const InspectOptions& options, const Progress& progress) {
  InspectResult result;
  result.tokens = static_cast<std::int64_t>(text.size());
  KVASIR_RETURN_IF_ERROR(check_inspect_options(*model, result.tokens, options));
  const std::int64_t prompt = options.reading.prefill;
  result.reference = prompt > 0 && prompt < result.tokens ? prompt - 1 : (result.tokens - 1) / 2;
  result.lags.assign(std::begin(kLags), std::end(kLags));
  result.cell_tokens = (result.tokens + options.matrix - 1) / options.matrix;
  result.cells = (result.tokens + result.cell_tokens - 1) / result.cell_tokens;

  Shape shape{model->config.governed().heads, model->config.governed().kv_heads, result.tokens};
  shape.top = static_cast<std::size_t>(options.top);
  shape.bins = static_cast<std::size_t>(std::min<std::int64_t>(options.bins, result.tokens));
  shape.reference = result.reference;
  shape.cells = static_cast<std::size_t>(result.cells);
  shape.cell_tokens = result.cell_tokens;
  std::vector<Mean> positions(shape.bins);
  for (TokenIndex id = 0; id < result.tokens; ++id) positions[shape.bin(id)].add(static_cast<double>(id));
  result.positions = values(positions);

  Inspector inspector(shape, model->config.governed_layers());
  KVASIR_ASSIGN_OR_RETURN(result.reading, read_observed(model, text, options.reading, inspector, progress));
  result.layers = inspector.result();
  return result;
}

}  // namespace kvasir
