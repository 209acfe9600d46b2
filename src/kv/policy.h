// The interface of retention policies: deterministic functions of what they have seen to a plan of what to keep. A
// policy never touches a page; the same object serves the engine, replay and tests.
//
// There are two ways to decide, and a policy uses one of them.
//
//  - By range, for the whole sequence, without looking at attention (full, window, streaming). Before each forward pass
//    the engine asks how many of the next tokens may share it (rows_together) and what is hidden from each (advance,
//    once per token, in order); after the pass it asks what to drop (dropped). The size of a pass changes nothing.
//  - By table: any set of tokens, for each layer or each KV head apart, mostly by the attention observed. What a table
//    holds is fixed for the duration of a pass. After the pass has run, the engine hands over, table by table, the
//    attention mass of every row in order (observe) and then asks for the plan (end_pass), in which the pass's tokens
//    are inserted and pruned one at a time. The size of a pass is part of the result.
//
// Thread-safety: none; one policy object belongs to one sequence. Calls for different tables of one pass may come from
// several threads at once; a policy keeps its state by table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/kv_cache.h"

namespace kvasir {

// Where retained tokens stand. kCompact: at 0 ... length-1 in order of id. kOriginal: where they stood in the text.
// kAuto: kOriginal while the text fits the model's trained context, kCompact from the first id on that would reach it.
enum class PositionMode { kCompact, kOriginal, kAuto };

// What uses up the trained context.
enum class ContextUse {
  kNone,  // nothing: the policy keeps what it holds below it
  kText,  // every token read: they keep their positions, or none is ever dropped
  kHeld,  // the tokens held: how many there will be depends on the text
};

// How the softmax weights of a table's query heads become one mass per token. The median of an even number is the mean
// of the two middle values.
enum class MassReduction { kNone, kSum, kMean, kMax, kMedian };

// The tables of a sequence: table = layer * per_layer + (KV head, if per_layer is more than 1).
struct TableLayout {
  int layers = 1;
  int per_layer = 1;  // tables of one layer: 1, or the number of KV heads
  int heads = 1;      // query heads of one table

  int tables() const { return layers * per_layer; }
};

// A forward pass of consecutive tokens, as policies see it.
struct PolicyPass {
  TokenIndex first = 0;  // id of row 0
  int rows = 0;
  bool prompt = false;           // the rows are of a prompt; otherwise they were generated (one row)
  std::int64_t prompt_left = 0;  // tokens of the prompt that come after this pass; 0: the pass ends the prompt

  bool ends_prompt() const { return prompt && prompt_left == 0; }
};

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;

  // The spec string that makes an equal policy, options in their canonical order.
  virtual std::string spec() const = 0;

  // The most tokens that a forward pass of one token sees, in any table; nullopt: without bound.
  virtual std::optional<std::int64_t> bound() const = 0;

  virtual std::unique_ptr<RetentionPolicy> clone() const = 0;

  virtual PositionMode positions() const { return PositionMode::kCompact; }

  ContextUse context_use() const {
    if (positions() == PositionMode::kOriginal) return ContextUse::kText;
    if (bound()) return ContextUse::kNone;
    return by_table() ? ContextUse::kHeld : ContextUse::kText;
  }

  // -- By range. --

  // How the tokens behind a hole move up.
  virtual Realign realign() const { return Realign::kFrames; }

  // How many of the next `want` tokens may run in one forward pass, at least 1. Fewer than `want` where the table's
  // frames change in between.
  virtual int rows_together(int want) const { return want; }

  // Takes the next token in: returns the ids that its query does not see, because one-token-at-a-time processing would
  // have dropped them before it came; empty if none.
  virtual IndexRange advance() { return {}; }

  // The ids dropped once all tokens taken in have passed: one range, growing only. Empty if none was.
  virtual IndexRange dropped() const { return {}; }

  // -- By table. --

  // The tokens of a prompt that share a pass where the user sets no size; 0: decides by range.
  virtual int default_chunk() const { return 0; }
  bool by_table() const { return default_chunk() > 0; }

  virtual PolicyScope scope() const { return PolicyScope::kSequence; }

  // kNone: the policy does not look at attention, and observe is not called.
  virtual MassReduction reduction() const { return MassReduction::kNone; }

  // Tokens that run 1, 2, … can hold (run 0 is where tokens enter; it holds the rest). Empty: there is only run 0.
  virtual std::vector<std::int64_t> run_capacities() const { return {}; }

  // Called once, before the first pass.
  virtual void begin(const TableLayout& layout) { static_cast<void>(layout); }

  // The reduced mass of one row on every token that it sees, in order of id: those the table held before the pass,
  // then the pass's own up to the row itself. mass.size() = tokens held before + row + 1. Rows come in order.
  virtual void observe(const PolicyPass& pass, int table, int row, std::span<const double> mass) {
    static_cast<void>(pass), static_cast<void>(table), static_cast<void>(row), static_cast<void>(mass);
  }

  // Whether the mass of a row matters: where it is false, observe need not be called for it.
  virtual bool wants_row(const PolicyPass& pass, int row) const {
    static_cast<void>(pass), static_cast<void>(row);
    return true;
  }

  // All rows of the pass were observed: adds to `plan` (empty) what the table drops and moves.
  virtual void end_pass(const PolicyPass& pass, int table, KeepPlan& plan) {
    static_cast<void>(pass), static_cast<void>(table), static_cast<void>(plan);
  }

  // Called for every table once end_pass was called for all of them: adds what only all layers together can tell. The
  // plan of end_pass was applied before.
  virtual void finish_pass(const PolicyPass& pass, int table, KeepPlan& plan) {
    static_cast<void>(pass), static_cast<void>(table), static_cast<void>(plan);
  }
};

}  // namespace kvasir
