// Optional capabilities of a policy besides the core (policy.h). A policy inherits those that it has, and names them in
// RetentionPolicy::capabilities. One that it lacks costs nothing. policy.h says when each function is called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/mass_reduction.h"
#include "base/hash.h"
#include "kv/keep_plan.h"
#include "kv/query_turn.h"
#include "kvasir/status.h"
#include "retention/budget.h"

namespace kvasir {

using TokenId = std::int32_t;  // as in text/vocabulary.h

// The tables of a sequence: table = layer * per_layer + (KV head, if per_layer is more than 1). A policy of scope
// kSequence has one table in all.
struct TableLayout {
  int layers = 1;
  int per_layer = 1;  // tables of one layer: 1, or the number of KV heads
  int heads = 1;      // query heads of one table; of scope kSequence, those of one layer
  int lanes = 1;      // KV heads of one table; of scope kSequence, those of all layers
  int head_dim = 0;   // of a key and of a value; 0: not known, and neither is shown
  QueryTurns turns;

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

// What a policy may need to know of a model.
struct PolicyModel {
  const Hash128* fingerprint = nullptr;  // null: not known
  int layers = 1;
  int kv_heads = 1;
  std::int64_t sliding_window = 0;
  int heads = 0;        // query heads of a layer; 0: not known
  int head_dim = 0;     // 0: not known
  bool latent = false;  // attention is latent: values pass through further matrices before the output projection
};

// The base of all capabilities. Copied only as a part of a policy.
class Capability {
 public:
  virtual ~Capability() = default;

 protected:
  Capability() = default;
  Capability(const Capability&) = default;
  Capability& operator=(const Capability&) = default;
};

// The policy looks at attention: the mass that queries give to the tokens they see. REQUIRES: a scope of kLayer or
// kHead.
class ObservesMasses : public Capability {
 public:
  // How the weights of a table's query heads become masses: one mass each, in this order. Not empty.
  const std::vector<MassReduction>& reductions() const { return reductions_; }

  // Whether a row's mass of reductions()[reduction] matters. Where it does not, masses[reduction] may be empty.
  virtual bool wants(const PolicyChunk& /*chunk*/, int /*row*/, int /*reduction*/) const { return true; }
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

 private:
  std::vector<MassReduction> reductions_;
};

// Keys and values of a chunk's tokens in a table, as attention reads them: decoded from the pages, so rounded to what
// the pages hold, and without the pages' Hadamard matrix.
struct ChunkKv {
  int lanes = 0;  // TableLayout::lanes
  int rows = 0;
  int head_dim = 0;
  std::span<const float> keys;    // [lanes][rows][head_dim]; empty: not wanted
  std::span<const float> values;  // the same
  // [lanes][rows]: the position that a key was rotated by (RoPE); 0 in layers that do not rotate keys. Pair
  // (2 i, 2 i + 1) of a key was turned by that times the model's inverse frequency i. With PositionMode::kOriginal it
  // is the token index; otherwise it counts from the origin of a frame. Differences between rows of a chunk are
  // differences of positions either way.
  std::span<const std::int64_t> rotations;

  // Returns a view with the wanted sides alone.
  ChunkKv only(bool wants_keys, bool wants_values) const {
    ChunkKv kv = *this;
    if (!wants_keys) kv.keys = {};
    if (!wants_values) kv.values = {};
    return kv;
  }
  std::int64_t rotation(int lane, int row) const { return rotations[index(lane, row)]; }
  std::span<const float> key(int lane, int row) const { return of(keys, lane, row); }
  std::span<const float> value(int lane, int row) const { return of(values, lane, row); }

 private:
  std::span<const float> of(std::span<const float> floats, int lane, int row) const {
    const auto dim = static_cast<std::size_t>(head_dim);
    return floats.subspan(index(lane, row) * dim, dim);
  }
  std::size_t index(int lane, int row) const {
    return static_cast<std::size_t>(lane) * static_cast<std::size_t>(rows) + static_cast<std::size_t>(row);
  }
};

// The policy reads keys, values or both. REQUIRES: exact_prefix(n) is 0, since tokens of a cached prefix are not shown.
class ReadsKv : public Capability {
 public:
  bool wants_keys() const { return keys_; }
  bool wants_values() const { return values_; }

  // Receives the keys and values of the chunk's tokens in a table: once per table, when all rows of the chunk have run
  // and were observed, before any end_chunk.
  virtual void read_kv(const PolicyChunk& chunk, int table, const ChunkKv& kv) = 0;

 protected:
  explicit ReadsKv(bool keys = true, bool values = true) : keys_(keys), values_(values) {}

 private:
  bool keys_;
  bool values_;
};

// Keys and values of all tokens that a table holds, read from the pages block by block.
class HeldKv {
 public:
  struct Block {
    std::int64_t first = 0;   // tokens held before row 0
    std::int64_t origin = 0;  // of the block's frame: a key's position is its rotation and this
    ChunkKv kv;
  };
  using Visit = std::function<void(const Block& block)>;
  enum class Sides { kNeither, kKeys, kValues, kBoth };  // kNeither: rotations alone, which cost next to nothing
  static bool has_keys(Sides sides) { return sides == Sides::kKeys || sides == Sides::kBoth; }
  static bool has_values(Sides sides) { return sides == Sides::kValues || sides == Sides::kBoth; }

  virtual ~HeldKv() = default;
  virtual std::int64_t tokens() const = 0;
  // Visits all tokens in order of index. May be called several times.
  virtual void visit(Sides sides, const Visit& visit) = 0;
  // Sets norms[i] to the mean over the table's query heads of ||Wo v||_1: the L1 norm of what the output projection
  // makes of the value of the i-th token in a head's place. REQUIRES: ReadsHeldKv::projects_values; norms.size() is
  // tokens().
  virtual void projected_norms(std::span<double> norms) = 0;

 protected:
  HeldKv() = default;
  HeldKv(const HeldKv&) = default;
  HeldKv& operator=(const HeldKv&) = default;
};

// The policy reads keys and values of all tokens that a table holds, whenever they came. Tokens of a cached prefix are
// among them, so exact_prefix(n) may be more than 0.
class ReadsHeldKv : public Capability {
 public:
  // Whether read_held is to be called for a table when this chunk ends. Asked before the chunk runs too, and while
  // other tables are read.
  virtual bool wants_held(const PolicyChunk& chunk, int table) const = 0;

  // Receives what the table holds, the chunk's tokens included: after read_kv of all tables, before any end_chunk.
  // Several tables may be read at once.
  virtual void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) = 0;

  // Whether read_held asks for HeldKv::projected_norms. Tables are then read one at a time. Replay refuses such a
  // policy, since recordings have no weights.
  virtual bool projects_values() const { return false; }

  // Returns the most bytes that read_held allocates for a table of so many tokens, and has given back when it returns.
  // Each table that is read at the same time takes as many.
  virtual std::uint64_t held_scratch_bytes(const TableLayout& /*layout*/, std::int64_t /*tokens*/) const { return 0; }
};

// Sums over rows of a chunk of the queries of a table's query heads, as they are before rotation and scaling. Every sum
// is taken in double, row by row in order, so its bits do not depend on passes, batches or threads. With scope
// kSequence the heads are those of all layers in turn.
struct QuerySums {
  std::int64_t rows = 0;
  int heads = 0;
  int head_dim = 0;
  std::span<const double> sums;  // [heads][head_dim]
  // [heads][head_dim * (head_dim + 1) / 2]: lower triangles, row by row. Empty with one row, whose products follow from
  // its sums.
  std::span<const double> products;

  double sum(int head, int i) const { return sums[index(head, head_dim) + static_cast<std::size_t>(i)]; }
  // The sum of q[i] * q[j].
  double product(int head, int i, int j) const {
    if (products.empty()) return sum(head, i) * sum(head, j);
    if (i < j) std::swap(i, j);
    return products[index(head, head_dim * (head_dim + 1) / 2) + static_cast<std::size_t>(i * (i + 1) / 2 + j)];
  }

 private:
  static std::size_t index(int head, int size) {
    return static_cast<std::size_t>(head) * static_cast<std::size_t>(size);
  }
};

// The policy looks at sums of queries, from which their mean and covariance follow. REQUIRES: no row before
// exact_prefix(n) is wanted.
class SumsQueries : public Capability {
 public:
  // Whether a row's queries are added.
  virtual bool wants_queries(const PolicyChunk& /*chunk*/, int /*row*/) const { return true; }

  // Receives the sums over the wanted rows of a chunk, once for each table, when all its rows have run and were
  // observed, before any end_chunk and before read_kv of that table. Not called for a chunk without such rows.
  virtual void read_queries(const PolicyChunk& chunk, int table, const QuerySums& queries) = 0;
};

// The policy gives retained tokens a bias, which is added to the logits of all queries that attend to them (Attention
// Matching, arXiv 2602.16284). It keeps the biases in its state. Observed weights and masses, and recordings, include
// the biases. REQUIRES: PolicyTraits::compacts, and not FollowsHeads; no bias other than 0 in a prefix of
// exact_prefix(n). Demoted tokens have no bias.
class WeighsSlots : public Capability {
 public:
  // Writes the biases of all tokens that a table retained before the chunk under way, in order of index, in a lane of
  // the table: finite numbers. Returns false, and writes nothing, if all are 0. Tokens of the chunk have none. The
  // answer does not change during a chunk.
  virtual bool biases(int table, int lane, std::span<float> biases) const = 0;
};

// The policy evicts ranges of old tokens, and hides them from rows of the chunk in which it evicts them.
class HidesRanges : public Capability {
 public:
  // Returns how many of the next `want` tokens may form one chunk, from 1 to `want`: fewer where the table's frames
  // change in between.
  virtual int chunk_rows(int want) const = 0;

  // Sets rows[r] to the range that row r does not see, of the tokens retained before the chunk and the chunk's own.
  // Each range is empty, or begins at the oldest token that is not a sink; the ends of those that are not empty lie
  // within fewer tokens than there are rows. REQUIRES: rows.size() == chunk.rows.
  virtual void hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const = 0;

  // Returns the range that end_chunk will evict. With Realign::kRotate, keys behind it will then be written.
  virtual IndexRange will_drop(const PolicyChunk& chunk) const = 0;
};

// Rows of generated tokens leave retained tokens unread. The keys and values of generated tokens are then not those
// that another policy has.
class LeavesUnread : public Capability {
 public:
  // Whether every row so far read all that was retained for it.
  virtual bool all_read() const = 0;

  // Appends what the row of a generated token reads in a table, of the retained tokens and its own: ascending, disjoint
  // ranges that do not touch, the row's own token among them. Returns false, and appends nothing, if the row reads all.
  // A token that is not read stays retained, and its mass is zero.
  virtual bool reads(const PolicyChunk& /*chunk*/, int /*table*/, std::vector<IndexRange>& /*ranges*/) const {
    return false;
  }
};

// Generated tokens read the chunks of 16 tokens whose keys may fit their queries best. The engine ranks the chunks
// where the queries are (sequence/quest_selector.h). Replay refuses such a policy, since recordings have no keys.
// REQUIRES: LeavesUnread, and that nothing is evicted.
class RanksSegments : public Capability {
 public:
  // How many tokens a generated token reads in each KV head.
  virtual const Budget& segment_budget() const = 0;
};

// Some tables follow another of their layer: they read what that one chose, and keys and values that they leave unread
// are moved out of memory (offload/follower_heads.h). REQUIRES: LeavesUnread, ObservesMasses, and a scope of kHead.
class FollowsHeads : public Capability {
 public:
  // Returns the table that decides what this one reads: itself, or another of its layer, with which it then agrees on
  // reads(); -1: not known yet. Once known it stays.
  virtual int leader(int table) const = 0;

  // Returns a token before which reads() names only chosen tokens to a table that follows another: when the token
  // `next` is generated, or, with `prompt`, if the prompt that is being read ended before `next` or were given up
  // there.
  virtual TokenIndex settled(TokenIndex next, bool prompt) const = 0;

  // Returns the most tokens before settled() that reads() names, until another prompt has ended.
  virtual std::int64_t chosen() const = 0;

  // Determines the memory that offloading takes.
  struct Bounds {
    int leaders = 0;          // tables of a layer that lead, at least
    bool known = false;       // leader() is known before the first token
    std::int64_t chosen = 0;  // tokens of a table that reads() names of those before settled(), at most
    std::int64_t recent = 0;  // newest tokens that are not settled, at most, when a chunk ends
  };
  // Returns the bounds behind a prompt of up to `tokens` tokens, with so many tables per layer.
  virtual Bounds bounds(int per_layer, std::int64_t tokens) const = 0;
};

// The state depends on where the prompt under way ends, before that end is reached.
class KnowsPromptEnd : public Capability {
 public:
  // Returns the longest prefix of an n-token prompt after which the state is what it would be in any longer prompt that
  // begins alike, once move_prompt_end was called. Depends on options only.
  virtual std::int64_t shared_prefix(std::int64_t n) const { return n; }

  // Says that the prompt under way ends at `end`, not where its chunks so far said. REQUIRES: no chunk is under way.
  virtual void move_prompt_end(TokenIndex /*end*/) {}
};

// The policy serves some models and not others.
class DependsOnModel : public Capability {
 public:
  // Whether the policy can serve a model. Errors: kInvalidArgument, kUnsupported.
  virtual Status check_model(const PolicyModel& model) const = 0;

  // Returns what to tell the user once about the policy with a model, as a sentence without a full stop; empty:
  // nothing.
  virtual std::string remark(int kv_heads) const = 0;
};

class RetentionPolicy;

// The policy has the model repeat the text before it decides what to evict (KVzip). When a prompt has ended,
// next_part() names parts of the text, one after the other. The engine runs each behind an instruction as if it were
// the text's continuation, with a clone of the policy that was told to observe_part(), and shows the clone to
// end_part(). Keys and values of the repetition leave no trace. When no part is left, evict() is called for each table
// in order. All this happens between two chunks. REQUIRES: a policy that may drop any token (PolicyTraits::compacts),
// and exact_prefix(n) is 0, since tokens of a cached prefix are not shown.
class RepeatsText : public Capability {
 public:
  struct Part {
    std::span<const TokenId> lead;    // the newest tokens before the part, for the instruction; empty: it is the first
    std::span<const TokenId> tokens;  // empty: nothing is left to repeat
  };

  // Receives the tokens of the rows of a pass, before they run.
  virtual void take_text(std::span<const TokenId> tokens) = 0;
  // Returns the tokens that were taken and may still be repeated.
  virtual std::span<const TokenId> text() const = 0;

  // Returns the part to repeat next. Valid until the state changes.
  virtual Part next_part() const = 0;
  // Makes the policy, a clone, observe all rows of the chunks to come, evict nothing and repeat nothing.
  virtual void observe_part() = 0;
  // Takes what the clone has observed while the part ran.
  virtual void end_part(const RetentionPolicy& clone) = 0;
  // Adds what a table evicts. May allocate as much as the clone's state took. REQUIRES: the last part has just ended.
  virtual void evict(int table, KeepPlan& plan) = 0;

  // Returns the most tokens of a part of a text of so many, its lead included.
  virtual int most_part(std::int64_t tokens) const = 0;
};

// The policy drops the thoughts of an answer once they have closed.
class DropsThoughts : public Capability {
 public:
  // Drops retained tokens: adds them to the plan, which the caller applies. Called between two chunks, once at most.
  virtual void drop_thoughts(IndexRange thoughts, KeepPlan& plan) = 0;
};

// The two places in a composition (retention/composed.h).
enum class PolicyPart { kAtPromptEnd, kWhileGenerating };

// The policy can be part of a composition.
class JoinsAnother : public Capability {
 public:
  // Returns a fresh policy for this place: it keeps what this one keeps, acts in its place alone, may drop any token
  // (PolicyTraits::compacts) and can join another too. Errors: kInvalidArgument; the message says why.
  virtual Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const = 0;

  // Removes tokens that the other part evicted. Called after this part's own end_chunk or finish_chunk.
  virtual void forget(int table, std::span<const IndexRange> dropped) = 0;
};

// The capabilities of one policy: a pointer to each that it has, null for the others.
class Capabilities {
 public:
  // Adds capabilities of `policy` by name: Capabilities().with<ReadsKv, JoinsAnother>(this). Null: it lacks them.
  template <class... Names, class Policy>
  Capabilities with(const Policy* policy) const {
    Capabilities all = *this;
    ((std::get<const Names*>(all.pointers_) = policy), ...);
    return all;
  }
  template <class Name>
  const Name* get() const {
    return std::get<const Name*>(pointers_);
  }

 private:
  std::tuple<const ObservesMasses*, const ReadsKv*, const ReadsHeldKv*, const SumsQueries*, const WeighsSlots*,
             const HidesRanges*, const LeavesUnread*, const RanksSegments*, const FollowsHeads*, const KnowsPromptEnd*,
             const DependsOnModel*, const JoinsAnother*, const RepeatsText*, const DropsThoughts*>
      pointers_;
};

}  // namespace kvasir
