// SyncKV: in every cluster of KV heads that attend alike, one head (R) reads everything and decides which tokens the
// others (NR) read. See retention/head_profile.h for the clusters.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/status.h"
#include "retention/registry.h"
#include "retention/synckv_options.h"

namespace kvasir {
namespace {

constexpr PolicyOption kSyncKvOptions[] = {
    {"mem", "30%", "above 0% to 100%", "share of the prompt's keys and values that heads read, R heads included"},
    {"budget", "-", kBudgetRange,
     "tokens that an NR head reads besides the newest, instead of mem; a share of the prompt"},
    {"static", "0.5", "0 to 1", "share of these tokens that is chosen once, when a prompt ends; 1: all"},
    {"stride", "5", "1 to 2^40", "steps from one choice of the other tokens to the next"},
    {"reps", "auto", "auto, or 1 to 256", "R heads of a layer; auto: a quarter of its KV heads, and at least 1"},
    {"recent", "32", "0 to 2^40", "newest tokens that every head reads, at least"},
    {"profile", "-", "a file", "of `kvasir profile`, which says who attends alike; none: the prompt's last queries do"},
    {"offload", "off", "off or file",
     "where keys and values go that NR heads do not read; off: they stay in memory, this is selection alone"},
};

// Without a profile: every kSampleStep-th of a prompt's last kSampleRows queries, if it sees more than kSampleTop
// tokens.
constexpr std::int64_t kSampleRows = 128;
constexpr std::int64_t kSampleStep = 4;
constexpr std::size_t kSampleTop = 64;
constexpr std::uint64_t kSampleSeed = 1;

class SyncKvPolicy final : public RetentionPolicy,
                           public ObservesMasses,
                           public LeavesUnread,
                           public FollowsHeads,
                           public KnowsPromptEnd,
                           public DependsOnModel {
 public:
  SyncKvPolicy(PolicyTraits traits, const SyncKvOptions& options, std::shared_ptr<const HeadProfile> profile)
      : RetentionPolicy(std::move(traits)),
        ObservesMasses({MassReduction::kMax}),
        options_(options),
        profile_(std::move(profile)) {}

  const ObservesMasses* observes_masses() const override { return this; }
  const LeavesUnread* leaves_unread() const override { return this; }
  const FollowsHeads* follows_heads() const override { return options_.offloads ? this : nullptr; }
  const KnowsPromptEnd* knows_prompt_end() const override { return this; }
  const DependsOnModel* depends_on_model() const override { return this; }

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<SyncKvPolicy>(*this); }

  Status check_model(const PolicyModel& model) const override;

  std::string remark(int kv_heads) const override {
    if (kv_heads <= options_.reps_of(kv_heads))
      return fmt::format("'{}' leaves nothing unread: no KV head of this model follows another", traits().spec);
    if (profile_ == nullptr && options_.mem != Budget::kWhole)
      return fmt::format("'{}' has no head profile: each text's heads are clustered by its own prompt", traits().spec);
    return {};
  }

  void begin(const TableLayout& layout) override {
    layout_ = layout;
    tables_.assign(static_cast<std::size_t>(layout.tables()), {});
    for (int t = 0; t < layout.tables(); ++t) {
      const int head = t % layout.per_layer;
      if (layout.per_layer <= options_.reps_of(layout.per_layer)) {
        table(t).rep = head;
      } else if (profile_ != nullptr && profile_->kv_heads == layout.per_layer) {
        const auto layer = static_cast<std::size_t>(t / layout.per_layer);
        if (layer < profile_->clusters.size()) table(t).rep = profile_->clusters[layer].representative(head);
      }
    }
  }

  TokenIndex seen() const override { return tables_.empty() ? 0 : tables_.front().next; }
  void retained(int t, int, std::vector<IndexRange>& ranges) const override {
    if (table(t).next > 0) ranges.push_back({0, table(t).next});
  }

  std::int64_t exact_prefix(std::int64_t n) const override {
    const std::int64_t first = first_sample(n);  // the last row is wanted in any case
    return std::max<std::int64_t>(profile_ != nullptr || first >= n ? n - 1 : first + (n - 1 - first) % kSampleStep, 0);
  }
  std::int64_t shared_prefix(std::int64_t n) const override {
    return std::max<std::int64_t>(profile_ != nullptr ? n - 1 : std::min(n - 1, first_sample(n)), 0);
  }
  bool all_read() const override { return !unread_; }

  bool wants(const PolicyChunk& chunk, int row, int) const override {
    if (chunk.prompt) return is_last(chunk, row) || is_sample(chunk, row);
    return is_request(chunk) && has_followers();
  }

  void observe(const PolicyChunk& chunk, int t, int row, std::span<const std::span<const double>> masses) override;
  bool reads(const PolicyChunk& chunk, int t, std::vector<IndexRange>& ranges) const override;
  int leader(int t) const override { return table(t).rep >= 0 ? rep_table(t) : -1; }
  TokenIndex settled(TokenIndex next, bool prompt) const override {
    // Wherever the last request was made, should the prompt be given up here.
    if (prompt) return std::max<TokenIndex>(next + 1 - std::max(options_.recent, options_.stride), 0);
    const std::int64_t step = step_of(next);
    return step > 0 ? tail_begin(step) : 0;
  }
  std::int64_t chosen() const override { return std::min<std::int64_t>(selected(), seen()); }
  Bounds bounds(int per_layer, std::int64_t tokens) const override {
    const int reps = options_.reps_of(per_layer);
    if (per_layer <= reps) return {per_layer, true, 0, 0};
    return {reps, profile_ != nullptr, std::min(options_.selected(tokens, per_layer), tokens),
            std::max(options_.recent, options_.stride)};
  }
  void end_chunk(const PolicyChunk& chunk, int t, KeepPlan& plan) override;
  void finish_chunk(const PolicyChunk& chunk, int t, KeepPlan& plan) override;

  std::uint64_t state_bytes() const override {
    std::uint64_t bytes = tables_.capacity() * sizeof(Table);
    for (const Table& table : tables_)
      bytes += (table.fixed.capacity() + table.dynamic.capacity()) * sizeof(TokenIndex) +
               table.samples.capacity() * sizeof(std::uint32_t);
    return bytes;
  }
  std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int) const override {
    const auto tables = static_cast<std::uint64_t>(layout.tables());
    const int reps = options_.reps_of(layout.per_layer);
    if (layout.per_layer <= reps) return tables * sizeof(Table);
    const auto k = static_cast<std::uint64_t>(std::min(options_.selected(tokens, layout.per_layer), tokens));
    std::uint64_t sets = static_cast<std::uint64_t>(layout.layers) * static_cast<std::uint64_t>(reps);
    std::uint64_t samples = 0;
    if (profile_ == nullptr) {  // until a prompt has ended, any head may come to be an R head
      sets = tables;
      samples = tables * kMostSamples * kSampleTop * sizeof(std::uint32_t);
    }
    return tables * sizeof(Table) + sets * k * sizeof(TokenIndex) + samples;
  }

 private:
  static constexpr std::size_t kMostSamples = static_cast<std::size_t>(kSampleRows / kSampleStep);

  // One KV head of one layer.
  struct Table {
    TokenIndex next = 0;
    TokenIndex prompt_end = 0;  // of the last prompt that came to its end; 0: none did
    int rep = -1;               // the head of the layer that decides for it: itself, of an R head. -1: not known yet
    std::vector<TokenIndex> fixed;    // static set; ascending
    std::vector<TokenIndex> dynamic;  // ascending
    // Without a profile: the top sets of the queries sampled so far, of the prompt that ends at sampled_end.
    TokenIndex sampled_end = 0;
    std::vector<std::uint32_t> samples;  // [queries][kSampleTop]
  };

  Table& table(int t) { return tables_[static_cast<std::size_t>(t)]; }
  const Table& table(int t) const { return tables_[static_cast<std::size_t>(t)]; }
  int rep_table(int t) const { return t - t % layout_.per_layer + table(t).rep; }
  bool is_rep(int t) const { return table(t).rep == t % layout_.per_layer; }
  bool has_followers() const {
    return layout_.per_layer > options_.reps_of(layout_.per_layer) && !tables_.empty() && tables_.front().rep >= 0;
  }

  // Rows before this one are sampled in no prompt of n tokens or more.
  static std::int64_t first_sample(std::int64_t n) {
    return std::max<std::int64_t>(kSampleTop, n - kSampleRows + kSampleStep - 1);
  }

  static std::int64_t prompt_left(const PolicyChunk& chunk, int row) {
    return chunk.prompt_left + chunk.rows - 1 - row;
  }
  static bool is_last(const PolicyChunk& chunk, int row) { return chunk.prompt && prompt_left(chunk, row) == 0; }
  bool is_sample(const PolicyChunk& chunk, int row) const {
    const std::int64_t left = prompt_left(chunk, row);
    return chunk.prompt && !tables_.empty() && tables_.front().rep < 0 && left < kSampleRows &&
           left % kSampleStep == 0 && chunk.first + row >= static_cast<TokenIndex>(kSampleTop);
  }

  // The step, from 1, of a generated token; 0 if no prompt has ended yet.
  std::int64_t step_of(TokenIndex id) const {
    const TokenIndex end = tables_.empty() ? 0 : tables_.front().prompt_end;
    return end > 0 ? id - end + 1 : 0;
  }
  bool is_request(const PolicyChunk& chunk) const {
    const std::int64_t step = step_of(chunk.first);
    return !chunk.prompt && step > 0 && step % options_.stride == 0;
  }
  // The first token of the tail in a step: those since the last request, and at least the last `recent`. What is
  // requested in a step counts from the next one on.
  TokenIndex tail_begin(std::int64_t step) const {
    const TokenIndex end = tables_.front().prompt_end;
    const TokenIndex since = end + (step - 1) / options_.stride * options_.stride;
    return std::max<TokenIndex>(std::min(since, end + step - options_.recent), 0);
  }
  std::int64_t selected() const { return options_.selected(tables_.front().prompt_end, layout_.per_layer); }

  void choose_first(Table& own, TokenIndex n, std::span<const double> mass);
  void choose_next(Table& own, std::int64_t step, std::span<const double> mass);
  HeadClusters cluster(int layer) const;

  void save_state(ByteWriter& out) const override;
  bool restore_state(ByteReader& in) override;
  bool restore_table(int t, ByteReader& in);

  SyncKvOptions options_;
  std::shared_ptr<const HeadProfile> profile_;  // clusters of options_.reps_of heads; null: of the prompt
  TableLayout layout_;
  std::vector<Table> tables_;
  bool unread_ = false;  // some row left a token unread
};

Status SyncKvPolicy::check_model(const PolicyModel& model) const {
  const int heads = model.kv_heads;
  const int reps = options_.reps_of(heads);
  if (model.sliding_window > 0)
    return unsupported("policy '{}' needs a model whose heads see the whole context; this one has a sliding window",
                       traits().spec);
  if (heads > 1 && reps > heads)
    return invalid_argument("policy '{}': reps={} is above the {} KV heads of the model", traits().spec, reps, heads);
  if (profile_ != nullptr) {
    if (profile_->kv_heads != heads || profile_->layers != model.layers ||
        (model.fingerprint != nullptr && profile_->fingerprint != *model.fingerprint))
      return invalid_argument("policy '{}': the head profile is of another model; make one of this model",
                              traits().spec);
  }
  if (heads > reps && options_.mem > 0 && options_.mem * heads < reps * Budget::kWhole)
    return invalid_argument(
        "policy '{}': mem={}% is below what {} of {} KV heads take, which read everything; give mem={}% or more",
        traits().spec, static_cast<double>(options_.mem) / 1e4, reps, heads, (100 * reps + heads - 1) / heads);
  return {};
}

// Tokens of the largest mass among those for which `candidate` is true, of equal ones the younger; as {token, ...} by
// mass, descending.
template <class Candidate>
std::vector<TokenIndex> best_tokens(std::span<const double> mass, std::int64_t count, const Candidate& candidate) {
  std::vector<TokenIndex> ids;
  for (TokenIndex id = 0; id < std::ssize(mass); ++id)
    if (candidate(id)) ids.push_back(id);
  const auto score = [&](TokenIndex id) {  // a NaN is the largest
    const double value = mass[static_cast<std::size_t>(id)];
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
  };
  const auto before = [&](TokenIndex a, TokenIndex b) {
    const double of_a = score(a), of_b = score(b);
    return of_a != of_b ? of_a > of_b : a > b;
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min<std::int64_t>(count, std::ssize(ids)));
  std::ranges::partial_sort(ids, end, before);
  return {ids.begin(), end};
}

// I_0: the best k; of these the first are the static set, the others the first dynamic set.
void SyncKvPolicy::choose_first(Table& own, TokenIndex n, std::span<const double> mass) {
  const std::int64_t k = options_.selected(n, layout_.per_layer);
  const std::vector<TokenIndex> best = best_tokens(mass, k, [](TokenIndex) { return true; });
  const auto middle =
      best.begin() + static_cast<std::ptrdiff_t>(std::min<std::int64_t>(options_.fixed(k), std::ssize(best)));
  own.fixed = std::vector<TokenIndex>(best.begin(), middle);
  own.dynamic = std::vector<TokenIndex>(middle, best.end());
  std::ranges::sort(own.fixed);
  std::ranges::sort(own.dynamic);
}

void SyncKvPolicy::choose_next(Table& own, std::int64_t step, std::span<const double> mass) {
  const TokenIndex end = tail_begin(step + 1);  // of the candidates
  auto next = own.fixed.begin();
  own.dynamic = best_tokens(mass, selected() - options_.fixed(selected()), [&](TokenIndex id) {
    while (next != own.fixed.end() && *next < id) ++next;
    return id < end && (next == own.fixed.end() || *next != id);
  });
  std::ranges::sort(own.dynamic);
}

void SyncKvPolicy::observe(const PolicyChunk& chunk, int t, int row, std::span<const std::span<const double>> masses) {
  Table& own = table(t);
  const std::span<const double> mass = masses.front();
  const TokenIndex id = chunk.first + row;
  // Of a head that follows nothing is wanted, and what it left unread may not even be in memory.
  if (mass.empty() || (own.rep >= 0 && !is_rep(t))) return;
  KVASIR_CHECK(std::ssize(mass) == id + 1);
  if (is_sample(chunk, row) && own.samples.size() < kMostSamples * kSampleTop) {
    if (const TokenIndex end = chunk.end() + chunk.prompt_left; own.sampled_end != end) {
      own.samples.clear();
      own.sampled_end = end;
    }
    if (own.samples.capacity() == 0) own.samples.reserve(kMostSamples * kSampleTop);
    const std::vector<TokenIndex> top = best_tokens(mass, kSampleTop, [](TokenIndex) { return true; });
    own.samples.insert(own.samples.end(), top.begin(), top.end());
    std::sort(own.samples.end() - static_cast<std::ptrdiff_t>(kSampleTop), own.samples.end());
  }
  const bool decides = layout_.per_layer > options_.reps_of(layout_.per_layer) && (own.rep < 0 || is_rep(t));
  if (!decides) return;
  if (is_last(chunk, row)) choose_first(own, id + 1, mass);
  if (is_request(chunk)) choose_next(own, step_of(id), mass);
}

// The clusters of a layer by the sampled queries of the prompt.
HeadClusters SyncKvPolicy::cluster(int layer) const {
  const int heads = layout_.per_layer;
  std::vector<double> overlap(static_cast<std::size_t>(heads) * static_cast<std::size_t>(heads));
  const std::size_t rows = table(layer * heads).samples.size() / kSampleTop;
  const auto sample = [&](int head, std::size_t row) {
    return std::span(table(layer * heads + head).samples).subspan(row * kSampleTop, kSampleTop);
  };
  for (int a = 0; a < heads; ++a)
    for (int b = 0; b < heads; ++b) {
      double sum = 0;
      for (std::size_t row = 0; row < rows; ++row) sum += overlap_coefficient(sample(a, row), sample(b, row));
      overlap[static_cast<std::size_t>(a * heads + b)] = sum / static_cast<double>(rows);
    }
  return cluster_heads(overlap, heads, options_.reps_of(heads), kSampleSeed + static_cast<std::uint64_t>(layer));
}

bool SyncKvPolicy::reads(const PolicyChunk& chunk, int t, std::vector<IndexRange>& ranges) const {
  const std::int64_t step = step_of(chunk.first);
  if (chunk.prompt || step == 0 || table(t).rep < 0 || is_rep(t)) return false;
  KVASIR_CHECK(chunk.rows == 1);
  const TokenIndex tail = tail_begin(step);
  if (selected() >= tail) return false;  // all there is
  const Table& rep = table(rep_table(t));
  const auto add = [&](TokenIndex id) {
    if (!ranges.empty() && ranges.back().end == id)
      ++ranges.back().end;
    else
      ranges.push_back({id, id + 1});
  };
  auto a = rep.fixed.begin(), b = rep.dynamic.begin();
  while (a != rep.fixed.end() || b != rep.dynamic.end()) {
    const bool first = b == rep.dynamic.end() || (a != rep.fixed.end() && *a < *b);
    const TokenIndex id = first ? *a++ : *b++;
    if (id >= tail) break;
    add(id);
  }
  if (!ranges.empty() && ranges.back().end == tail)
    ranges.back().end = chunk.end();
  else
    ranges.push_back({tail, chunk.end()});
  return true;
}

void SyncKvPolicy::end_chunk(const PolicyChunk& chunk, int t, KeepPlan&) {
  Table& own = table(t);
  if (t == 0 && !chunk.prompt && has_followers())
    if (const std::int64_t step = step_of(chunk.first); step > 0 && selected() < tail_begin(step)) unread_ = true;
  own.next = chunk.end();
  if (own.rep >= 0 && own.samples.capacity() > 0) own.samples = {};
}

void SyncKvPolicy::finish_chunk(const PolicyChunk& chunk, int t, KeepPlan&) {
  if (!chunk.ends_prompt()) return;
  Table& own = table(t);
  own.prompt_end = chunk.end();
  if (own.rep < 0 && own.sampled_end == chunk.end() && !own.samples.empty())
    own.rep = cluster(t / layout_.per_layer).representative(t % layout_.per_layer);
  if (own.rep >= 0 && !is_rep(t)) own.fixed = own.dynamic = std::vector<TokenIndex>();
}

void SyncKvPolicy::save_state(ByteWriter& out) const {
  out.put(unread_);
  out.put(seen());
  out.put(static_cast<std::uint64_t>(tables_.size()));
  for (const Table& table : tables_) {
    out.put(table.prompt_end);
    out.put(table.rep);
    out.put_vector(table.fixed);
    out.put_vector(table.dynamic);
    out.put(table.sampled_end);
    out.put_vector(table.samples);
  }
}

bool SyncKvPolicy::restore_table(int t, ByteReader& in) {
  Table& own = table(t);
  const int rep = own.rep;  // of the profile, or of a layer without NR heads
  const auto is_set = [&](const std::vector<TokenIndex>& ids) {
    return std::ranges::adjacent_find(ids, std::greater_equal<>()) == ids.end() &&
           (ids.empty() || (ids.front() >= 0 && ids.back() < own.next));
  };
  if (!in.get(own.prompt_end) || !in.get(own.rep)) return false;
  if (own.prompt_end < 0 || own.prompt_end > own.next || own.prompt_end != tables_.front().prompt_end) return false;
  if (own.rep < -1 || own.rep >= layout_.per_layer || (own.rep < 0) != (tables_.front().rep < 0)) return false;
  if (rep >= 0 && own.rep != rep) return false;
  const bool decides = own.rep < 0 || is_rep(t);
  const std::int64_t k = decides ? std::min(options_.selected(own.prompt_end, layout_.per_layer), own.next) : 0;
  const auto most = static_cast<std::uint64_t>(k);
  if (!in.get_vector(own.fixed, most) || !in.get_vector(own.dynamic, most - own.fixed.size())) return false;
  if (!in.get(own.sampled_end) || !in.get_vector(own.samples, kMostSamples * kSampleTop)) return false;
  if (own.sampled_end < 0 || own.samples.size() % kSampleTop != 0 || (rep >= 0 && !own.samples.empty())) return false;
  for (const std::uint32_t id : own.samples)
    if (id >= own.next) return false;
  if (!own.samples.empty()) own.samples.reserve(kMostSamples * kSampleTop);
  return is_set(own.fixed) && is_set(own.dynamic);
}

bool SyncKvPolicy::restore_state(ByteReader& in) {
  TokenIndex next = 0;
  std::uint64_t tables = 0;
  if (!in.get(unread_) || !in.get(next) || !in.get(tables) || next < 0 || tables != tables_.size()) return false;
  for (Table& table : tables_) table.next = next;
  for (int t = 0; t < layout_.tables(); ++t)
    if (!restore_table(t, in)) return false;
  for (int t = 0; t < layout_.tables(); ++t) {
    const Table& own = table(t);
    if (own.rep >= 0 && !is_rep(rep_table(t))) return false;
    // Heads of a layer have sampled the same queries.
    const Table& first = table(t - t % layout_.per_layer);
    if (own.samples.size() != first.samples.size() || own.sampled_end != first.sampled_end) return false;
  }
  return true;
}

Result<std::unique_ptr<RetentionPolicy>> make_synckv(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(SyncKvSetup setup, read_synckv_options(given));
  PolicyTraits traits;
  traits.scope = PolicyScope::kHead;
  traits.spec = setup.filled.canonical({setup.options.mem > 0 ? "mem" : "budget"});
  return {std::make_unique<SyncKvPolicy>(std::move(traits), setup.options, std::move(setup.profile))};
}

}  // namespace

const PolicyInfo kSyncKvPolicy{
    .name = "synckv",
    .summary = "some KV heads read everything and choose what those that attend like them read",
    .formula =
        "NR heads read the static and the dynamic set of their R head and the newest tokens; static = the best of its "
        "last prompt row, dynamic = the best of its row every stride steps, k in all: mem = r + (1 - r) * k / n, r the "
        "share of R heads",
    .reference = "SyncKV, A Syncopated Scheduling Approach to KV Cache Compression (under review)",
    .options = kSyncKvOptions,
    .acts = "while tokens are generated, for each KV head: it drops nothing, but leaves tokens unread",
    .evaluation_only = false,
    .make = make_synckv,
};

}  // namespace kvasir
