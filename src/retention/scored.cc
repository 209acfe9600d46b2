#include "retention/scored.h"

#include <cmath>

#include "base/status.h"

namespace kvasir {

Result<KeepRule> KeepRule::read(const PolicyOptions& given) {
  KeepRule rule;
  KVASIR_ASSIGN_OR_RETURN(rule.budget, given.get_budget("budget", kMostTokens));
  if (given.accepts("sinks")) {
    KVASIR_ASSIGN_OR_RETURN(rule.sinks, given.get_int("sinks", 0, kMostTokens));
  }
  if (given.accepts("recent")) {
    KVASIR_ASSIGN_OR_RETURN(rule.recent, given.get_int("recent", 0, kMostTokens));
  }
  if (given.accepts("every")) {
    KVASIR_ASSIGN_OR_RETURN(rule.every, given.get_int("every", 0, kMostTokens));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, given.get_protect(rule.budget.tokens));
  const std::string_view first = protect > rule.sinks ? "protect" : "sinks";
  rule.sinks = std::max(rule.sinks, protect);
  if (!rule.budget.is_share() && rule.sinks + rule.recent > rule.budget.tokens)
    return invalid_argument("policy '{}': {}={} and recent={} together are above budget={}; lower them", given.name(),
                            first, rule.sinks, rule.recent, rule.budget.tokens);
  return rule;
}

void KeepRule::drop_excess(ScoreList& list, std::int64_t seen, std::span<const double> scores) const {
  const std::int64_t held = list.size();
  const std::int64_t excess = this->excess(held, seen);
  if (excess > 0) list.drop_lowest(excess, sinks, held - recent, scores);
}

std::int64_t KeepRule::undropped(std::int64_t n) const {
  // While all tokens are held the excess never shrinks, so its first token can be found by bisection.
  std::int64_t good = 0;
  for (std::int64_t bad = n + 1; bad - good > 1;) {
    const std::int64_t middle = good + (bad - good) / 2;
    (excess(middle, middle) > 0 ? bad : good) = middle;
  }
  return good;
}

namespace {

PolicyTraits policy_traits(const ScoredPolicy::Traits& scored) {
  return {.spec = scored.spec,
          .scope = scored.scope,
          .positions = scored.positions,
          .chunk = 256,
          .run_capacities = scored.run_capacities,
          .compacts = true,
          .holds_prompts = scored.whole || scored.acts != ScoredPolicy::Acts::kAlways};
}

}  // namespace

Result<ScoredPolicy::Traits> ScoredPolicy::Traits::read(const PolicyOptions& given,
                                                        std::initializer_list<std::string_view> always) {
  Traits traits{.spec = given.canonical(always)};
  if (given.accepts("pos")) {
    KVASIR_ASSIGN_OR_RETURN(traits.positions, given.get_positions());
  }
  if (given.accepts("heads")) {
    KVASIR_ASSIGN_OR_RETURN(traits.scope, given.get_scope());
  }
  return traits;
}

ScoredPolicy::ScoredPolicy(const Traits& traits)
    : RetentionPolicy(policy_traits(traits)),
      ObservesMasses(traits.reduction ? std::vector{*traits.reduction} : std::vector<MassReduction>()),
      ReadsKv(traits.keys, traits.values),
      acts_(traits.acts),
      values_per_token_(traits.values_per_token),
      by_row_(traits.by_row) {
  KVASIR_CHECK(!traits.reduction || traits.scope != PolicyScope::kSequence);
  KVASIR_CHECK(!by_row_ || (values_per_token_ > 0 && traits.reduction && !traits.keys && !traits.values));
}

Capabilities ScoredPolicy::capabilities() const {
  return Capabilities()
      .with<JoinsAnother>(this)
      .with<ObservesMasses>(reductions().empty() ? nullptr : this)
      .with<ReadsKv>(wants_keys() || wants_values() ? this : nullptr);
}

void ScoredPolicy::begin(const TableLayout& layout) {
  layout_ = layout;
  lists_.assign(static_cast<std::size_t>(layout.tables()), ScoreList(values_per_token_));
}

void ScoredPolicy::retained(int table, int run, std::vector<IndexRange>& ranges) const {
  const ScoreList& list = this->list(table);
  if (run == 0) add_ranges(list.tokens().first(static_cast<std::size_t>(list.size())), ranges);
}

std::int64_t ScoredPolicy::exact_prefix(std::int64_t n) const {
  if (as<ReadsKv>() != nullptr || as<SumsQueries>() != nullptr) return 0;
  n = std::max<std::int64_t>(n, 0);
  if (acts_ == Acts::kAlways) return reductions().empty() ? undropped(n) : 0;
  if (!reductions().empty() && !by_row_) return 0;
  if (acts_ == Acts::kWhileGenerating) return n;
  // The prompt's last row is observed, and tokens may be dropped there.
  return reductions().empty() && undropped(n) == n ? n : std::max<std::int64_t>(n - 1, 0);
}

void ScoredPolicy::score(ScoreList& list, const Step&, std::span<const double> mass) {
  double* scores = list.values().data();
  for (std::size_t i = 0; i < mass.size(); ++i) scores[i] += mass[i];
}

bool ScoredPolicy::acts(const Step& step) const {
  switch (acts_) {
    case Acts::kAlways: return true;
    case Acts::kAtPromptEnd: return step.ends_prompt();
    case Acts::kWhileGenerating: return !step.chunk.prompt;
  }
  return false;
}

bool ScoredPolicy::wants(const PolicyChunk& chunk, int row, int) const {
  return !by_row_ || acts({chunk, 0, row});
}

void ScoredPolicy::insert(ScoreList& list, const Step& step) {
  list.insert_next();
  if (acts(step)) prune(list, step);
  if (step.chunk.rows > 1) list.note_held();
}

// Returns the most tokens that a list holds while a chunk of `rows` rows is under way; kNoLimit: unknown.
std::size_t ScoredPolicy::most_held(int rows) const {
  const std::optional<std::int64_t> bound = this->bound();
  return acts_ == Acts::kAlways && bound ? static_cast<std::size_t>(*bound - 1 + rows) : kNoLimit;
}

void ScoredPolicy::observe(const PolicyChunk& chunk, int table, int row,
                           std::span<const std::span<const double>> masses) {
  KVASIR_CHECK(masses.size() == 1);
  const std::span<const double> mass = masses.front();
  ScoreList& list = this->list(table);
  list.enter(chunk, by_row_, most_held(chunk.rows));
  const Step step{chunk, table, row};
  if (!by_row_) {
    KVASIR_CHECK(std::ssize(mass) == list.size() + row + 1);
    return score(list, step, mass);
  }
  // Rows that were not wanted are not observed; nothing is pruned at them.
  for (int skipped = chunk.rows - static_cast<int>(list.all() - list.size()); skipped < row; ++skipped)
    insert(list, {chunk, table, skipped});
  // The row also has masses of tokens that this chunk has dropped; the list no longer has these tokens.
  const std::int64_t count = list.size() + 1;
  KVASIR_CHECK(list.place_in_chunk(count - 1) == std::ssize(mass) - 1);
  const std::span<double> scores = list.values();
  for (std::int64_t i = 0; i < count; ++i)
    scores[static_cast<std::size_t>(i)] = mass[static_cast<std::size_t>(list.place_in_chunk(i))];
  insert(list, step);
}

void ScoredPolicy::read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) {
  ScoreList& list = this->list(table);
  enter(list, chunk);
  for (int row = 0; row < chunk.rows; ++row) score_kv(list, list.size() + row, {chunk, table, row}, kv);
}

void ScoredPolicy::end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) {
  ScoreList& list = this->list(table);
  enter(list, chunk);
  for (int row = chunk.rows - static_cast<int>(list.all() - list.size()); row < chunk.rows; ++row) {
    // By row, a row that was not observed must not have been wanted.
    KVASIR_CHECK(!by_row_ || !acts({chunk, table, row}));
    insert(list, {chunk, table, row});
  }
  list.hand_over(plan);
}

void ScoredPolicy::save_state(ByteWriter& out) const {
  out.put(std::int32_t{layout_.layers});
  out.put(std::int32_t{layout_.per_layer});
  out.put(std::int32_t{layout_.heads});
  out.put(std::int64_t{seen()});
  for (int table = 0; table < layout_.tables(); ++table) {
    list(table).save(out);
    save_table(table, out);
  }
  save_common(out);
}

bool ScoredPolicy::restore_state(ByteReader& in) {
  constexpr TokenIndex kMostSeen = TokenIndex{1} << 62;
  std::int32_t layers = 0, per_layer = 0, heads = 0;
  TokenIndex seen = 0;
  if (!in.get(layers) || !in.get(per_layer) || !in.get(heads) || !in.get(seen)) return false;
  if (layers != layout_.layers || per_layer != layout_.per_layer || heads != layout_.heads || seen < 0 ||
      seen > kMostSeen)
    return false;
  // most_state_bytes relies on this bound.
  const std::int64_t most = acts_ == Acts::kAlways ? most_kept(seen) : seen;
  for (int table = 0; table < layout_.tables(); ++table)
    if (!list(table).restore(in, seen, most_held(0)) || list(table).size() > most || !restore_table(table, in))
      return false;
  return restore_common(in);
}

std::uint64_t ScoredPolicy::state_bytes() const {
  std::uint64_t bytes =
      lists_.capacity() * sizeof(ScoreList) + lists_.size() * table_state_bytes(layout_) + common_state_bytes();
  for (const ScoreList& list : lists_) bytes += list.bytes();
  return bytes;
}

std::uint64_t ScoredPolicy::most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const {
  const int rows = static_cast<int>(std::clamp<std::int64_t>(chunk, 1, std::max<std::int64_t>(tokens, 1)));
  tokens = std::max<std::int64_t>(tokens, 0);
  const std::int64_t kept = acts_ == Acts::kAlways ? most_kept(tokens) : tokens;
  const auto entered = static_cast<std::size_t>(std::min(tokens, kept + rows));
  return most_common_state_bytes(tokens) +
         static_cast<std::uint64_t>(layout.tables()) *
             (sizeof(ScoreList) + table_state_bytes(layout) +
              ScoreList::most_bytes(values_per_token_, entered, most_held(rows), rows, by_row_));
}

void raise_to(std::span<double> scores, std::span<const double> mass) {
  for (std::size_t i = 0; i < mass.size(); ++i)
    if (mass[i] > scores[i] || std::isnan(mass[i])) scores[i] = mass[i];
}

Result<bool> get_switch(const PolicyOptions& given, std::string_view key) {
  constexpr std::string_view kSwitch[] = {"on", "off"};
  const Result<std::string> state = given.get_choice(key, kSwitch);
  if (!state.ok()) return state.status();
  return *state == "on";
}

Result<bool> get_blocks(const PolicyOptions& given) {
  constexpr std::string_view kForms[] = {"whole", "blocks"};
  const Result<std::string> form = given.get_choice("prompt", kForms);
  if (!form.ok()) return form.status();
  return *form == "blocks";
}

Status check_blocks(bool blocks, PolicyPart part, const std::string& spec) {
  if (!blocks || part != PolicyPart::kAtPromptEnd) return {};
  return invalid_argument(
      "policy '{}' prunes blocks of a prompt, and a composition holds a prompt whole; omit prompt=blocks", spec);
}

SplitMix draws_of_table(std::int64_t seed, int table) {
  SplitMix seeds(static_cast<std::uint64_t>(seed) ^ (static_cast<std::uint64_t>(table) << 32));
  return SplitMix(seeds.next());
}

Result<std::unique_ptr<RetentionPolicy>> ScoredPolicy::as_part(PolicyPart part) const {
  if (acts_ == Acts::kAtPromptEnd && part == PolicyPart::kWhileGenerating)
    return invalid_argument("policy '{}' acts at the end of a prompt only and cannot come second; put it before the +",
                            traits().spec);
  std::unique_ptr<RetentionPolicy> copy = clone();  // of this very class
  static_cast<ScoredPolicy&>(*copy).acts_ =
      part == PolicyPart::kAtPromptEnd ? Acts::kAtPromptEnd : Acts::kWhileGenerating;
  return copy;
}

}  // namespace kvasir
