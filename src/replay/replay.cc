#include "replay/replay.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "backend/attention_mass.h"
#include "backend/backend.h"
#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "retention/query_accumulator.h"

namespace kvasir {
namespace {

// Accumulates the figures of one table or layer.
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

// Copies keys and values of tokens from a recording.
class TraceKv {
 public:
  TraceKv(const AttentionTrace& trace, const TableLayout& layout) : trace_(trace), layout_(layout) {}

  // Valid until the next call.
  ChunkKv read(int table, std::span<const TokenIndex> tokens, bool keys, bool values) {
    const auto dim = static_cast<std::size_t>(layout_.head_dim);
    copy(TraceArray::kKeys, table, tokens, keys ? dim : 0, keys_);
    copy(TraceArray::kValues, table, tokens, values ? dim : 0, values_);
    copy(TraceArray::kRotations, table, tokens, 1, turns_);
    rotations_.assign(turns_.begin(), turns_.end());
    return {layout_.lanes, static_cast<int>(tokens.size()), layout_.head_dim, keys_, values_, rotations_};
  }

 private:
  void copy(TraceArray array, int table, std::span<const TokenIndex> tokens, std::size_t size, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(layout_.lanes) * tokens.size() * size);
    std::span<float> rest = to;
    for (int lane = table * layout_.lanes; lane < (table + 1) * layout_.lanes && size > 0; ++lane)
      for (const TokenIndex token : tokens) {
        trace_.read(array, lane / trace_.shape().kv_heads, lane % trace_.shape().kv_heads, token, rest.first(size));
        rest = rest.subspan(size);
      }
  }

  const AttentionTrace& trace_;
  const TableLayout& layout_;
  std::vector<float> keys_, values_, turns_;
  std::vector<std::int64_t> rotations_;
};

// What a table holds, as recorded.
class RecordedHeldKv final : public HeldKv {
 public:
  RecordedHeldKv(TraceKv& recorded, int table, std::span<const TokenIndex> tokens)
      : recorded_(recorded), table_(table), tokens_(tokens) {}

  std::int64_t tokens() const override { return std::ssize(tokens_); }
  void visit(Sides sides, const Visit& visit) override {
    constexpr std::size_t kBlock = 256;
    for (std::size_t first = 0; first < tokens_.size(); first += kBlock) {
      const auto block = tokens_.subspan(first, std::min(kBlock, tokens_.size() - first));
      visit({static_cast<std::int64_t>(first), 0, recorded_.read(table_, block, has_keys(sides), has_values(sides))});
    }
  }
  void projected_norms(std::span<double>) override { KVASIR_CHECK(false); }  // check_replayable refuses those who ask

 private:
  TraceKv& recorded_;
  int table_;
  std::span<const TokenIndex> tokens_;
};

class Replay {
 public:
  Replay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options)
      : trace_(trace),
        policy_(policy),
        observer_(policy.as<ObservesMasses>()),
        unread_(policy.as<LeavesUnread>()),
        kv_(policy.as<ReadsKv>()),
        held_(policy.as<ReadsHeldKv>()),
        queries_(policy.as<SumsQueries>()),
        options_(options) {
    const std::int64_t kv_heads = replayed_kv_heads(trace, options);
    const PolicyScope scope = policy.traits().scope;
    layout_.layers = scope == PolicyScope::kSequence ? 1 : static_cast<int>(trace.layers());
    layout_.per_layer = scope == PolicyScope::kHead ? static_cast<int>(kv_heads) : 1;
    layout_.heads = static_cast<int>(trace.heads()) / layout_.per_layer;
    layout_.lanes = static_cast<int>(trace.layers() * kv_heads) / layout_.tables();
    layout_.head_dim = static_cast<int>(trace.shape().head_dim);
    if (scope != PolicyScope::kSequence) layout_.turns = trace.turns();
    tables_.resize(static_cast<std::size_t>(layout_.tables()));
    tallies_.resize(static_cast<std::size_t>(trace.layers() * layout_.per_layer));
    prunes_.resize(static_cast<std::size_t>(trace.layers()));
    masses_.resize(reductions_of(policy).size());
  }

  Result<ReplayResult> run(const AttentionTrace::Progress& progress);

 private:
  struct Table {
    std::vector<TokenIndex> tokens;  // tokens held; during a chunk, the chunk's tokens too
    KeepPlan plan;
    std::vector<std::int64_t> held;  // before the chunk, then after each of its rows
    std::vector<IndexRange> reads;   // what the row of a generated token reads; empty: all
  };

  PolicyChunk chunk_from(TokenIndex first) const;
  Status observe(const PolicyChunk& chunk, int index, const AttentionTrace::Progress& progress);
  std::span<const TokenIndex> seen_by(const PolicyChunk& chunk, const Table& table, int row);
  static bool is_read(const Table& table, TokenIndex token) {
    if (table.reads.empty()) return true;
    const auto range = std::ranges::upper_bound(table.reads, token, {}, &IndexRange::end);
    return range != table.reads.end() && range->begin <= token;
  }
  void read_row(std::int64_t layer, const Table& table, int head_group, TokenIndex query,
                std::span<const TokenIndex> seen);
  void show_row(const PolicyChunk& chunk, int index, int row, int seen);
  void show_queries(const PolicyChunk& chunk);
  void show_kv(const PolicyChunk& chunk);
  void show_held(const PolicyChunk& chunk);
  void end_chunk(const PolicyChunk& chunk, int index);
  void finish_chunk(const PolicyChunk& chunk, int index);
  void count_steps(const PolicyChunk& chunk);
  static void apply(const KeepPlan& plan, std::vector<TokenIndex>& tokens);
  ReplayResult result() const;

  Table& table(int index) { return tables_[static_cast<std::size_t>(index)]; }
  // Returns the table that decides for a head group of a layer.
  int table_of(std::int64_t layer, int head_group) const {
    return layout_.layers == 1 ? head_group : static_cast<int>(layer) * layout_.per_layer + head_group;
  }
  Tally& tally(std::int64_t layer, int head_group) {
    return tallies_[static_cast<std::size_t>(layer * layout_.per_layer + head_group)];
  }

  const AttentionTrace& trace_;
  RetentionPolicy& policy_;
  ObservesMasses* observer_;    // null: the policy ignores attention
  const LeavesUnread* unread_;  // null: its rows read all
  ReadsKv* kv_;                 // null: it reads neither keys nor values of a chunk
  ReadsHeldKv* held_;           // null: it reads neither keys nor values of what is held
  SumsQueries* queries_;        // null: it does not look at queries
  const ReplayOptions& options_;
  TableLayout layout_;
  std::vector<Table> tables_;
  std::vector<Tally> tallies_;        // [layer][head group]: several may share a table
  std::vector<std::int64_t> prunes_;  // [layer]: steps at which any of its tables dropped a token
  std::vector<IndexRange> hidden_;    // [rows of the chunk]
  // For the row being observed:
  std::vector<TokenIndex> visible_;
  std::vector<float> row_;                   // its weights as recorded
  std::vector<std::vector<float>> weights_;  // [query head of the table]: weights on the tokens the row sees
  std::vector<std::vector<double>> masses_;  // [reduction]
};

PolicyChunk Replay::chunk_from(TokenIndex first) const {
  PolicyChunk chunk{.first = first, .rows = 1};
  if (first >= options_.prefill) return chunk;
  chunk.prompt = true;
  const std::int64_t left = options_.prefill - first;
  // The grid is anchored at token 0, even if a policy asks for shorter chunks.
  const std::int64_t want = options_.chunk > 0 ? std::min(options_.chunk - first % options_.chunk, left) : left;
  chunk.rows = chunk_rows(policy_, static_cast<int>(want));
  KVASIR_CHECK(chunk.rows >= 1 && chunk.rows <= want);
  chunk.prompt_left = left - chunk.rows;
  return chunk;
}

// Returns the tokens that a row sees: those held before the chunk, plus the chunk's up to the row, minus hidden ones.
std::span<const TokenIndex> Replay::seen_by(const PolicyChunk& chunk, const Table& table, int row) {
  const std::size_t behind = table.tokens.size() - static_cast<std::size_t>(chunk.rows - 1 - row);
  const IndexRange hidden = hidden_[static_cast<std::size_t>(row)];
  if (hidden.empty()) return std::span(table.tokens).first(behind);
  KVASIR_CHECK(hidden.begin >= 0 && hidden.end <= chunk.first + row);
  visible_.clear();
  for (const TokenIndex token : std::span(table.tokens).first(behind))
    if (token < hidden.begin || token >= hidden.end) visible_.push_back(token);
  return visible_;
}

void Replay::read_row(std::int64_t layer, const Table& table, int head_group, TokenIndex query,
                      std::span<const TokenIndex> seen) {
  row_.resize(static_cast<std::size_t>(query) + 1);
  weights_.resize(static_cast<std::size_t>(layout_.heads));
  for (int head = 0; head < layout_.heads; ++head) {
    trace_.read(layer, head_group * layout_.heads + head, query, row_);
    std::vector<float>& weights = weights_[static_cast<std::size_t>(head)];
    weights.resize(seen.size());
    for (std::size_t i = 0; i < seen.size(); ++i)
      weights[i] = is_read(table, seen[i]) ? row_[static_cast<std::size_t>(seen[i])] : 0;
    tally(layer, head_group).saw(sum_of(weights));
  }
}

// Passes the recorded weights of a row to the policy.
void Replay::show_row(const PolicyChunk& chunk, int index, int row, int seen) {
  if (observer_ == nullptr || !observer_->wants_row(chunk, row)) return;
  std::vector<const float*> heads;
  for (const std::vector<float>& weights : weights_) heads.push_back(weights.data());
  std::vector<std::span<const double>> shown(masses_.size());
  for (std::size_t r = 0; r < masses_.size(); ++r) {
    if (!observer_->wants(chunk, row, static_cast<int>(r))) continue;
    masses_[r].resize(static_cast<std::size_t>(seen));
    reduce_mass(heads, seen, observer_->reductions()[r], masses_[r]);
    shown[r] = masses_[r];
  }
  observer_->observe(chunk, index, row, shown);
}

Status Replay::observe(const PolicyChunk& chunk, int index, const AttentionTrace::Progress& progress) {
  Table& table = this->table(index);
  for (int row = 0; row < chunk.rows; ++row) table.tokens.push_back(chunk.first + row);
  const int head_group = index % layout_.per_layer;
  const std::int64_t tables = layout_.tables();
  for (int row = 0; row < chunk.rows; ++row) {
    if (progress && !progress(chunk.first * tables + std::int64_t{index} * chunk.rows + row, trace_.tokens() * tables))
      return stopped();
    const std::span<const TokenIndex> seen = seen_by(chunk, table, row);
    for (std::int64_t layer = 0; layer < trace_.layers(); ++layer)
      if (table_of(layer, head_group) == index) read_row(layer, table, head_group, chunk.first + row, seen);
    show_row(chunk, index, row, static_cast<int>(seen.size()));
  }
  return {};
}

void Replay::show_queries(const PolicyChunk& chunk) {
  std::vector<int> rows;
  for (int row = 0; row < chunk.rows; ++row)
    if (queries_->wants_queries(chunk, row)) rows.push_back(row);
  if (rows.empty()) return;
  const auto all = static_cast<int>(trace_.layers() * trace_.heads());
  QueryAccumulator sums;
  sums.begin(all, layout_.head_dim, std::ssize(rows));
  row_.resize(static_cast<std::size_t>(layout_.head_dim));
  for (int head = 0; head < all; ++head)
    for (const int row : rows) {
      trace_.read(TraceArray::kQueries, head / trace_.heads(), head % trace_.heads(), chunk.first + row, row_);
      sums.add(head, row_);
    }
  const int own = all / layout_.tables();
  for (int index = 0; index < layout_.tables(); ++index)
    queries_->read_queries(chunk, index, sums.of(index * own, own));
}

void Replay::show_kv(const PolicyChunk& chunk) {
  std::vector<TokenIndex> tokens(static_cast<std::size_t>(chunk.rows));
  std::iota(tokens.begin(), tokens.end(), chunk.first);
  TraceKv recorded(trace_, layout_);
  for (int index = 0; index < layout_.tables(); ++index)
    kv_->read_kv(chunk, index, recorded.read(index, tokens, kv_->wants_keys(), kv_->wants_values()));
}

void Replay::show_held(const PolicyChunk& chunk) {
  TraceKv recorded(trace_, layout_);
  for (int index = 0; index < layout_.tables(); ++index) {
    if (!held_->wants_held(chunk, index)) continue;
    RecordedHeldKv kv(recorded, index, table(index).tokens);
    held_->read_held(chunk, index, kv);
  }
}

void Replay::apply(const KeepPlan& plan, std::vector<TokenIndex>& tokens) {
  TokenIndex end = 0;
  for (const IndexRange& range : plan.drop) {
    KVASIR_CHECK(!range.empty() && range.begin >= end);
    end = range.end;
  }
  KVASIR_CHECK(plan.drop.empty() || (!tokens.empty() && end <= tokens.back() + 1));
  auto next = plan.drop.begin();
  std::erase_if(tokens, [&](TokenIndex token) {
    while (next != plan.drop.end() && next->end <= token) ++next;
    return next != plan.drop.end() && next->begin <= token;
  });
  // Moves only matter for pages; here they are only checked to name held tokens.
  for (const KeepPlan::Move& move : plan.moves) KVASIR_CHECK(std::ranges::binary_search(tokens, move.index));
}

void Replay::end_chunk(const PolicyChunk& chunk, int index) {
  Table& table = this->table(index);
  const auto rows = static_cast<std::size_t>(chunk.rows);
  table.held.resize(rows + 1);
  std::iota(table.held.begin(), table.held.end(), static_cast<std::int64_t>(table.tokens.size() - rows));
  table.plan.clear();
  policy_.end_chunk(chunk, index, table.plan);
  apply(table.plan, table.tokens);
  const auto after = static_cast<std::int64_t>(table.tokens.size());
  if (!table.plan.held.empty()) {
    KVASIR_CHECK(table.plan.held.size() == rows && table.plan.held.back() == after);
    std::ranges::copy(table.plan.held, table.held.begin() + 1);
  }
  table.held.back() = after;
}

void Replay::finish_chunk(const PolicyChunk& chunk, int index) {
  Table& table = this->table(index);
  table.plan.clear();
  policy_.finish_chunk(chunk, index, table.plan);
  apply(table.plan, table.tokens);
  table.held.back() = static_cast<std::int64_t>(table.tokens.size());
}

void Replay::count_steps(const PolicyChunk& chunk) {
  for (std::size_t row = 0; row < static_cast<std::size_t>(chunk.rows); ++row)
    for (std::int64_t layer = 0; layer < trace_.layers(); ++layer) {
      bool any = false;
      for (int group = 0; group < layout_.per_layer; ++group) {
        const Table& table = this->table(table_of(layer, group));
        // Every step inserts one token.
        const bool dropped = table.held[row + 1] <= table.held[row];
        tally(layer, group).step(table.held[row + 1], dropped);
        any = any || dropped;
      }
      prunes_[static_cast<std::size_t>(layer)] += any;
    }
}

ReplayResult Replay::result() const {
  ReplayResult result;
  result.by_head = policy_.traits().scope == PolicyScope::kHead;
  auto tally = tallies_.begin();
  for (std::int64_t layer = 0; layer < trace_.layers(); ++layer) {
    ReplayedLayer replayed;
    replayed.figures.prunes = prunes_[static_cast<std::size_t>(layer)];
    for (int group = 0; group < layout_.per_layer; ++group, ++tally) {
      const ReplayFigures figures = tally->figures(layout_.heads);
      replayed.tables.push_back({figures, tables_[static_cast<std::size_t>(table_of(layer, group))].tokens});
      replayed.figures.kept_mean += figures.kept_mean / layout_.per_layer;
      replayed.figures.kept_max = std::max(replayed.figures.kept_max, figures.kept_max);
      replayed.figures.recall += figures.recall / layout_.per_layer;
    }
    result.layers.push_back(std::move(replayed));
  }
  return result;
}

Result<ReplayResult> Replay::run(const AttentionTrace::Progress& progress) {
  policy_.begin(layout_);
  for (TokenIndex first = 0; first < trace_.tokens();) {
    const PolicyChunk chunk = chunk_from(first);
    hidden_.resize(static_cast<std::size_t>(chunk.rows));
    find_hidden(policy_, chunk, hidden_);
    for (int index = 0; index < layout_.tables() && unread_ != nullptr; ++index) {
      table(index).reads.clear();  // before any table observes
      static_cast<void>(unread_->reads(chunk, index, table(index).reads));
    }
    for (int index = 0; index < layout_.tables(); ++index) KVASIR_RETURN_IF_ERROR(observe(chunk, index, progress));
    if (queries_ != nullptr) show_queries(chunk);
    if (kv_ != nullptr) show_kv(chunk);
    if (held_ != nullptr) show_held(chunk);
    for (int index = 0; index < layout_.tables(); ++index) end_chunk(chunk, index);
    for (int index = 0; index < layout_.tables(); ++index) finish_chunk(chunk, index);
    count_steps(chunk);
    first += chunk.rows;
  }
  return result();
}

}  // namespace

std::int64_t replayed_kv_heads(const AttentionTrace& trace, const ReplayOptions& options) {
  if (options.kv_heads > 0) return options.kv_heads;
  return trace.shape().has_kv() ? trace.shape().kv_heads : trace.heads();
}

Status check_replay_options(const AttentionTrace& trace, const ReplayOptions& options) {
  constexpr std::int64_t kMostLayers = 4096;
  if (trace.heads() > kMaxHeads || trace.layers() > kMostLayers)
    return unsupported("'{}' has {} layers of {} query heads; at most {} of {} can be replayed", trace.path(),
                       trace.layers(), trace.heads(), kMostLayers, kMaxHeads);
  if (options.prefill < 0 || options.prefill > trace.tokens())
    return invalid_argument("prefill={} must be from 0 to the {} of '{}'", options.prefill,
                            counted(trace.tokens(), "token"), trace.path())
        .about({"prefill"});
  if (options.chunk < 0) return invalid_argument("chunk={} must be 0 or more", options.chunk).about({"chunk"});
  if (options.kv_heads < 0 || (options.kv_heads > 0 && trace.heads() % options.kv_heads != 0))
    return invalid_argument("the {} query heads of '{}' cannot be shared among {} KV heads; give a divisor",
                            trace.heads(), trace.path(), options.kv_heads)
        .about({"kv_heads"});
  return {};
}

Status check_replayable(const AttentionTrace& trace, const RetentionPolicy& policy, const ReplayOptions& options) {
  const std::string& spec = policy.traits().spec;
  if (policy.as<RanksSegments>() != nullptr)
    return unsupported(
               "policy '{}' chooses what to read where queries and keys are, which replay cannot do; replay another "
               "policy",
               spec)
        .about({"policy"});
  if (policy.as<RepeatsText>() != nullptr)
    return unsupported("policy '{}' has the model repeat the text, which replay cannot do; replay another policy", spec)
        .about({"policy"});
  if (const ReadsHeldKv* held = policy.as<ReadsHeldKv>(); held != nullptr && held->projects_values())
    return unsupported(
               "policy '{}' weighs values by the model's output projection, which recordings lack; omit "
               "value=wo or norm=wo",
               spec)
        .about({"policy"});
  if (policy.as<ReadsKv>() == nullptr && policy.as<ReadsHeldKv>() == nullptr && policy.as<SumsQueries>() == nullptr)
    return {};
  if (!trace.shape().has_kv())
    return unsupported(
               "policy '{}' reads keys, values or queries, and '{}' has attention alone; record the text again with "
               "'kvasir record --with-keys'",
               spec, trace.path())
        .about({"policy"});
  if (policy.as<SumsQueries>() != nullptr && policy.as<ReadsHeldKv>() != nullptr && !trace.shape().has_turns())
    return unsupported(
               "policy '{}' needs the angles of the model's positions, and '{}' has none; record the text again with "
               "'kvasir record --with-keys'",
               spec, trace.path())
        .about({"policy"});
  if (replayed_kv_heads(trace, options) == trace.shape().kv_heads) return {};
  return invalid_argument("policy '{}' reads keys, values or queries, which '{}' has for {}, not {}", spec,
                          trace.path(), counted(trace.shape().kv_heads, "KV head"), options.kv_heads)
      .about({"kv_heads"});
}

Result<ReplayResult> replay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options,
                            const AttentionTrace::Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_replay_options(trace, options));
  KVASIR_RETURN_IF_ERROR(check_replayable(trace, policy, options));
  KVASIR_RETURN_IF_ERROR(check_model(
      policy, {nullptr, static_cast<int>(trace.layers()), static_cast<int>(replayed_kv_heads(trace, options)), 0,
               static_cast<int>(trace.heads()), static_cast<int>(trace.shape().head_dim)}));
  return Replay(trace, policy, options).run(progress);
}

}  // namespace kvasir
