// The interface of retention policies: a small core, which every policy implements, and capabilities, which a policy
// has or has not (capabilities.h). A policy decides which tokens of a text stay in the KV cache. It sees attention
// masses, keys, values and sums of queries if it asks for them, and never a page. It is deterministic. The engine,
// replay and tests call the same object in the same order.
//
// Chunks. A policy decides once per chunk. A chunk is a run of consecutive tokens of a prompt, or one generated token.
// Prompts are cut on a grid anchored at token 0, and where they end. The engine may compute a chunk in several forward
// passes; a policy is told of the chunk alone. A page table does not change during a chunk, but for the chunk's own
// tokens.
//
// A caller asks for the capabilities once, when it takes the policy, and then calls in this order:
//
//   begin(layout)                          once
//   HidesRanges::chunk_rows(want)          how many of the next tokens form a chunk
//   HidesRanges::hidden, will_drop         before the chunk's first pass: which tokens a row does not see
//   LeavesUnread::reads(chunk, table)      before the pass of a generated token: which tokens it reads
//   WeighsSlots::biases(table, lane)       before each pass of a chunk: what is added to the logits of its tokens
//   ObservesMasses::observe(chunk, table)  after the pass of a row, if the policy wants it: rows of a table in order
//   SumsQueries::read_queries(chunk, ...)  once per table, when all rows of the chunk have run, if it wants any
//   ReadsKv::read_kv(chunk, table, kv)     once per table, when all rows of the chunk have run
//   end_chunk(chunk, table, plan)          once per table, when all rows of the chunk have run
//   finish_chunk(chunk, table, plan)       once per table, when end_chunk was called for all tables
//
// State changes in begin, observe, read_queries, read_kv, end_chunk, finish_chunk, forget, move_prompt_end and restore
// alone. A chunk that is given up before its first observe leaves no trace.
//
// Two kinds of eviction. A policy evicts whole ranges of old tokens (full, window, streaming), or single tokens
// (PolicyTraits::compacts). The first kind has the capability HidesRanges: each row of a chunk sees what it would see
// if the tokens came one at a time, so the chunk size changes no result. The second kind inserts and evicts a chunk's
// tokens one at a time when the chunk ends, so the chunk size changes results.
//
// Thread-safety: none; one policy object serves one sequence. Calls for different tables of one chunk may come from
// several threads at once, so a policy keeps its state by table.
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
  int chunk = 0;  // tokens of a prompt per decision, unless the user sets another number; 0: it changes nothing
  // Tokens that runs 1, 2, … can hold (run 0 is where tokens enter; it holds the rest). Empty: there is only run 0.
  std::vector<std::int64_t> run_capacities;
  // Any token may be dropped or moved: holes are masked, then compacted. False: whole ranges leave, with one hole at
  // most.
  bool compacts = false;
  // What it drops is kept elsewhere, and read again by generated tokens and by the last one of a prompt.
  std::optional<Demotion> demotion;
  // All tokens of a prompt are held until it has been read to its end.
  bool holds_prompts = false;
  // Ranges: the first tokens of the text that stay while tokens behind them leave, and so come nearer to later tokens.
  // All other tokens only ever get farther from those that follow.
  std::int64_t sinks = 0;

  // Whether a prompt's last token is a chunk of its own. Where chunks change nothing, they then do not decide either
  // what has been demoted when that token reads it.
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

  // Whether the policy works with pages of a format: it may rotate keys that lose bits whenever they are stored, or
  // demote what it evicts. Errors: kInvalidArgument.
  Status check_pages(const PolicyModel& model, const PageFormat& page) const;

  // From now on what it evicts is demoted. Errors: kInvalidArgument where that is impossible: it evicts nothing, or
  // moves tokens to other positions, for which demoted keys are not rotated. REQUIRES: no chunk was taken in.
  Status demote(const Demotion& demotion);

  // Whether a generated token is a chunk of its own in every run, and chunks show in decisions: the log of tokens must
  // then tell prompts from what was generated.
  bool by_token() const {
    return traits_.compacts || leaves_unread() || observes_masses() || reads_kv() || sums_queries() || traits_.demotion;
  }

  // An equal policy in an equal state, of the same class.
  virtual std::unique_ptr<RetentionPolicy> clone() const = 0;

  // Called once, before the first chunk and before restore.
  virtual void begin(const TableLayout& layout) { static_cast<void>(layout); }

  // -- Between chunks: what it holds. --

  // Tokens taken in so far: the first of the next chunk.
  virtual TokenIndex seen() const = 0;

  // Appends the tokens that a table retains in a run, as ascending, disjoint ranges that do not touch.
  virtual void retained(int table, int run, std::vector<IndexRange>& ranges) const = 0;

  // Returns the longest prefix of an n-token prompt that a complete, exact cache can stand in for: the largest m <= n
  // such that, in a cold run, nothing is hidden from a row before m, nothing has been evicted after m tokens, and no
  // row before m is wanted. Calling end_chunk for the chunks up to m then brings the policy there. Holds for every
  // chunk size; depends on options only.
  virtual std::int64_t exact_prefix(std::int64_t n) const = 0;

  // -- After a chunk. `plan` is clear; the caller applies what a call adds to it before the next call. --

  // Takes the chunk in, and adds what the table evicts.
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

  // -- Its capabilities; null: it lacks one. The answers never change. --

  virtual const ObservesMasses* observes_masses() const { return nullptr; }
  virtual const ReadsKv* reads_kv() const { return nullptr; }
  virtual const SumsQueries* sums_queries() const { return nullptr; }
  virtual const WeighsSlots* weighs_slots() const { return nullptr; }
  virtual const HidesRanges* hides_ranges() const { return nullptr; }
  virtual const LeavesUnread* leaves_unread() const { return nullptr; }
  virtual const RanksSegments* ranks_segments() const { return nullptr; }
  virtual const FollowsHeads* follows_heads() const { return nullptr; }
  virtual const KnowsPromptEnd* knows_prompt_end() const { return nullptr; }
  virtual const DependsOnModel* depends_on_model() const { return nullptr; }
  virtual const JoinsAnother* joins_another() const { return nullptr; }

  // Of a policy that may be changed.
  ObservesMasses* observes_masses() { return changeable(std::as_const(*this).observes_masses()); }
  ReadsKv* reads_kv() { return changeable(std::as_const(*this).reads_kv()); }
  SumsQueries* sums_queries() { return changeable(std::as_const(*this).sums_queries()); }
  KnowsPromptEnd* knows_prompt_end() { return changeable(std::as_const(*this).knows_prompt_end()); }
  JoinsAnother* joins_another() { return changeable(std::as_const(*this).joins_another()); }

 protected:
  explicit RetentionPolicy(PolicyTraits traits) : traits_(std::move(traits)) {}
  RetentionPolicy(const RetentionPolicy&) = default;
  RetentionPolicy& operator=(const RetentionPolicy&) = default;

  // Implement save and restore, which handle the spec. restore_state returns false for bytes that save_state does not
  // write.
  virtual void save_state(ByteWriter& out) const = 0;
  virtual bool restore_state(ByteReader& in) = 0;

 private:
  // They are bases of this very object.
  template <class Capability>
  static Capability* changeable(const Capability* capability) {
    return const_cast<Capability*>(capability);
  }

  PolicyTraits traits_;
};

// -- What capabilities say, and what holds without them. --

// Empty: it does not look at attention.
const std::vector<MassReduction>& reductions_of(const RetentionPolicy& policy);
// Whether it wants any mass of a row.
bool wants_row(const RetentionPolicy& policy, const PolicyChunk& chunk, int row);
// All of `want`, unless HidesRanges says otherwise.
int chunk_rows(const RetentionPolicy& policy, int want);
// Empty ranges, unless HidesRanges says otherwise.
void find_hidden(const RetentionPolicy& policy, const PolicyChunk& chunk, std::span<IndexRange> rows);
// True, unless LeavesUnread says otherwise.
bool all_read(const RetentionPolicy& policy);
// n, unless KnowsPromptEnd says otherwise.
std::int64_t shared_prefix(const RetentionPolicy& policy, std::int64_t n);
void move_prompt_end(RetentionPolicy& policy, TokenIndex end);
// Ok, unless DependsOnModel says otherwise.
Status check_model(const RetentionPolicy& policy, const PolicyModel& model);

}  // namespace kvasir
