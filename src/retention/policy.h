// The interface of retention policies: a small core, which every policy implements, and capabilities, which a policy
// has or has not. A policy decides which tokens of a text stay in the KV cache. It sees attention masses
// and keys if it asks for them, and never a page. It is deterministic. The engine, replay and tests call the same
// object in the same order.
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
//   ObservesMasses::observe(chunk, table)  after the pass of a row, if the policy wants it: rows of a table in order
//   ReadsKeys::read_keys(chunk, table)     once per table, when all rows of the chunk have run
//   end_chunk(chunk, table, plan)          once per table, when all rows of the chunk have run
//   finish_chunk(chunk, table, plan)       once per table, when end_chunk was called for all tables
//
// State changes in begin, observe, read_keys, end_chunk, finish_chunk, forget, move_prompt_end and restore alone. A
// chunk that is given up before its first observe leaves no trace.
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

// What a policy may need to know of a model.
struct PolicyModel {
  const Hash128* fingerprint = nullptr;  // null: not known
  int layers = 1;
  int kv_heads = 1;
  std::int64_t sliding_window = 0;
};

// -- Capabilities. A policy inherits those that it has, and returns itself where RetentionPolicy asks for them. --

// It looks at attention: at the mass that queries give to the tokens they see. REQUIRES: a scope of kLayer or kHead.
class ObservesMasses {
 public:
  virtual ~ObservesMasses() = default;

  // How the weights of a table's query heads become masses: one mass each, in this order. Not empty.
  const std::vector<MassReduction>& reductions() const { return reductions_; }

  // Whether a row's mass of reductions()[reduction] matters. Where it does not, masses[reduction] may be empty.
  virtual bool wants(const PolicyChunk& chunk, int row, int reduction) const {
    static_cast<void>(chunk), static_cast<void>(row), static_cast<void>(reduction);
    return true;
  }
  // Whether any of them matters. Where none does, observe need not be called for the row.
  bool wants_row(const PolicyChunk& chunk, int row) const {
    for (int reduction = 0; reduction < std::ssize(reductions_); ++reduction)
      if (wants(chunk, row, reduction)) return true;
    return false;
  }

  // Receives the masses of one row on every token that it sees, in order of index: those the table held before the
  // chunk, then the chunk's own up to the row itself. Rows come in order.
  virtual void observe(const PolicyChunk& chunk, int table, int row,
                       std::span<const std::span<const double>> masses) = 0;

 protected:
  explicit ObservesMasses(std::vector<MassReduction> reductions) : reductions_(std::move(reductions)) {}
  ObservesMasses(const ObservesMasses&) = default;
  ObservesMasses& operator=(const ObservesMasses&) = default;

 private:
  std::vector<MassReduction> reductions_;
};

// The keys of a chunk's tokens in a table, as attention reads them: decoded, rotated by what they are stored with.
struct ChunkKeys {
  std::span<const float> floats;  // [lanes][rows][head_dim]
  int lanes = 0;                  // KV heads of the table; of scope kSequence, those of all layers
  int rows = 0;
  int head_dim = 0;

  std::span<const float> of(int lane, int row) const {
    const auto dim = static_cast<std::size_t>(head_dim);
    return floats.subspan(
        (static_cast<std::size_t>(lane) * static_cast<std::size_t>(rows) + static_cast<std::size_t>(row)) * dim, dim);
  }
};

// It looks at keys. Replay refuses such a policy, since recordings have none. REQUIRES: exact_prefix(n) is 0, since
// keys of a prefix that a cache stood in for are not shown.
class ReadsKeys {
 public:
  virtual ~ReadsKeys() = default;

  // Receives the keys of the chunk's tokens, once for each table, when all rows of the chunk have run and were
  // observed, before any end_chunk.
  virtual void read_keys(const PolicyChunk& chunk, int table, const ChunkKeys& keys) = 0;

 protected:
  ReadsKeys() = default;
  ReadsKeys(const ReadsKeys&) = default;
  ReadsKeys& operator=(const ReadsKeys&) = default;
};

// It evicts ranges of old tokens, and hides them from rows of the chunk in which they go.
class HidesRanges {
 public:
  virtual ~HidesRanges() = default;

  // Returns how many of the next `want` tokens may form one chunk, from 1 to `want`: fewer where the table's frames
  // change in between.
  virtual int chunk_rows(int want) const = 0;

  // Sets rows[r] to the range that row r does not see, of the tokens retained before the chunk and the chunk's own.
  // Each range is empty, or begins at the oldest token that is not a sink; the ends of those that are not empty lie
  // within fewer tokens than there are rows. REQUIRES: rows.size() == chunk.rows.
  virtual void hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const = 0;

  // Returns the range that end_chunk will evict. With Realign::kRotate, keys behind it will then be written.
  virtual IndexRange will_drop(const PolicyChunk& chunk) const = 0;

 protected:
  HidesRanges() = default;
  HidesRanges(const HidesRanges&) = default;
  HidesRanges& operator=(const HidesRanges&) = default;
};

// Rows of generated tokens leave retained tokens unread. The keys and values of generated tokens are then not those
// that another policy has.
class LeavesUnread {
 public:
  virtual ~LeavesUnread() = default;

  // Whether every row so far read all that was retained for it.
  virtual bool all_read() const = 0;

  // Appends what the row of a generated token reads in a table, of the retained tokens and its own: ascending, disjoint
  // ranges that do not touch, the row's own token among them. Returns false, and appends nothing, if the row reads all.
  // A token that is not read stays retained, and its mass is zero.
  virtual bool reads(const PolicyChunk& chunk, int table, std::vector<IndexRange>& ranges) const {
    static_cast<void>(chunk), static_cast<void>(table), static_cast<void>(ranges);
    return false;
  }

 protected:
  LeavesUnread() = default;
  LeavesUnread(const LeavesUnread&) = default;
  LeavesUnread& operator=(const LeavesUnread&) = default;
};

// Generated tokens read the chunks of 16 tokens whose keys may fit their queries best. The engine ranks the chunks
// where the queries are (sequence/quest_selector.h). Replay refuses such a policy, since recordings have no keys.
// REQUIRES: LeavesUnread, and that nothing is evicted.
class RanksChunks {
 public:
  virtual ~RanksChunks() = default;

  // How many tokens a generated token reads in each KV head.
  virtual const Budget& chunk_budget() const = 0;

 protected:
  RanksChunks() = default;
  RanksChunks(const RanksChunks&) = default;
  RanksChunks& operator=(const RanksChunks&) = default;
};

// Some tables follow another of their layer: they read what that one chose, and what they leave unread leaves memory
// (offload/follower_heads.h). REQUIRES: LeavesUnread, ObservesMasses, and a scope of kHead.
class FollowsHeads {
 public:
  virtual ~FollowsHeads() = default;

  // Returns the table that decides what this one reads: itself, or another of its layer, with which it then agrees on
  // reads(); -1: not known yet. Once known it stays.
  virtual int leader(int table) const = 0;

  // Of tokens before this one, reads() names to a table that does not lead only those that were chosen: when the token
  // `next` is generated, or, with `prompt`, if a prompt that is being read ended before it or were given up there.
  virtual TokenIndex settled(TokenIndex next, bool prompt) const = 0;

  // Returns how many tokens before settled() reads() names at most, until another prompt has ended.
  virtual std::int64_t chosen() const = 0;

  // What the memory of offloading depends on.
  struct Bounds {
    int leaders = 0;          // tables of a layer that lead, at least
    bool known = false;       // leader() is known before the first token
    std::int64_t chosen = 0;  // tokens of a table that reads() names of those before settled(), at most
    std::int64_t recent = 0;  // newest tokens that are not settled, at most, when a chunk ends
  };
  // Behind a prompt of up to `tokens` tokens, with so many tables a layer.
  virtual Bounds bounds(int per_layer, std::int64_t tokens) const = 0;

 protected:
  FollowsHeads() = default;
  FollowsHeads(const FollowsHeads&) = default;
  FollowsHeads& operator=(const FollowsHeads&) = default;
};

// Where a prompt ends shows in the state before the prompt has ended.
class KnowsPromptEnd {
 public:
  virtual ~KnowsPromptEnd() = default;

  // Returns the longest prefix of an n-token prompt after which the state is what it would be in any longer prompt that
  // begins alike, once move_prompt_end was called. Depends on options only.
  virtual std::int64_t shared_prefix(std::int64_t n) const { return n; }

  // Says that the prompt under way ends at `end`, not where its chunks so far said. REQUIRES: no chunk is under way.
  virtual void move_prompt_end(TokenIndex end) { static_cast<void>(end); }

 protected:
  KnowsPromptEnd() = default;
  KnowsPromptEnd(const KnowsPromptEnd&) = default;
  KnowsPromptEnd& operator=(const KnowsPromptEnd&) = default;
};

// It serves some models and not others.
class DependsOnModel {
 public:
  virtual ~DependsOnModel() = default;

  // Whether the policy can serve a model. Errors: kInvalidArgument, kUnsupported.
  virtual Status check_model(const PolicyModel& model) const = 0;

  // What a user should be told once of the policy with a model, as a sentence without a full stop; empty: nothing.
  virtual std::string remark(int kv_heads) const = 0;

 protected:
  DependsOnModel() = default;
  DependsOnModel(const DependsOnModel&) = default;
  DependsOnModel& operator=(const DependsOnModel&) = default;
};

class RetentionPolicy;

// The two places in a composition (retention/composed.h).
enum class PolicyPart { kAtPromptEnd, kWhileGenerating };

// It can be part of a composition.
class JoinsAnother {
 public:
  virtual ~JoinsAnother() = default;

  // Returns a fresh policy, which joins another too: it evicts any tokens, keeps what this one keeps, and acts in its
  // place alone. Errors: kInvalidArgument if it cannot; the message says why.
  virtual Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const = 0;

  // Says that the other part evicted tokens; this part must forget them too. Called after its own end_chunk or
  // finish_chunk.
  virtual void forget(int table, std::span<const IndexRange> dropped) = 0;

 protected:
  JoinsAnother() = default;
  JoinsAnother(const JoinsAnother&) = default;
  JoinsAnother& operator=(const JoinsAnother&) = default;
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
    return traits_.compacts || leaves_unread() || observes_masses() || reads_keys() || traits_.demotion;
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
  virtual const ReadsKeys* reads_keys() const { return nullptr; }
  virtual const HidesRanges* hides_ranges() const { return nullptr; }
  virtual const LeavesUnread* leaves_unread() const { return nullptr; }
  virtual const RanksChunks* ranks_chunks() const { return nullptr; }
  virtual const FollowsHeads* follows_heads() const { return nullptr; }
  virtual const KnowsPromptEnd* knows_prompt_end() const { return nullptr; }
  virtual const DependsOnModel* depends_on_model() const { return nullptr; }
  virtual const JoinsAnother* joins_another() const { return nullptr; }

  // Of a policy that may be changed.
  ObservesMasses* observes_masses() { return changeable(std::as_const(*this).observes_masses()); }
  ReadsKeys* reads_keys() { return changeable(std::as_const(*this).reads_keys()); }
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
