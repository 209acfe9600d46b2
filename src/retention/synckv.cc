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
constexpr std::size_t kMostSampled = static_cast<std::size_t>(kSampleRows / kSampleStep) * kSampleTop;
constexpr std::uint64_t kSampleSeed = 1;

// Rows before this one are sampled in no prompt of n tokens or more.
std::int64_t first_sample(std::int64_t n) {
  return std::max<std::int64_t>(kSampleTop, n - kSampleRows + kSampleStep - 1);
}

std::int64_t prompt_left(const PolicyChunk& chunk, int row) {
  return chunk.prompt_left + chunk.rows - 1 - row;
}

// Returns the `count` tokens of the largest mass among those for which `candidate` is true, ascending. Of equal ones
// the younger are taken. `candidate` is asked for each token in turn.
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
  if (count <= 0) return {};
  if (count < std::ssize(ids)) {
    std::vector<TokenIndex> ranked = ids;
    const auto last = ranked.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::ranges::nth_element(ranked, last, before);
    std::erase_if(ids, [&](TokenIndex id) { return before(*last, id); });
  }
  return {ids.begin(), ids.end()};  // a copy of exact capacity: state_bytes counts it
}

std::vector<TokenIndex> best_tokens(std::span<const double> mass, std::int64_t count) {
  return best_tokens(mass, count, [](TokenIndex) { return true; });
}

// The steps behind a prompt, one for each generated token, from 1.
struct Steps {
  TokenIndex prompt_end = 0;  // of the last prompt that came to its end; 0: none did
  std::int64_t stride = 1;
  std::int64_t recent = 0;

  // The step of a generated token; 0 if no prompt has ended yet.
  std::int64_t of(TokenIndex id) const { return prompt_end > 0 ? id - prompt_end + 1 : 0; }

  // Whether R heads choose their dynamic sets anew in a chunk's step. They count from the next step on.
  bool choose_in(const PolicyChunk& chunk) const {
    const std::int64_t step = of(chunk.first);
    return !chunk.prompt && step > 0 && step % stride == 0;
  }

  // The first token of the tail, which all heads read in a step: the tokens since the last choice, and at least the
  // last `recent`.
  TokenIndex tail_begin(std::int64_t step) const {
    const TokenIndex since = prompt_end + (step - 1) / stride * stride;
    return std::max<TokenIndex>(std::min(since, prompt_end + step - recent), 0);
  }
};

// One KV head of one layer.
struct Head {
  TokenIndex next = 0;
  TokenIndex prompt_end = 0;      // as Steps::prompt_end
  int rep = -1;                   // the head of the layer that decides for it: itself, of an R head. -1: not known yet
  std::vector<TokenIndex> fixed;  // static set of an R head; ascending
  std::vector<TokenIndex> dynamic;  // ascending
  // Without a profile: the top sets of the queries sampled so far, of the prompt that ends at sampled_end.
  TokenIndex sampled_end = 0;
  std::vector<std::uint32_t> samples;  // [queries][kSampleTop]

  void sample(std::span<const double> mass, TokenIndex end_of_prompt) {
    if (samples.size() >= kMostSampled) return;
    if (sampled_end != end_of_prompt) {
      samples.clear();
      sampled_end = end_of_prompt;
    }
    if (samples.capacity() == 0) samples.reserve(kMostSampled);
    const std::vector<TokenIndex> top = best_tokens(mass, kSampleTop);
    samples.insert(samples.end(), top.begin(), top.end());
  }

  // Chooses `k` tokens: the best of these are the static set, the others the first dynamic set.
  void choose_first(std::span<const double> mass, std::int64_t k, std::int64_t fixed_of_k) {
    fixed = best_tokens(mass, std::min(fixed_of_k, k));
    choose_next(mass, k - std::ssize(fixed), std::ssize(mass));
  }

  // Chooses the dynamic set anew: `count` tokens before `end` that are not in the static set.
  void choose_next(std::span<const double> mass, std::int64_t count, TokenIndex end) {
    auto next_fixed = fixed.begin();
    dynamic = best_tokens(mass, count, [&](TokenIndex id) {
      while (next_fixed != fixed.end() && *next_fixed < id) ++next_fixed;
      return id < end && (next_fixed == fixed.end() || *next_fixed != id);
    });
  }

  // Appends both sets before `tail`, then the tokens [tail, end), as ranges that do not touch.
  void append_reads(TokenIndex tail, TokenIndex end, std::vector<IndexRange>& ranges) const {
    const auto add = [&](const IndexRange& range) {
      if (!ranges.empty() && ranges.back().end == range.begin)
        ranges.back().end = range.end;
      else
        ranges.push_back(range);
    };
    for (auto a = fixed.begin(), b = dynamic.begin(); a != fixed.end() || b != dynamic.end();) {
      const bool first = b == dynamic.end() || (a != fixed.end() && *a < *b);
      const TokenIndex id = first ? *a++ : *b++;
      if (id >= tail) break;
      add({id, id + 1});
    }
    add({tail, end});
  }
};

// The KV heads of all layers, and which of them follow another.
class Heads {
 public:
  // Sets the R heads that are known beforehand: of layers in which no head follows, and of a profile, which may be
  // null.
  void begin(const TableLayout& layout, const SyncKvOptions& options, const HeadProfile* profile) {
    per_layer_ = layout.per_layer;
    reps_ = options.reps_of(per_layer_);
    heads_.assign(static_cast<std::size_t>(layout.tables()), {});
    for (int t = 0; t < layout.tables(); ++t) {
      const auto layer = static_cast<std::size_t>(t / per_layer_);
      if (!some_follow())
        (*this)[t].rep = t % per_layer_;
      else if (profile != nullptr && profile->kv_heads == per_layer_ && layer < profile->clusters.size())
        (*this)[t].rep = profile->clusters[layer].representative(t % per_layer_);
    }
  }

  Head& operator[](int t) { return heads_[static_cast<std::size_t>(t)]; }
  const Head& operator[](int t) const { return heads_[static_cast<std::size_t>(t)]; }
  int per_layer() const { return per_layer_; }

  // The state that all heads share.
  TokenIndex next() const { return heads_.empty() ? 0 : heads_.front().next; }
  TokenIndex prompt_end() const { return heads_.empty() ? 0 : heads_.front().prompt_end; }
  bool known() const { return !heads_.empty() && heads_.front().rep >= 0; }  // which heads are R heads
  bool some_follow() const { return per_layer_ > reps_; }

  // The table that decides for a table. REQUIRES: its `rep` is known.
  int leader(int t) const { return t - t % per_layer_ + (*this)[t].rep; }
  bool leads(int t) const { return (*this)[t].rep == t % per_layer_; }

  HeadClusters cluster(int layer) const;
  std::uint64_t bytes() const;
  void save(ByteWriter& out) const;
  // False for bytes that save does not write, or if other than `next` tokens were seen.
  bool restore(ByteReader& in, TokenIndex next, const SyncKvOptions& options);

 private:
  bool restore_head(int t, ByteReader& in, const SyncKvOptions& options);

  int per_layer_ = 1;
  int reps_ = 1;             // R heads of a layer
  std::vector<Head> heads_;  // [tables]
};

// Clusters a layer's heads by the sampled queries of the prompt.
HeadClusters Heads::cluster(int layer) const {
  const int heads = per_layer_;
  std::vector<double> overlap(static_cast<std::size_t>(heads) * static_cast<std::size_t>(heads));
  const std::size_t rows = (*this)[layer * heads].samples.size() / kSampleTop;
  const auto sample = [&](int head, std::size_t row) {
    return std::span((*this)[layer * heads + head].samples).subspan(row * kSampleTop, kSampleTop);
  };
  for (int a = 0; a < heads; ++a)
    for (int b = 0; b < heads; ++b) {
      double sum = 0;
      for (std::size_t row = 0; row < rows; ++row) sum += overlap_coefficient(sample(a, row), sample(b, row));
      overlap[static_cast<std::size_t>(a * heads + b)] = sum / static_cast<double>(rows);
    }
  return cluster_heads(overlap, heads, reps_, kSampleSeed + static_cast<std::uint64_t>(layer));
}

std::uint64_t Heads::bytes() const {
  std::uint64_t bytes = heads_.capacity() * sizeof(Head);
  for (const Head& head : heads_)
    bytes += (head.fixed.capacity() + head.dynamic.capacity()) * sizeof(TokenIndex) +
             head.samples.capacity() * sizeof(std::uint32_t);
  return bytes;
}

void Heads::save(ByteWriter& out) const {
  out.put(static_cast<std::uint64_t>(heads_.size()));
  for (const Head& head : heads_) {
    out.put(head.prompt_end);
    out.put(head.rep);
    out.put_vector(head.fixed);
    out.put_vector(head.dynamic);
    out.put(head.sampled_end);
    out.put_vector(head.samples);
  }
}

bool Heads::restore_head(int t, ByteReader& in, const SyncKvOptions& options) {
  Head& own = (*this)[t];
  const int rep = own.rep;  // of the profile, or of a layer without NR heads
  const auto is_set = [&](const std::vector<TokenIndex>& ids) {
    return std::ranges::adjacent_find(ids, std::greater_equal<>()) == ids.end() &&
           (ids.empty() || (ids.front() >= 0 && ids.back() < own.next));
  };
  if (!in.get(own.prompt_end) || !in.get(own.rep)) return false;
  if (own.prompt_end < 0 || own.prompt_end > own.next || own.prompt_end != prompt_end()) return false;
  if (own.rep < -1 || own.rep >= per_layer_ || (own.rep >= 0) != known()) return false;
  if (rep >= 0 && own.rep != rep) return false;
  const bool decides = own.rep < 0 || leads(t);
  const std::int64_t k = decides ? std::min(options.selected(own.prompt_end, per_layer_), own.next) : 0;
  const auto most = static_cast<std::uint64_t>(k);
  if (!in.get_vector(own.fixed, most) || !in.get_vector(own.dynamic, most - own.fixed.size())) return false;
  if (!in.get(own.sampled_end) || !in.get_vector(own.samples, kMostSampled)) return false;
  if (own.sampled_end < 0 || own.samples.size() % kSampleTop != 0 || (rep >= 0 && !own.samples.empty())) return false;
  for (const std::uint32_t id : own.samples)
    if (id >= own.next) return false;
  if (!own.samples.empty()) own.samples.reserve(kMostSampled);
  return is_set(own.fixed) && is_set(own.dynamic);
}

bool Heads::restore(ByteReader& in, TokenIndex next, const SyncKvOptions& options) {
  std::uint64_t count = 0;
  if (!in.get(count) || count != heads_.size()) return false;
  for (Head& head : heads_) head.next = next;
  const int tables = static_cast<int>(count);
  for (int t = 0; t < tables; ++t)
    if (!restore_head(t, in, options)) return false;
  for (int t = 0; t < tables; ++t) {
    const Head& own = (*this)[t];
    if (own.rep >= 0 && !leads(leader(t))) return false;
    // Heads of a layer have sampled the same queries.
    const Head& first = (*this)[t - t % per_layer_];
    if (own.samples.size() != first.samples.size() || own.sampled_end != first.sampled_end) return false;
  }
  return true;
}

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

  void begin(const TableLayout& layout) override { heads_.begin(layout, options_, profile_.get()); }

  TokenIndex seen() const override { return heads_.next(); }
  void retained(int t, int, std::vector<IndexRange>& ranges) const override {
    if (heads_[t].next > 0) ranges.push_back({0, heads_[t].next});
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
    if (chunk.prompt) return prompt_left(chunk, row) == 0 || is_sample(chunk, row);
    return steps().choose_in(chunk) && has_followers();
  }

  void observe(const PolicyChunk& chunk, int t, int row, std::span<const std::span<const double>> masses) override;
  bool reads(const PolicyChunk& chunk, int t, std::vector<IndexRange>& ranges) const override;
  int leader(int t) const override { return heads_[t].rep >= 0 ? heads_.leader(t) : -1; }
  TokenIndex settled(TokenIndex next, bool prompt) const override {
    // Wherever the last choice was made, should the prompt be given up here.
    if (prompt) return std::max<TokenIndex>(next + 1 - std::max(options_.recent, options_.stride), 0);
    const std::int64_t step = steps().of(next);
    return step > 0 ? steps().tail_begin(step) : 0;
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

  std::uint64_t state_bytes() const override { return heads_.bytes(); }
  std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int) const override {
    const auto tables = static_cast<std::uint64_t>(layout.tables());
    const int reps = options_.reps_of(layout.per_layer);
    if (layout.per_layer <= reps) return tables * sizeof(Head);
    const auto k = static_cast<std::uint64_t>(std::min(options_.selected(tokens, layout.per_layer), tokens));
    std::uint64_t sets = static_cast<std::uint64_t>(layout.layers) * static_cast<std::uint64_t>(reps);
    std::uint64_t samples = 0;
    if (profile_ == nullptr) {  // until a prompt has ended, any head may come to be an R head
      sets = tables;
      samples = tables * kMostSampled * sizeof(std::uint32_t);
    }
    return tables * sizeof(Head) + sets * k * sizeof(TokenIndex) + samples;
  }

 private:
  Capabilities capabilities() const override {
    return Capabilities().with<ObservesMasses, LeavesUnread, KnowsPromptEnd, DependsOnModel>(this).with<FollowsHeads>(
        options_.offloads ? this : nullptr);
  }

  Steps steps() const { return {heads_.prompt_end(), options_.stride, options_.recent}; }
  bool has_followers() const { return heads_.some_follow() && heads_.known(); }
  std::int64_t selected() const { return options_.selected(heads_.prompt_end(), heads_.per_layer()); }
  bool is_sample(const PolicyChunk& chunk, int row) const {
    const std::int64_t left = prompt_left(chunk, row);
    return chunk.prompt && !heads_.known() && left < kSampleRows && left % kSampleStep == 0 &&
           chunk.first + row >= static_cast<TokenIndex>(kSampleTop);
  }

  void save_state(ByteWriter& out) const override {
    out.put(unread_);
    out.put(seen());
    heads_.save(out);
  }
  bool restore_state(ByteReader& in) override {
    TokenIndex next = 0;
    return in.get(unread_) && in.get(next) && next >= 0 && heads_.restore(in, next, options_);
  }

  SyncKvOptions options_;
  std::shared_ptr<const HeadProfile> profile_;  // clusters of options_.reps_of heads; null: of the prompt
  Heads heads_;
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

void SyncKvPolicy::observe(const PolicyChunk& chunk, int t, int row, std::span<const std::span<const double>> masses) {
  Head& own = heads_[t];
  const std::span<const double> mass = masses.front();
  const TokenIndex id = chunk.first + row;
  // Nothing is wanted of a head that follows another, and what it left unread may not even be in memory.
  if (mass.empty() || (own.rep >= 0 && !heads_.leads(t))) return;
  KVASIR_CHECK(std::ssize(mass) == id + 1);
  if (is_sample(chunk, row)) own.sample(mass, chunk.end() + chunk.prompt_left);
  if (!heads_.some_follow()) return;
  if (chunk.prompt && prompt_left(chunk, row) == 0) {
    const std::int64_t k = options_.selected(id + 1, heads_.per_layer());
    own.choose_first(mass, k, options_.fixed(k));
  }
  if (steps().choose_in(chunk))
    own.choose_next(mass, selected() - options_.fixed(selected()), steps().tail_begin(steps().of(id) + 1));
}

bool SyncKvPolicy::reads(const PolicyChunk& chunk, int t, std::vector<IndexRange>& ranges) const {
  const std::int64_t step = steps().of(chunk.first);
  if (chunk.prompt || step == 0 || heads_[t].rep < 0 || heads_.leads(t)) return false;
  KVASIR_CHECK(chunk.rows == 1);
  const TokenIndex tail = steps().tail_begin(step);
  if (selected() >= tail) return false;  // all there is
  heads_[heads_.leader(t)].append_reads(tail, chunk.end(), ranges);
  return true;
}

void SyncKvPolicy::end_chunk(const PolicyChunk& chunk, int t, KeepPlan&) {
  Head& own = heads_[t];
  if (t == 0 && !chunk.prompt && has_followers())
    if (const std::int64_t step = steps().of(chunk.first); step > 0 && selected() < steps().tail_begin(step))
      unread_ = true;
  own.next = chunk.end();
  if (own.rep >= 0 && own.samples.capacity() > 0) own.samples = {};
}

void SyncKvPolicy::finish_chunk(const PolicyChunk& chunk, int t, KeepPlan&) {
  if (!chunk.ends_prompt()) return;
  Head& own = heads_[t];
  own.prompt_end = chunk.end();
  if (own.rep < 0 && own.sampled_end == chunk.end() && !own.samples.empty())
    own.rep = heads_.cluster(t / heads_.per_layer()).representative(t % heads_.per_layer());
  if (own.rep >= 0 && !heads_.leads(t)) own.fixed = own.dynamic = std::vector<TokenIndex>();
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
    .make = make_synckv,
};

}  // namespace kvasir
