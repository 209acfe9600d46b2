#include "replay/replay.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/status.h"
#include "kv/attention_mass.h"

namespace kvasir {
namespace {

// The sums behind the figures of one table or layer.
class Tally {
 public:
  void saw(double weight) { weight_ += weight; }
  void step(std::int64_t held, bool dropped) {
    ++steps_;
    held_ += held;
    most_held_ = std::max(most_held_, held);
    prunes_ += dropped;
  }
  ReplayFigures figures(std::int64_t heads) const {
    const auto steps = static_cast<double>(steps_);
    return {static_cast<double>(held_) / steps, most_held_, weight_ / (steps * static_cast<double>(heads)), prunes_};
  }

 private:
  std::int64_t steps_ = 0;
  std::int64_t held_ = 0;
  std::int64_t most_held_ = 0;
  std::int64_t prunes_ = 0;
  double weight_ = 0;
};

double sum_of(std::span<const float> weights) {
  double sum = 0;
  for (const float weight : weights) sum += static_cast<double>(weight);
  return sum;
}

Status stopped() {
  return Status(StatusCode::kCancelled, "stopped");
}

// -- By range: one decision for the sequence, which looks at no attention. A chunk changes nothing. --

Result<ReplayResult> replay_by_range(const AttentionTrace& trace, RetentionPolicy& policy,
                                     const AttentionTrace::Progress& progress) {
  std::vector<Tally> tallies(static_cast<std::size_t>(trace.layers()));
  std::vector<float> weights;
  IndexRange gone;
  for (TokenIndex id = 0; id < trace.tokens(); ++id) {
    if (progress && !progress(id, trace.tokens())) return stopped();
    KVASIR_CHECK(policy.rows_together(1) == 1);
    const IndexRange hidden = policy.advance();
    const std::int64_t gone_before = gone.end - gone.begin;
    gone = policy.dropped();
    if (gone.empty()) gone = {};
    KVASIR_CHECK(gone.begin >= 0 && gone.end <= id + 1);
    const std::int64_t gone_now = gone.end - gone.begin;
    weights.resize(static_cast<std::size_t>(id) + 1);
    for (std::int64_t layer = 0; layer < trace.layers(); ++layer) {
      Tally& tally = tallies[static_cast<std::size_t>(layer)];
      for (std::int64_t head = 0; head < trace.heads(); ++head) {
        trace.read(layer, head, id, weights);
        for (TokenIndex unseen = hidden.begin; unseen < hidden.end; ++unseen)
          weights[static_cast<std::size_t>(unseen)] = 0;
        tally.saw(sum_of(weights));
      }
      tally.step(id + 1 - gone_now, gone_now > gone_before);
    }
  }
  std::vector<TokenIndex> kept;
  for (TokenIndex id = 0; id < trace.tokens(); ++id)
    if (id < gone.begin || id >= gone.end) kept.push_back(id);
  ReplayResult result;
  for (const Tally& tally : tallies) {
    const ReplayFigures figures = tally.figures(trace.heads());
    result.layers.push_back({figures, {{figures, kept}}});
  }
  return result;
}

// -- By table. --

class TableReplay {
 public:
  TableReplay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options)
      : trace_(trace), policy_(policy), options_(options) {
    const std::int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : trace.heads();
    layout_.layers = static_cast<int>(trace.layers());
    // One decision for the whole sequence is the same in every layer.
    layout_.per_layer = policy.scope() == PolicyScope::kHead ? static_cast<int>(kv_heads) : 1;
    layout_.heads = static_cast<int>(trace.heads()) / layout_.per_layer;
    tables_.resize(static_cast<std::size_t>(layout_.tables()));
    prunes_.resize(static_cast<std::size_t>(layout_.layers));
  }

  Result<ReplayResult> run(const AttentionTrace::Progress& progress);

 private:
  struct Table {
    std::vector<TokenIndex> ids;  // what it holds; during a pass, the pass's tokens too
    KeepPlan plan;
    std::vector<std::int64_t> held;  // before the pass, then after each of its rows
    Tally tally;
  };

  PolicyPass pass_from(TokenIndex first) const;
  Status observe(const PolicyPass& pass, int index, const AttentionTrace::Progress& progress);
  void read_row(const PolicyPass& pass, int index, int row, std::size_t seen);
  void end_pass(const PolicyPass& pass, int index);
  void finish_pass(const PolicyPass& pass, int index);
  void count_steps(const PolicyPass& pass);
  static void apply(const KeepPlan& plan, std::vector<TokenIndex>& ids);
  ReplayResult result() const;

  Table& table(int index) { return tables_[static_cast<std::size_t>(index)]; }

  const AttentionTrace& trace_;
  RetentionPolicy& policy_;
  const ReplayOptions& options_;
  TableLayout layout_;
  std::vector<Table> tables_;
  std::vector<std::int64_t> prunes_;  // [layer]: steps at which any of its tables dropped a token
  // Of the row being observed.
  std::vector<float> row_;                   // its weights as recorded
  std::vector<std::vector<float>> weights_;  // [query head of the table]: those on what the table holds
  std::vector<double> mass_;
};

PolicyPass TableReplay::pass_from(TokenIndex first) const {
  PolicyPass pass{.first = first, .rows = 1};
  if (first >= options_.prefill) return pass;
  pass.prompt = true;
  const std::int64_t left = options_.prefill - first;
  pass.rows = static_cast<int>(options_.chunk > 0 ? std::min(options_.chunk, left) : left);
  pass.prompt_left = left - pass.rows;
  return pass;
}

void TableReplay::read_row(const PolicyPass& pass, int index, int row, std::size_t seen) {
  const int layer = index / layout_.per_layer;
  const int first_head = index % layout_.per_layer * layout_.heads;
  Table& table = this->table(index);
  const TokenIndex query = pass.first + row;
  row_.resize(static_cast<std::size_t>(query) + 1);
  weights_.resize(static_cast<std::size_t>(layout_.heads));
  for (int head = 0; head < layout_.heads; ++head) {
    trace_.read(layer, first_head + head, query, row_);
    std::vector<float>& weights = weights_[static_cast<std::size_t>(head)];
    weights.resize(seen);
    for (std::size_t i = 0; i < seen; ++i) weights[i] = row_[static_cast<std::size_t>(table.ids[i])];
    table.tally.saw(sum_of(weights));
  }
}

Status TableReplay::observe(const PolicyPass& pass, int index, const AttentionTrace::Progress& progress) {
  Table& table = this->table(index);
  const std::size_t held = table.ids.size();
  for (int row = 0; row < pass.rows; ++row) table.ids.push_back(pass.first + row);
  std::vector<const float*> heads(static_cast<std::size_t>(layout_.heads));
  for (int row = 0; row < pass.rows; ++row) {
    const std::int64_t tables = layout_.tables();
    if (progress && !progress(pass.first * tables + std::int64_t{index} * pass.rows + row, trace_.tokens() * tables))
      return stopped();
    const std::size_t seen = held + static_cast<std::size_t>(row) + 1;
    read_row(pass, index, row, seen);
    if (policy_.reduction() == MassReduction::kNone) continue;
    for (std::size_t head = 0; head < heads.size(); ++head) heads[head] = weights_[head].data();
    mass_.resize(seen);
    reduce_mass(heads, static_cast<int>(seen), policy_.reduction(), mass_);
    policy_.observe(pass, index, row, mass_);
  }
  return {};
}

void TableReplay::apply(const KeepPlan& plan, std::vector<TokenIndex>& ids) {
  KVASIR_CHECK(std::ranges::is_sorted(plan.drop) && std::ranges::includes(ids, plan.drop));
  auto next = plan.drop.begin();
  std::erase_if(ids, [&](TokenIndex id) {
    if (next == plan.drop.end() || *next != id) return false;
    ++next;
    return true;
  });
  KVASIR_CHECK(next == plan.drop.end());
  // Runs are a matter of pages; here they only must name tokens that are held.
  for (const KeepPlan::Move& move : plan.moves) KVASIR_CHECK(std::ranges::binary_search(ids, move.id));
}

void TableReplay::end_pass(const PolicyPass& pass, int index) {
  Table& table = this->table(index);
  const auto rows = static_cast<std::size_t>(pass.rows);
  table.held.resize(rows + 1);
  std::iota(table.held.begin(), table.held.end(), static_cast<std::int64_t>(table.ids.size() - rows));
  table.plan.clear();
  policy_.end_pass(pass, index, table.plan);
  apply(table.plan, table.ids);
  const auto after = static_cast<std::int64_t>(table.ids.size());
  if (!table.plan.held.empty()) {
    KVASIR_CHECK(table.plan.held.size() == rows && table.plan.held.back() == after);
    std::ranges::copy(table.plan.held, table.held.begin() + 1);
  }
  table.held.back() = after;
}

void TableReplay::finish_pass(const PolicyPass& pass, int index) {
  Table& table = this->table(index);
  table.plan.clear();
  policy_.finish_pass(pass, index, table.plan);
  apply(table.plan, table.ids);
  table.held.back() = static_cast<std::int64_t>(table.ids.size());
}

void TableReplay::count_steps(const PolicyPass& pass) {
  for (std::size_t row = 0; row < static_cast<std::size_t>(pass.rows); ++row)
    for (int layer = 0; layer < layout_.layers; ++layer) {
      bool any = false;
      for (int i = 0; i < layout_.per_layer; ++i) {
        Table& table = this->table(layer * layout_.per_layer + i);
        // Every step inserts one token.
        const bool dropped = table.held[row + 1] <= table.held[row];
        table.tally.step(table.held[row + 1], dropped);
        any = any || dropped;
      }
      prunes_[static_cast<std::size_t>(layer)] += any;
    }
}

ReplayResult TableReplay::result() const {
  ReplayResult result;
  result.by_head = policy_.scope() == PolicyScope::kHead;
  auto table = tables_.begin();
  for (int layer = 0; layer < layout_.layers; ++layer) {
    ReplayedLayer replayed;
    replayed.figures.prunes = prunes_[static_cast<std::size_t>(layer)];
    for (int i = 0; i < layout_.per_layer; ++i, ++table) {
      const ReplayFigures figures = table->tally.figures(layout_.heads);
      replayed.tables.push_back({figures, table->ids});
      replayed.figures.kept_mean += figures.kept_mean / layout_.per_layer;
      replayed.figures.kept_max = std::max(replayed.figures.kept_max, figures.kept_max);
      replayed.figures.recall += figures.recall / layout_.per_layer;
    }
    result.layers.push_back(std::move(replayed));
  }
  return result;
}

Result<ReplayResult> TableReplay::run(const AttentionTrace::Progress& progress) {
  policy_.begin(layout_);
  for (TokenIndex first = 0; first < trace_.tokens();) {
    const PolicyPass pass = pass_from(first);
    for (int index = 0; index < layout_.tables(); ++index) {
      KVASIR_RETURN_IF_ERROR(observe(pass, index, progress));
      end_pass(pass, index);
    }
    for (int index = 0; index < layout_.tables(); ++index) finish_pass(pass, index);
    count_steps(pass);
    first += pass.rows;
  }
  return result();
}

}  // namespace

Status check_replay_options(const AttentionTrace& trace, const ReplayOptions& options) {
  constexpr std::int64_t kMostLayers = 4096;
  if (trace.heads() > kMaxHeads || trace.layers() > kMostLayers)
    return unsupported("'{}' has {} layers of {} query heads; at most {} of {} can be replayed", trace.path(),
                       trace.layers(), trace.heads(), kMostLayers, kMaxHeads);
  if (options.prefill < 0 || options.prefill > trace.tokens())
    return invalid_argument("prefill={} must be from 0 to the {} tokens of '{}'", options.prefill, trace.tokens(),
                            trace.path());
  if (options.chunk < 0) return invalid_argument("chunk={} must be 0 or more", options.chunk);
  if (options.kv_heads < 0 || (options.kv_heads > 0 && trace.heads() % options.kv_heads != 0))
    return invalid_argument("the {} query heads of '{}' cannot be shared among {} KV heads; give a divisor",
                            trace.heads(), trace.path(), options.kv_heads);
  return {};
}

Result<ReplayResult> replay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options,
                            const AttentionTrace::Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_replay_options(trace, options));
  if (!policy.by_table()) return replay_by_range(trace, policy, progress);
  return TableReplay(trace, policy, options).run(progress);
}

}  // namespace kvasir
