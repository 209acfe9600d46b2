// The base of policies that decide table by table, mostly by the attention that they observe. A policy says how a row's
// mass becomes scores (score) and what to drop once a token was inserted (prune); the bookkeeping is here.
//
// One pass: its tokens enter; all its rows are observed, in order; then its tokens are inserted one at a time, in
// order, each followed by prune. Where the decision looks at the current row alone (by_row), each token is inserted as
// soon as its row was observed; that comes to the same and needs no memory of rows.
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
#include "retention/budget.h"
#include "retention/registry.h"
#include "retention/token_table.h"

namespace kvasir {

// How many tokens stay, how many must gather above that before a prune, and which are never dropped.
struct KeepRule {
  Budget budget;
  std::int64_t sinks = 0;
  std::int64_t recent = 0;
  std::int64_t every = 1;  // 0: never prunes

  // How many tokens a table of `held` tokens drops now; 0: none. Protected tokens stay even if they are more than a
  // budget that is a share.
  std::int64_t excess(std::int64_t held, std::int64_t seen) const {
    const std::int64_t target = budget.at(seen);
    return every > 0 && held - target >= every ? std::max<std::int64_t>(held - std::max(target, sinks + recent), 0) : 0;
  }

  // The most tokens that a step sees.
  std::optional<std::int64_t> bound() const {
    return budget.is_share() || every == 0 ? std::nullopt : std::optional(budget.tokens + every);
  }

  // Those of the options budget, sinks, recent and every that the policy has. Errors: kInvalidArgument for values out
  // of range, and if sinks and recent together are above the budget.
  static Result<KeepRule> read(const PolicySpec& spec);

  // Drops the lowest of `scores` that are not protected, if it is time to.
  void drop_excess(TokenTable& table, std::int64_t seen, std::span<const double> scores) const;
};

class ScoredPolicy : public RetentionPolicy {
 public:
  // When prune is asked, for policies that are part of a composition.
  enum class Acts { kAlways, kAtPromptEnd, kWhileGenerating };

  struct Traits {
    std::string spec;
    MassReduction reduction = MassReduction::kNone;
    PolicyScope scope = PolicyScope::kLayer;
    PositionMode positions = PositionMode::kAuto;
    Acts acts = Acts::kAlways;
    int columns = 1;      // numbers per token
    bool by_row = false;  // prune looks at the current row alone
  };

  // A place in the stream: row `row` of `pass` is the current step.
  struct Step {
    const PolicyPass& pass;
    int table = 0;
    int row = 0;

    std::int64_t seen() const { return pass.first + row + 1; }  // tokens, this one included
    std::int64_t prompt_left() const {
      return pass.prompt_left + pass.rows - 1 - row;
    }  // tokens of the prompt after it
    bool ends_prompt() const { return pass.prompt && prompt_left() == 0; }
    // Id behind the prompt's last token: tells apart prompts, of which one may have been given up halfway.
    TokenIndex prompt_end() const { return pass.first + pass.rows + pass.prompt_left; }
  };

  std::string spec() const override { return traits_.spec; }
  PositionMode positions() const override { return traits_.positions; }
  PolicyScope scope() const override { return traits_.scope; }
  MassReduction reduction() const override { return traits_.reduction; }
  int default_chunk() const override { return 256; }
  void begin(const TableLayout& layout) override;
  void observe(const PolicyPass& pass, int table, int row, std::span<const double> mass) final;
  void end_pass(const PolicyPass& pass, int table, KeepPlan& plan) override;

  // Whether it can be part of a composition.
  virtual bool composable() const { return true; }
  Acts acts() const { return traits_.acts; }
  void act_only(Acts acts) { traits_.acts = acts; }

  // Tokens that something else dropped from the table are gone for this policy too. ids ascend.
  void forget(int table, std::span<const TokenIndex> ids) { this->table(table).forget(ids); }

 protected:
  explicit ScoredPolicy(Traits traits) : traits_(std::move(traits)) {}

  // A row's mass on all tokens that it sees; mass[i] belongs to index i. As it stands, column 0 adds it up. Where the
  // policy decides by row it is not called, and column 0 holds the current row's mass when prune is.
  virtual void score(TokenTable& table, const Step& step, std::span<const double> mass);

  // The step's token was inserted: drops what is to go.
  virtual void prune(TokenTable& table, const Step& step) = 0;

  const TableLayout& layout() const { return layout_; }
  TokenTable& table(int index) {
    KVASIR_CHECK(index >= 0 && static_cast<std::size_t>(index) < tables_.size());  // begin was called
    return tables_[static_cast<std::size_t>(index)];
  }

 private:
  bool may_prune(const Step& step) const;
  void insert(TokenTable& table, const Step& step);

  Traits traits_;
  TableLayout layout_;
  std::vector<TokenTable> tables_;
};

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
