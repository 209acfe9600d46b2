// The interface of retention policies. A policy observes attention and plans which tokens to keep; it is deterministic
// and never touches a page. The same object serves the engine, replay and tests.
//
// The unit of decision is a chunk: consecutive tokens of a prompt, cut on a grid anchored at token 0 and where the
// prompt ends, or one generated token. What a page table holds is fixed for the duration of a chunk. A chunk may be
// executed in any number of forward passes; a policy is told the chunk, never the passes. In order:
//
//   begin(layout)                          once
//   chunk_rows(want)                       how many of the next tokens form a chunk
//   hidden(chunk, rows), will_drop(chunk)  before the first pass: what rows do not see, what the chunk's end will drop
//   reads(chunk, table, ranges)            before the pass of a generated token: which retained tokens it reads
//   observe(chunk, table, row, masses)     after the pass that ran the row: rows of a table in order, those wanted
//   end_chunk(chunk, table, plan)          once per table, when all rows of the chunk have run
//   finish_chunk(chunk, table, plan)       once per table, when end_chunk was called for all of them
//
// State changes in begin, observe, end_chunk, finish_chunk and restore alone. A chunk that is given up before its first
// observe leaves no trace.
//
// A policy drops whole ranges of old tokens (full, window, streaming) or any tokens (PolicyTraits::compacts). The first
// kind hides from each row the tokens that would have been dropped before it if tokens had come one at a time, so the
// chunk size does not affect results. The second kind inserts and prunes a chunk's tokens one at a time at the chunk's
// end, so the chunk size affects results.
//
// Thread-safety: none; one policy object belongs to one sequence. Calls for different tables of one chunk may come from
// several threads at once; a policy keeps its state by table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/mass_reduction.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "kv/keep_plan.h"
#include "kvasir/status.h"
#include "retention/budget.h"
#include "retention/demotion.h"

namespace kvasir {

// Rotary positions of retained tokens. kCompact: 0 to length - 1, in order of index. kOriginal: their places in the
// text. kAuto: kOriginal while the text fits the model's trained context; kCompact from the start of the chunk that
// exceeds it.
enum class PositionMode { kCompact, kOriginal, kAuto };

// What counts against the trained context.
enum class ContextUse {
  kNone,  // nothing: the policy keeps what it holds below it
  kText,  // every token read: they keep their positions, or none is ever dropped
  kHeld,  // the tokens held: how many there will be depends on the text
};

// The tables of a sequence: table = layer * per_layer + (KV head, if per_layer is more than 1). A policy of scope
// kSequence has one table in all.
struct TableLayout {
  int layers = 1;
  int per_layer = 1;  // tables of one layer: 1, or the number of KV heads
  int heads = 1;      // query heads of one table

  int tables() const { return layers * per_layer; }
  bool operator==(const TableLayout&) const = default;
};

// Consecutive tokens that share a decision.
struct PolicyChunk {
  TokenIndex first = 0;  // of row 0
  int rows = 0;
  bool prompt = false;           // the rows are of a prompt; otherwise they were generated
  std::int64_t prompt_left = 0;  // tokens of the prompt that come after this chunk; 0: the chunk ends the prompt

  TokenIndex end() const { return first + rows; }
  bool ends_prompt() const { return prompt && prompt_left == 0; }
};

// Constant properties of a policy, and what it requires of its caller.
struct PolicyTraits {
  std::string spec;  // makes an equal policy; options in canonical order
  PolicyScope scope = PolicyScope::kSequence;
  PositionMode positions = PositionMode::kCompact;
  Realign realign = Realign::kFrames;
  std::int64_t rotations = 0;  // with Realign::kRotate: how often a key is rotated while it is held
  int chunk = 0;  // tokens of a prompt per decision, unless the user sets another number; 0: it changes nothing
  // What observe is given, in this order. Empty: the policy does not look at attention. REQUIRES: empty, or a scope of
  // kLayer or kHead.
  std::vector<MassReduction> reductions;
  // Tokens that runs 1, 2, … can hold (run 0 is where tokens enter; it holds the rest). Empty: there is only run 0.
  std::vector<std::int64_t> run_capacities;
  // Any token may be dropped or moved: holes are masked, then compacted. False: whole ranges leave, with one hole at
  // most.
  bool compacts = false;
  // Rows of generated tokens may leave retained tokens unread (RetentionPolicy::reads, chunk_reads), so that the keys
  // and values of generated tokens are not those that another policy has.
  bool selects = false;
  // They read chunks up to this many tokens (sequence/quest_selector.h).
  std::optional<Budget> chunk_reads;
  // What it drops is kept elsewhere, and read again by generated tokens and by the last one of a prompt.
  std::optional<Demotion> demotion;
  // What some tables leave unread need not be in memory: see RetentionPolicy::leader and settled.
  bool offloads = false;
  // All tokens of a prompt are held until it has been read to its end.
  bool holds_prompts = false;
  // Ranges: the first tokens of the text that stay while tokens behind them leave, and so come nearer to later tokens.
  // All other tokens only ever get farther from those that follow.
  std::int64_t sinks = 0;

  // Whether a generated token is a chunk of its own in every run, and chunks show in decisions: the log of tokens must
  // then tell prompts from what was generated.
  bool by_token() const { return compacts || selects || !reductions.empty() || demotion; }
  // Whether a prompt's last token is a chunk of its own. Where chunks change nothing, they then do not decide either
  // what has been demoted when that token reads it.
  bool last_alone() const { return demotion && !compacts; }
};

// What a policy may need to know of a model.
struct PolicyModel {
  const Hash128* fingerprint = nullptr;  // null: not known
  int layers = 1;
  int kv_heads = 1;
  std::int64_t sliding_window = 0;
};

// The two places in a composition (retention/composed.h).
enum class PolicyPart { kAtPromptEnd, kWhileGenerating };

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;

  const PolicyTraits& traits() const { return traits_; }

  // The most tokens that a forward pass of one token sees, in any table; nullopt: without bound.
  virtual std::optional<std::int64_t> bound() const = 0;
  ContextUse context_use() const;

  // Whether the policy can serve a model; see also can_demote. Errors: kInvalidArgument, kUnsupported.
  virtual Status check_model(const PolicyModel& model) const {
    static_cast<void>(model);
    return {};
  }
  // Whether the policy works with pages of a format: it may rotate keys that lose bits whenever they are stored, or
  // demote what it drops. Errors: kInvalidArgument.
  Status check_pages(const PolicyModel& model, const PageFormat& page) const;

  // From now on what it drops is demoted. Errors: kInvalidArgument where that is impossible: it drops nothing, or moves
  // tokens to other positions, for which demoted keys are not rotated. REQUIRES: no chunk was taken in.
  Status demote(const Demotion& demotion);

  // What a user should be told once of the policy with a model, as a sentence without a full stop; empty: nothing.
  virtual std::string remark(int kv_heads) const {
    static_cast<void>(kv_heads);
    return {};
  }

  // An equal policy in an equal state, of the same class.
  virtual std::unique_ptr<RetentionPolicy> clone() const = 0;

  // Called once, before the first chunk and before restore.
  virtual void begin(const TableLayout& layout) { static_cast<void>(layout); }

  // -- What it holds, between chunks. --

  // Tokens taken in so far: the first of the next chunk.
  virtual TokenIndex seen() const = 0;

  // Whether every row so far read all that was retained for it.
  virtual bool all_read() const { return true; }

  // Appends the tokens that a table retains in a run, as ascending, disjoint ranges that do not touch.
  virtual void retained(int table, int run, std::vector<IndexRange>& ranges) const = 0;

  // -- Before a chunk. --

  // How many of the next `want` tokens may form one chunk, from 1 to `want`: fewer where the table's frames change in
  // between.
  virtual int chunk_rows(int want) const { return want; }

  // rows[r]: of the tokens retained before the chunk and the chunk's own, those that row r does not see. Each range is
  // empty, or begins at the oldest token that is not a sink; the ends of those that are not empty lie within fewer
  // tokens than there are rows. REQUIRES: rows.size() == chunk.rows.
  virtual void hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const;

  // Which of the retained tokens, and of the chunk's own, the row of a generated token reads in a table: appends
  // ascending, disjoint ranges that do not touch, the row's own token among them. False, with no ranges: all. What is
  // not read stays retained, and is observed with mass zero. REQUIRES: traits().selects, or the answer is false.
  virtual bool reads(const PolicyChunk& chunk, int table, std::vector<IndexRange>& ranges) const {
    static_cast<void>(chunk), static_cast<void>(table), static_cast<void>(ranges);
    return false;
  }

  // With traits().offloads. The table that decides what this one reads: itself, or another of its layer, with which it
  // then agrees on reads(); -1: not known yet. Once known it stays.
  virtual int leader(int table) const { return table; }
  // Tokens before it, reads() names to a table that does not lead only if they were chosen: when the token `next` is
  // generated, or, with `prompt`, if a prompt that is being read ended before it or were given up there.
  virtual TokenIndex settled(TokenIndex next, bool prompt) const {
    static_cast<void>(next), static_cast<void>(prompt);
    return 0;
  }
  // Tokens before settled() that reads() names, at most, until another prompt has ended.
  virtual std::int64_t chosen() const { return 0; }
  // What memory offloading takes depends on this.
  struct OffloadBounds {
    int leaders = 0;          // tables of a layer that lead, at least
    bool known = false;       // leader() is known before the first token
    std::int64_t chosen = 0;  // tokens of a table that reads() names of those before settled(), at most
    std::int64_t recent = 0;  // newest tokens that are not settled, at most, when a chunk ends
  };
  // Behind a prompt of up to `tokens` tokens, with so many tables a layer.
  virtual OffloadBounds offload_bounds(int per_layer, std::int64_t tokens) const {
    static_cast<void>(per_layer), static_cast<void>(tokens);
    return {};
  }

  // With Realign::kRotate: the range that end_chunk will drop. Keys behind it will be written.
  virtual IndexRange will_drop(const PolicyChunk& chunk) const {
    static_cast<void>(chunk);
    return {};
  }

  // Returns the longest prefix of an n-token prompt that a complete, exact cache can stand in for: the largest m <= n
  // such that, in a cold run, nothing is hidden from a row before m, nothing has been dropped after m tokens, and no
  // row before m is wanted. Calling end_chunk for the chunks up to m then brings the policy there. Holds for every
  // chunk size; depends on options only.
  virtual std::int64_t exact_prefix(std::int64_t n) const = 0;

  // Returns the longest prefix of an n-token prompt after which the state is what it would be in any longer prompt that
  // begins alike, once move_prompt_end was called. Depends on options only.
  virtual std::int64_t shared_prefix(std::int64_t n) const { return n; }
  // Says that the prompt under way ends at `end`, not where its chunks so far said. REQUIRES: no chunk is under way.
  virtual void move_prompt_end(TokenIndex end) { static_cast<void>(end); }

  // -- During a chunk. --

  // Whether a row's mass of traits().reductions[reduction] matters. Where it is false, masses[reduction] may be empty.
  virtual bool wants(const PolicyChunk& chunk, int row, int reduction) const {
    static_cast<void>(chunk), static_cast<void>(row), static_cast<void>(reduction);
    return true;
  }
  // Whether any does. Where it is false, observe need not be called for the row.
  bool wants_row(const PolicyChunk& chunk, int row) const;

  // The masses of one row, one for each of traits().reductions, on every token that the row sees in order of index:
  // those the table held before the chunk, then the chunk's own up to the row itself. Rows come in order.
  virtual void observe(const PolicyChunk& chunk, int table, int row, std::span<const std::span<const double>> masses) {
    static_cast<void>(chunk), static_cast<void>(table), static_cast<void>(row), static_cast<void>(masses);
  }

  // -- After a chunk. `plan` is clear; what a call adds is applied to the table before the next. --

  virtual void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) = 0;

  // Adds decisions that depend on all tables together.
  virtual void finish_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) {
    static_cast<void>(chunk), static_cast<void>(table), static_cast<void>(plan);
  }

  // -- State. --

  // Writes all that later decisions depend on. REQUIRES: no chunk is under way.
  void save(ByteWriter& out) const;

  // Continues where an equal policy was saved. REQUIRES: begin was called, with the layout that the other had. Errors:
  // kDataLoss for bytes that no such policy writes; the object may then only be destroyed. An accepted state is
  // consistent in itself; the caller must check that it agrees with the page tables (seen, retained).
  Status restore(ByteReader& in);

  // Bytes allocated for the state now.
  virtual std::uint64_t state_bytes() const = 0;

  // Never exceeded by state_bytes() in a sequence of up to `tokens` tokens, in chunks of up to `chunk` rows.
  virtual std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const = 0;

  // -- As part of a composition. --

  // A fresh policy that decides by any tokens, keeps what this one keeps, and prunes at the ends of prompts or while
  // tokens are generated only. Errors: kInvalidArgument if it cannot; the message says why.
  virtual Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const;

  // Reports tokens that the other part dropped; this part must forget them too. Called after its own end_chunk or
  // finish_chunk.
  virtual void forget(int table, std::span<const IndexRange> dropped) {
    static_cast<void>(table), static_cast<void>(dropped);
  }

 protected:
  explicit RetentionPolicy(PolicyTraits traits);
  RetentionPolicy(const RetentionPolicy&) = default;
  RetentionPolicy& operator=(const RetentionPolicy&) = default;

  // Implement save and restore, which handle the spec. restore_state returns false for bytes that save_state does not
  // write.
  virtual void save_state(ByteWriter& out) const = 0;
  virtual bool restore_state(ByteReader& in) = 0;

 private:
  PolicyTraits traits_;
};

}  // namespace kvasir
