// The base of policies that may drop any token, table by table, mostly by the attention that they observe. A policy
// says how a row's mass, or a token's key and value, become scores (score, score_kv) and what to drop once a token was
// inserted (prune). ScoredPolicy does the bookkeeping.
//
// One chunk: its tokens enter; all its rows are observed, in order; score_kv is called for each token; then its tokens
// are inserted one at a time, in order, each followed by prune. Where the decision looks at the current row alone
// (by_row), each token is inserted as soon as its row was observed: the result is the same, and no row is stored.
//
// Thread-safety: as RetentionPolicy's. Tables share no state.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/splitmix.h"
#include "retention/budget.h"
#include "retention/registry.h"
#include "retention/score_list.h"

namespace kvasir {

// The size of a table, how far it may grow beyond that before a prune, and which tokens are never dropped.
struct KeepRule {
  Budget budget;
  std::int64_t sinks = 0;
  std::int64_t recent = 0;
  std::int64_t every = 1;  // 0: never prunes

  // Returns how many tokens a table of `held` tokens drops now. Protected tokens stay even if a budget that is a share
  // is smaller.
  std::int64_t excess(std::int64_t held, std::int64_t seen) const {
    const std::int64_t target = budget.at(seen);
    return every > 0 && held - target >= every ? std::max<std::int64_t>(held - std::max(target, sinks + recent), 0) : 0;
  }

  // Returns the most tokens that a step sees.
  std::optional<std::int64_t> bound() const {
    return budget.is_share() || every == 0 ? std::nullopt : std::optional(budget.tokens + every);
  }

  // Returns the most tokens that a table holds after a prune, up to `seen` tokens.
  std::int64_t most_kept(std::int64_t seen) const {
    return every == 0 ? seen : std::min(seen, std::max(budget.at(seen), sinks + recent) + every - 1);
  }

  // Returns the rule of a moment at which a policy prunes however few tokens are above the budget, as at a prompt's
  // end.
  KeepRule at_once() const {
    KeepRule rule = *this;
    rule.every = 1;
    return rule;
  }

  // Returns the largest m <= n such that nothing is dropped until m tokens have come, one at a time.
  std::int64_t undropped(std::int64_t n) const;

  // Reads budget and those of the options sinks, recent, every and protect that the policy has. Errors:
  // kInvalidArgument for values out of range, and if sinks and recent together are above the budget.
  static Result<KeepRule> read(const PolicyOptions& given);

  // Drops the tokens of lowest score that are not protected, if a prune is due.
  void drop_excess(ScoreList& list, std::int64_t seen, std::span<const double> scores) const;
};

class ScoredPolicy : public RetentionPolicy, public ObservesMasses, public ReadsKv, public JoinsAnother {
 public:
  // When prune is called.
  enum class Acts { kAlways, kAtPromptEnd, kWhileGenerating };

  struct Traits {
    std::string spec;
    std::optional<MassReduction> reduction;  // of the mass that `score` receives; none: it ignores attention
    PolicyScope scope = PolicyScope::kLayer;
    PositionMode positions = PositionMode::kAuto;
    Acts acts = Acts::kAlways;
    int values_per_token = 1;
    bool by_row = false;  // prune looks at the current row alone
    bool keys = false;    // score_kv is shown keys. REQUIRES: not by_row
    bool values = false;  // the same for values
    bool whole = false;   // a prompt is held whole until it ends, whenever the policy acts
    std::vector<std::int64_t> run_capacities = {};

    // Returns traits with the canonical spec (PolicyOptions::canonical), and with those of the options pos and heads
    // that the policy has. Errors: kInvalidArgument.
    static Result<Traits> read(const PolicyOptions& given, std::initializer_list<std::string_view> always);
  };

  // The current step: row `row` of `chunk`, in one table.
  struct Step {
    const PolicyChunk& chunk;
    int table = 0;
    int row = 0;

    std::int64_t seen() const { return chunk.first + row + 1; }  // tokens so far, this one included
    // Tokens of the prompt after this one.
    std::int64_t prompt_left() const { return chunk.prompt_left + chunk.rows - 1 - row; }
    bool ends_prompt() const { return chunk.prompt && prompt_left() == 0; }
    // The index behind the prompt's last token. Tells prompts apart, since one may be given up halfway.
    TokenIndex prompt_end() const { return chunk.end() + chunk.prompt_left; }
    TokenIndex token() const { return chunk.first + row; }
  };

  void begin(const TableLayout& layout) override;
  TokenIndex seen() const override { return lists_.empty() ? 0 : lists_.front().next_token(); }
  void retained(int table, int run, std::vector<IndexRange>& ranges) const override;
  bool rests_while_generating() const override {
    const PolicyChunk generated{seen(), 1, false, 0};
    return acts_ == Acts::kAtPromptEnd && !traits().demotion && as<ReadsKv>() == nullptr &&
           as<SumsQueries>() == nullptr && (reductions().empty() || !wants(generated, 0, 0));
  }
  std::int64_t exact_prefix(std::int64_t n) const override;
  bool wants(const PolicyChunk& chunk, int row, int reduction) const override;
  void observe(const PolicyChunk& chunk, int table, int row, std::span<const std::span<const double>> masses) final;
  void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) final;
  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override;
  std::uint64_t state_bytes() const final;
  std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const final;
  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const override;
  void forget(int table, std::span<const IndexRange> dropped) override { list(table).forget(dropped); }

 protected:
  explicit ScoredPolicy(const Traits& traits);

  // A class with a capability of its own adds it to these.
  Capabilities capabilities() const override;

  // Receives a row's mass on all tokens that it sees; mass[i] belongs to place i. The default adds it to values(). Not
  // called for policies with by_row: there values() is the current row's mass when prune is called.
  virtual void score(ScoreList& list, const Step& step, std::span<const double> mass);

  // Receives the key and the value of the step's token, which is row step.row of `kv`; its numbers are at `place`.
  // Called for the tokens of a chunk in order, after all its rows were observed and before any is inserted.
  virtual void score_kv(ScoreList& /*list*/, std::int64_t /*place*/, const Step& /*step*/, const ChunkKv& /*kv*/) {}

  // Called after the step's token was inserted: drops tokens.
  virtual void prune(ScoreList& list, const Step& step) = 0;

  // The state of a table beside its list of scores: its bytes, the same for all tables; how it is saved, and restored
  // after the list (false for bytes that save_table does not write).
  virtual std::uint64_t table_state_bytes(const TableLayout& /*layout*/) const { return 0; }
  virtual void save_table(int /*table*/, ByteWriter& /*out*/) const {}
  virtual bool restore_table(int /*table*/, ByteReader& /*in*/) { return true; }
  // The same for the state that belongs to no table. `tokens`: of the text.
  virtual std::uint64_t common_state_bytes() const { return 0; }
  virtual std::uint64_t most_common_state_bytes(std::int64_t /*tokens*/) const { return 0; }
  virtual void save_common(ByteWriter& /*out*/) const {}
  virtual bool restore_common(ByteReader& /*in*/) { return true; }

  // For policies that ignore attention. Returns the largest m <= n such that prune drops nothing until m tokens have
  // come, one at a time; 0 is always right.
  virtual std::int64_t undropped(std::int64_t /*n*/) const { return 0; }

  // Lets a chunk's tokens enter a list, unless they have.
  void enter(ScoreList& list, const PolicyChunk& chunk) const { list.enter(chunk, false, most_held(chunk.rows)); }

  // Whether prune is called after this step.
  bool acts(const Step& step) const;
  // Whether it is called after any step of a prompt, or of what is generated.
  bool acts_in(bool prompt) const { return acts_ == Acts::kAlways || prompt == (acts_ == Acts::kAtPromptEnd); }

  // Returns the most tokens that a table holds after a prune, up to `seen` tokens, if the policy always acts.
  virtual std::int64_t most_kept(std::int64_t seen) const {
    const std::optional<std::int64_t> bound = this->bound();
    return bound ? std::min(*bound - 1, seen) : seen;
  }

  const TableLayout& layout() const { return layout_; }
  ScoreList& list(int table) {
    KVASIR_CHECK(table >= 0 && static_cast<std::size_t>(table) < lists_.size());  // begin was called
    return lists_[static_cast<std::size_t>(table)];
  }
  const ScoreList& list(int table) const { return const_cast<ScoredPolicy*>(this)->list(table); }

 private:
  void insert(ScoreList& list, const Step& step);
  std::size_t most_held(int rows) const;
  void save_state(ByteWriter& out) const final;
  bool restore_state(ByteReader& in) final;

  Acts acts_;
  int values_per_token_;
  bool by_row_;
  TableLayout layout_;
  std::vector<ScoreList> lists_;
};

// Keeps the tokens of highest score by a KeepRule. `traits` decide what the scores are.
class KeepHighestPolicy final : public ScoredPolicy {
 public:
  KeepHighestPolicy(const Traits& traits, const KeepRule& rule) : ScoredPolicy(traits), rule_(rule) {}

  std::optional<std::int64_t> bound() const override { return rule_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<KeepHighestPolicy>(*this); }

 private:
  std::int64_t most_kept(std::int64_t seen) const override { return rule_.most_kept(seen); }
  void prune(ScoreList& list, const Step& step) override { rule_.drop_excess(list, step.seen(), list.values()); }

  KeepRule rule_;
};

// Raises scores to the masses that are larger, or NaN. REQUIRES: as many scores as masses, or more.
void raise_to(std::span<double> scores, std::span<const double> mass);

// Reads an option that is on or off.
Result<bool> get_switch(const PolicyOptions& given, std::string_view key);
// Reads the option prompt: whether each chunk of a prompt is pruned, or the prompt when it ends.
Result<bool> get_blocks(const PolicyOptions& given);
// Refuses prompt=blocks in the part of a composition that acts at a prompt's end. Errors: kInvalidArgument.
Status check_blocks(bool blocks, PolicyPart part, const std::string& spec);
// Returns the generator of a table: each has its own draws of one seed.
SplitMix draws_of_table(std::int64_t seed, int table);

// Options that several policies have.
inline constexpr PolicyOption kHeadsOption{"heads", "together", "together or independent",
                                           "one decision for each layer, or one for each KV head (ours)"};
inline constexpr PolicyOption kPosOption{"pos", "auto", "auto, original or compact",
                                         "positions: where a token stood in the text, or where it stands in the cache"};
inline constexpr PolicyOption kEveryOption{"every", "1", "0 to 2^40",
                                           "prune when this many tokens are above the budget; 0: never"};
inline constexpr std::string_view kBudgetRange = "1 to 2^40, or above 0% to 100%";
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

}  // namespace kvasir
