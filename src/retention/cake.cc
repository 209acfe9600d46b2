#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/status.h"
#include "retention/projected_values.h"
#include "retention/prompt_window.h"

namespace kvasir {
namespace {

constexpr PolicyOption kCakeOptions[] = {
    kPromptBudgetOption,
    {"window", "16", "2 to 2^24", "last queries of the prompt that are observed, and kept; counted in budget"},
    kKernelOption,
    {"gamma", "200", "0 to 10^9", "weight of a token's variance beside its mean"},
    {"tau1", "1.6", "0.01 to 1000", "weight of a layer's dispersion: its power is 1 / tau1"},
    {"tau2", "0.4", "0.01 to 1000", "weight of a layer's shift: its power is 1 / tau2"},
    kShareOption,
    kFloorOption,
    kChunkOption,
    kGateOption,
    kValueOption,
    kBlocksOption,
    kWhileWritingOption,
    {"most", "0", "0, or 1 to 1000",
     "a layer keeps at most this many times an equal part, besides the window; 0: without bound"},
    kPosOption,
    kProtectOption,
};

struct CakeOptions {
  double gamma = 200;
  double tau1 = 1.6;
  double tau2 = 0.4;
  double most = 0;  // bounds a layer's share, in equal parts; 0: without bound
};

class CakePolicy final : public PromptWindowPolicy {
 public:
  CakePolicy(Traits traits, const PromptWindowOptions& window, const CakeOptions& cake)
      : PromptWindowPolicy(std::move(traits), window), cake_(cake) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<CakePolicy>(*this); }
  std::optional<std::int64_t> bound() const override {
    return cake_.most > 0 ? PromptWindowPolicy::bound() : std::nullopt;
  }

  void begin(const TableLayout& layout) override {
    PromptWindowPolicy::begin(layout);
    heads_.assign(static_cast<std::size_t>(layout.tables()), {});
  }

 private:
  static constexpr int kMean = 0;     // column: mean of the mass over the rows so far
  static constexpr int kSquares = 1;  // column: sum of the squared differences from it

  // Each table writes its own during a chunk; finish_chunk of every table reads all of them.
  struct Head {
    double dispersion = 0;
    double shift = 0;
    std::int64_t earlier = 0;  // tokens before the window
  };

  std::uint64_t table_state_bytes(const TableLayout& layout) const override {
    return PromptWindowPolicy::table_state_bytes(layout) + sizeof(Head);
  }
  void save_table(int table, ByteWriter& out) const override {
    PromptWindowPolicy::save_table(table, out);
    out.put(heads_[static_cast<std::size_t>(table)].dispersion);  // the rest is set anew when a prompt ends
  }
  bool restore_table(int table, ByteReader& in) override {
    return PromptWindowPolicy::restore_table(table, in) && in.get(heads_[static_cast<std::size_t>(table)].dispersion);
  }

  void begin_window(int table) override { heads_[static_cast<std::size_t>(table)] = {}; }

  void add_row(ScoreList& list, const Step& step, std::int64_t rows, std::span<const double> mass) override {
    double& dispersion = heads_[static_cast<std::size_t>(step.table)].dispersion;
    double* means = list.values(kMean).data();
    double* squares = list.values(kSquares).data();
    const double share = 1.0 / static_cast<double>(rows);
    for (std::size_t i = 0; i < mass.size(); ++i) {  // Welford's method: no differences of large sums
      const double off = mass[i] - means[i];
      means[i] += off * share;
      squares[i] += off * (mass[i] - means[i]);
    }
    for (const double value : mass)
      if (value > 0) dispersion -= value * std::log(value);
  }

  // Sample variance, as torch.var in the published code.
  static double variance(double squares, std::int64_t rows) {
    return rows > 1 ? squares / static_cast<double>(rows - 1) : 0;
  }

  void prepare(ScoreList& list, int table) override {
    Head& head = heads_[static_cast<std::size_t>(table)];
    head.earlier = std::max<std::int64_t>(list.size() - options().window, 0);
    const auto squares = list.values(kSquares).first(static_cast<std::size_t>(head.earlier));
    head.shift = variance(std::accumulate(squares.begin(), squares.end(), 0.0), rows_observed(table));
  }

  bool layers_share() const override { return true; }
  std::int64_t most_in_table() const override { return options().window + most_of_layer(options().ranked(0)); }
  std::int64_t most_of_layer(std::int64_t equal) const {
    return cake_.most > 0 ? static_cast<std::int64_t>(cake_.most * static_cast<double>(equal)) : kMostTokens;
  }
  std::int64_t most_ranked(int table, std::int64_t, std::int64_t seen) const override {
    return layer_shares(seen)[static_cast<std::size_t>(table / layout().per_layer)];
  }

  void rank(ScoreList& list, std::int64_t rows, std::span<double> scores) override {
    const auto means = list.values(kMean), squares = list.values(kSquares);
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = means[i] + cake_.gamma * variance(squares[i], rows);
  }

  // Returns what each layer keeps besides the window: layers * (budget - window) in proportion to preference.
  std::vector<std::int64_t> layer_shares(std::int64_t seen) const {
    const auto layers = static_cast<std::size_t>(layout().layers);
    std::vector<double> preference(layers);
    std::vector<std::int64_t> room(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      Head sum;
      for (int h = 0; h < layout().per_layer; ++h) {
        const Head& head = heads_[layer * static_cast<std::size_t>(layout().per_layer) + static_cast<std::size_t>(h)];
        sum.dispersion += head.dispersion;
        sum.shift += head.shift;
        room[layer] = std::max(room[layer], head.earlier);
      }
      room[layer] = std::min(room[layer], most_of_layer(options().ranked(seen)));
      preference[layer] = std::pow(sum.dispersion, 1 / cake_.tau1) * std::pow(sum.shift, 1 / cake_.tau2);
    }
    return divide(options().ranked(seen) * layout().layers, preference, room);
  }

  // Divides `total` into shares, rounded down and none above its room. What is left over goes equally to those that
  // have room, the remainder to the first of them.
  static std::vector<std::int64_t> divide(std::int64_t total, std::span<const double> preference,
                                          std::span<const std::int64_t> room) {
    const double sum = std::accumulate(preference.begin(), preference.end(), 0.0);
    std::vector<std::int64_t> shares(room.size());
    const bool sound = std::ranges::all_of(preference, [](double p) { return p >= 0; });  // no NaN either
    if (sound && std::isfinite(sum) && sum > 0)
      for (std::size_t l = 0; l < shares.size(); ++l)
        shares[l] = std::min(static_cast<std::int64_t>(preference[l] / sum * static_cast<double>(total)), room[l]);
    for (;;) {
      const std::int64_t left = total - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
      std::vector<std::size_t> open;
      for (std::size_t l = 0; l < shares.size(); ++l)
        if (shares[l] < room[l]) open.push_back(l);
      if (left <= 0 || open.empty()) return shares;
      const auto count = static_cast<std::int64_t>(open.size());
      for (std::int64_t k = 0; k < count; ++k) {
        const std::size_t l = open[static_cast<std::size_t>(k)];
        shares[l] = std::min(room[l], shares[l] + left / count + (k < left % count ? 1 : 0));
      }
    }
  }

  CakeOptions cake_;
  std::vector<Head> heads_;
};

Result<std::unique_ptr<RetentionPolicy>> make_cake(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const PromptWindowOptions window, PromptWindowOptions::read(given, 2));
  CakeOptions cake;
  KVASIR_ASSIGN_OR_RETURN(cake.gamma, given.get_double("gamma", 0, 1e9));
  KVASIR_ASSIGN_OR_RETURN(cake.tau1, given.get_double("tau1", 0.01, 1000));
  KVASIR_ASSIGN_OR_RETURN(cake.tau2, given.get_double("tau2", 0.01, 1000));
  if (given.value("most") != "0") {
    KVASIR_ASSIGN_OR_RETURN(cake.most, given.get_double("most", 1, 1000));
  }
  if (window.blocks && cake.most == 0)
    return invalid_argument(
        "policy 'cake': prompt=blocks bounds memory, and without most= a layer may take what all others leave; give "
        "most=2");
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits,
                          ScoredPolicy::Traits::read(given, {"budget", "window", "kernel"}));
  traits.values_per_token = 2;
  return {std::make_unique<CakePolicy>(std::move(traits), window, cake)};
}

}  // namespace

const PolicyInfo kCakePolicy{
    .name = "cake",
    .summary = "snapkv with layer budgets by how dispersed and how shifting a layer's attention is",
    .formula =
        "layers share layers * (budget - window) in proportion to H^(1/tau1) * V^(1/tau2), H the entropy and V the "
        "summed variance of the window's rows; score = mean + gamma * variance, pooled",
    .reference = "CAKE, Qin et al., arXiv 2503.12491",
    .options = kCakeOptions,
    .acts =
        "at the end of a prompt, or of each of its chunks, and every so many tokens written, for each KV head, with a "
        "view of all layers",
    .make = make_cake,
};

}  // namespace kvasir
