// The interface of retention policies: a small core that every policy implements, and optional capabilities
// (capabilities.h). A policy decides which tokens of a text stay in the KV cache. It sees attention masses, keys,
// values and sums of queries if it asks for them, and never a page. It is deterministic. The engine, replay and tests
// call the same object in the same order, but for the tables of a chunk, which may come in any order.
//
// Chunks. A policy decides once per chunk. A chunk is a run of consecutive tokens of a prompt, or one generated token.
// Prompts are cut on a grid anchored at token 0, and where they end. The engine may compute a chunk in several forward
// passes; a policy is told of the chunk alone. A page table does not change during a chunk, but for the chunk's own
// tokens.
//
// A caller asks for the capabilities (RetentionPolicy::as) once, when it takes the policy, then calls in this order:
//
//   begin(layout)                          once
//   HidesRanges::chunk_rows(want)          how many of the next tokens form a chunk
//   HidesRanges::hidden, will_drop         before the chunk's first pass: which tokens a row does not see
//   LeavesUnread::reads(chunk, table)      before the pass of a generated token: which tokens it reads
//   WeighsSlots::biases(table, lane)       before each pass of a chunk: what is added to the logits of its tokens
//   ObservesMasses::observe(chunk, table)  after the pass of a row, if the policy wants it: rows of a table in order
//   SumsQueries::read_queries(chunk, ...)  once per table, when all rows of the chunk have run, if it wants any
//   ReadsKv::read_kv(chunk, table, kv)     once per table, when all rows of the chunk have run
//   ReadsHeldKv::read_held(...)            once per table that wants it, when read_kv was called for all tables
//   end_chunk(chunk, table, plan)          once per table, when all rows of the chunk have run
//   finish_chunk(chunk, table, plan)       once per table, when end_chunk was called for all tables: one at a time, in
//                                          order
//   RepeatsText::end_part, evict           between chunks, when a part of the text was repeated
//   DropsThoughts::drop_thoughts(...)      between chunks, once at most
//
// Only begin, observe, read_queries, read_kv, read_held, end_chunk, finish_chunk, forget, drop_thoughts,
// move_prompt_end, the calls of RepeatsText and restore change the state. A chunk that is given up before its first
// observe leaves no trace, but for RepeatsText::take_text: a text whose pass was given up cannot go on.
//
// Two kinds of eviction. A policy evicts whole ranges of old tokens (full, window, streaming), or single tokens
// (PolicyTraits::compacts). The first kind has the capability HidesRanges: each row of a chunk sees what it would see
// if the tokens came one at a time, so the chunk size changes no result. The second kind inserts and evicts a chunk's
// tokens one at a time when the chunk ends, so the chunk size changes results.
//
// Thread-safety: none; one policy object serves one sequence. Calls for different tables of one chunk may come from
// several threads at once, but for finish_chunk, so a policy keeps its state by table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kv/keep_plan.h"
#include "kvasir/status.h"
#include "retention/capabilities.h"
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

// Constant properties of a policy, and what it requires of its caller.
struct PolicyTraits {
  std::string spec;  // makes an equal policy; options in canonical order
  PolicyScope scope = PolicyScope::kSequence;
  PositionMode positions = PositionMode::kCompact;
  Realign realign = Realign::kFrames;
  std::int64_t rotations = 0;  // with Realign::kRotate: how often a key is rotated while it is held
  int chunk = 0;               // default tokens of a prompt per decision; 0: the number changes no result
  // Tokens that runs 1, 2, … can hold. Tokens enter run 0, which holds the rest. Empty: run 0 is the only one.
  std::vector<std::int64_t> run_capacities;
  // Any token may be dropped or moved: holes are masked, then compacted. False: whole ranges are dropped, and there is
  // one hole at most.
  bool compacts = false;
  // Set: dropped tokens are kept elsewhere, and read again by generated tokens and by a prompt's last token.
  std::optional<Demotion> demotion;
  // All tokens of a prompt are held until it has been read to its end.
  bool holds_prompts = false;
  // Of policies that drop ranges: how many first tokens of the text stay while tokens behind them leave. Later tokens
  // come nearer to these; the distance to all others only grows.
  std::int64_t sinks = 0;

  // Whether a prompt's last token is a chunk of its own. It reads demoted tokens; which ones must not depend on the
  // chunk size where nothing else does.
  bool last_alone() const { return demotion && !compacts; }
};

// -- The core. --

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;

  const PolicyTraits& traits() const { return traits_; }

  // The most tokens that a forward pass of one token sees, in any table; nullopt: without bound.
  virtual std::optional<std::int64_t> bound() const = 0;
  ContextUse context_use() const;

  // Checks that the policy works with pages of this format: keys may be rotated and rounded too often, and not every
  // format can be demoted. Errors: kInvalidArgument.
  Status check_pages(const PolicyModel& model, const PageFormat& page) const;

  // Makes the policy demote what it evicts. Errors: kInvalidArgument where that is impossible: it evicts nothing, or
  // moves tokens to other positions, for which demoted keys are not rotated. REQUIRES: no chunk was taken in.
  Status demote(const Demotion& demotion);

  // Whether a token that is read as generated may lead to other decisions than in a prompt. The log of tokens must then
  // tell prompts from generated tokens.
  bool by_token() const {
    return traits_.compacts || as<LeavesUnread>() || as<ObservesMasses>() || as<ReadsKv>() || as<ReadsHeldKv>() ||
           as<SumsQueries>() || traits_.demotion;
  }

  // Whether several generated tokens may form one chunk, and the last of them may be withdrawn before it ends: they
  // lead to no decision, and are neither observed nor read.
  virtual bool rests_while_generating() const { return !by_token(); }

  // An equal policy in an equal state, of the same class.
  virtual std::unique_ptr<RetentionPolicy> clone() const = 0;

  // Called once, before the first chunk and before restore.
  virtual void begin(const TableLayout& /*layout*/) {}

  // -- Between chunks: what it holds. --

  // Returns the number of tokens taken in so far: the index of the next chunk's first token.
  virtual TokenIndex seen() const = 0;

  // Appends the tokens that a table retains in a run, as ascending, disjoint ranges that do not touch.
  virtual void retained(int table, int run, std::vector<IndexRange>& ranges) const = 0;

  // Returns the longest prefix of an n-token prompt that a complete, exact cache can stand in for: the largest m <= n
  // such that, in a cold run, nothing is hidden from a row before m, nothing has been evicted after m tokens, and no
  // row before m is wanted. Calling end_chunk for the chunks up to m then brings the policy there. Holds for every
  // chunk size; depends on options only.
  virtual std::int64_t exact_prefix(std::int64_t n) const = 0;

  // -- After a chunk. `plan` is clear; the caller applies what a call adds to it before the next call. --

  // Takes in the chunk's tokens, and adds what the table evicts.
  virtual void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) = 0;

  // Adds decisions that depend on all tables together.
  virtual void finish_chunk(const PolicyChunk& /*chunk*/, int /*table*/, KeepPlan& /*plan*/) {}

  // -- State. --

  // Writes everything that later decisions depend on. REQUIRES: no chunk is under way.
  void save(ByteWriter& out) const;

  // Continues where an equal policy was saved. REQUIRES: begin was called, with the saved policy's layout. Errors:
  // kDataLoss for bytes that no such policy writes; the object may then only be destroyed. An accepted state is
  // consistent in itself; the caller must check that it agrees with the page tables (seen, retained).
  Status restore(ByteReader& in);

  // Bytes allocated for the state now.
  virtual std::uint64_t state_bytes() const = 0;

  // Never exceeded by state_bytes() in a sequence of up to `tokens` tokens, in chunks of up to `chunk` rows.
  virtual std::uint64_t most_state_bytes(const TableLayout& layout, std::int64_t tokens, int chunk) const = 0;

  // -- Capabilities. --

  // Returns the policy as a capability, such as as<ReadsKv>(); null: it lacks that. The answer never changes.
  template <class Capability>
  const Capability* as() const {
    return capabilities().get<Capability>();
  }
  template <class Capability>
  Capability* as() {  // which is a part of this object, so that it may be changed too
    return const_cast<Capability*>(std::as_const(*this).template as<Capability>());
  }

 protected:
  explicit RetentionPolicy(PolicyTraits traits) : traits_(std::move(traits)) {}
  RetentionPolicy(const RetentionPolicy&) = default;
  RetentionPolicy& operator=(const RetentionPolicy&) = default;

  // Implement save and restore, which handle the spec. restore_state returns false for bytes that save_state does not
  // write.
  virtual void save_state(ByteWriter& out) const = 0;
  virtual bool restore_state(ByteReader& in) = 0;

  // Names the capabilities that the policy has; always the same.
  virtual Capabilities capabilities() const { return {}; }

 private:
  PolicyTraits traits_;
};

// -- Answers of capabilities, with defaults for policies that lack them. --

// Returns ObservesMasses::reductions; empty if the policy does not look at attention.
const std::vector<MassReduction>& reductions_of(const RetentionPolicy& policy);
// Whether the policy wants any mass of a row.
bool wants_row(const RetentionPolicy& policy, const PolicyChunk& chunk, int row);
// Returns HidesRanges::chunk_rows; by default `want`.
int chunk_rows(const RetentionPolicy& policy, int want);
// Calls HidesRanges::hidden; by default sets empty ranges.
void find_hidden(const RetentionPolicy& policy, const PolicyChunk& chunk, std::span<IndexRange> rows);
// Returns LeavesUnread::all_read; by default true.
bool all_read(const RetentionPolicy& policy);
// Returns KnowsPromptEnd::shared_prefix; by default n.
std::int64_t shared_prefix(const RetentionPolicy& policy, std::int64_t n);
void move_prompt_end(RetentionPolicy& policy, TokenIndex end);
// Returns DependsOnModel::check_model; by default ok.
Status check_model(const RetentionPolicy& policy, const PolicyModel& model);

}  // namespace kvasir
