// One sequence under one retention policy: its page tables, its policy, and the chunk under way. Plans its next pass
// (const), makes room for it, describes it to a batch, and prunes when the chunk has ended. Step (sequence/step.h) runs
// the passes of one sequence or many.
//
// Not copied or moved: batches point to its parts.
// Thread-safety: one caller at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "offload/offloaded_tokens.h"
#include "retention/policy.h"
#include "runtime/loaded_model.h"
#include "sequence/draft_view.h"
#include "sequence/policy_listener.h"
#include "sequence/policy_reads.h"

namespace kvasir {

inline constexpr int kDefaultChunk = 512;

// Whether tokens are a prompt, which is read in chunks and ends with the last of them, or were generated one by one.
enum class Source { kPrompt, kGenerated };
enum class Logits { kNone, kLast, kAll };

// Returns what policies are told of a model.
PolicyModel policy_model(const LoadedModel& model);

// Returns the layout of a sequence under a policy. `codec`: none: that of the cache.
SequenceLayout sequence_layout(const RetentionPolicy& policy, std::optional<KvCodec> codec = {});

// Returns the most tokens of a prompt that share a chunk: `chunk`, or if it is 0 the policy's own, or else
// kDefaultChunk.
int prompt_chunk(const RetentionPolicy& policy, int chunk);

// Returns the rows of the chunk that starts at token `done` of a text of `total` tokens. The first `prompt` tokens go
// in chunks on a grid anchored at token 0, the others singly.
int next_chunk_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk);
// As above, under a policy that may have the last token of a prompt alone (PolicyTraits::last_alone).
int next_chunk_rows(const RetentionPolicy& policy, std::int64_t done, std::int64_t prompt, std::int64_t total,
                    int chunk);

class Sequence {
 public:
  // `codec`: one that the cache allows; none: that of the cache's shape. `adapters`: of the model; none: those of texts
  // that do not choose.
  Sequence(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache, std::unique_ptr<RetentionPolicy> policy,
           std::optional<KvCodec> codec = {}, std::optional<std::vector<AppliedAdapter>> adapters = {});

  // Every row rotates its query once per frame. Before a chunk of more than kFewRows rows, a table of lists with
  // compact positions and one run is compacted if it has more than kMostChunkFrames frames; with encoded pages, more
  // than kMostEncodedChunkFrames.
  static constexpr int kFewRows = 8;
  static constexpr int kMostChunkFrames = 4;
  static constexpr int kMostEncodedChunkFrames = 16;

  // Tokens to run next.
  struct Input {
    std::span<const TokenId> rest;  // what is left of a prompt, or generated tokens; not empty
    Source source = Source::kPrompt;
    int chunk = 0;                                    // of prompts; 0: the policy's own
    int most_rows = std::numeric_limits<int>::max();  // of this pass
    Logits logits = Logits::kLast;                    // kLast: of the last of `rest`
    bool hidden = false;                              // hidden states of all tokens, in place of logits
    // The last this many of `rest` are drafts, which a pass may take back (finish_pass). It runs as many as fit behind
    // the first, a generated token.
    int drafts = 0;
    // Set: the pass runs the first of `rest`, a generated token, which attends to this view alone, for the logits
    // behind it. take_back_drafting() must follow before any other call. REQUIRES: may_draft().
    std::optional<DraftView> view;
  };

  // The next pass: some rows of a chunk.
  struct PassPlan {
    PolicyChunk chunk;
    bool begins_chunk = true;
    int first = 0;  // row of the chunk
    int rows = 0;
    int logits = 0;                    // of the last this many rows
    int hidden = 0;                    // hidden states of the last this many rows
    std::optional<IndexRange> unseen;  // tokens outside Input::view
    std::uint64_t bytes = 0;           // that the rows take: pages, tables, and the growth of `state`
    std::uint64_t state = 0;           // most bytes of policy state until the chunk has ended
    std::uint64_t reserve = 0;  // bytes that must also be available, for copies of shared pages at the chunk's end
    int grid = 0;               // of a pass that repeats the text (RepeatsText): the most tokens of its chunks
    bool ends_chunk() const { return first + rows == chunk.rows; }
    bool has_drafts() const { return !chunk.prompt && rows > 1; }
    bool is_drafting() const { return unseen.has_value(); }
    bool repeats() const { return grid > 0; }
  };
  // Plans as many of the first tokens of `input.rest` as share a chunk, or complete the one under way, up to most_rows;
  // or, where the policy has the model repeat the text first, rows of that, and none of `input.rest`. REQUIRES:
  // status().ok().
  PassPlan plan_pass(const Input& input) const;

  // Makes room for the rows of a plan. Succeeds whole or leaves no trace. From its success until finish_pass, status()
  // is an error, which stays if an exception ends the pass. Errors: kResourceExhausted.
  Status make_room(const PassPlan& plan);
  // Adds the rows to a batch. REQUIRES: make_room(plan) succeeded; the sequence outlives the batch unchanged.
  void describe(const PassPlan& plan, std::span<const TokenId> tokens, Batch* batch, std::size_t* tables_in_use);
  // The rows have run. At the end of a chunk, executes what the policy decides. `rows`: of a pass with drafts, those
  // that stay, at least one: the others leave no trace.
  void finish_pass(const PassPlan& plan, int rows);

  // Returns the most drafts, up to `wanted`, that may run behind the next generated token. Why it is 0 for the whole
  // text: drafts_refused().
  int most_drafts(int wanted) const;
  // Returns why the text can have no drafts, or an empty text.
  std::string_view drafts_refused() const;

  // Returns whether the sequence itself may now draft `drafts` tokens behind the next generated one, by as many passes
  // with Input::view. Why it never may: drafting_refused(). REQUIRES: drafts <= most_drafts(drafts).
  bool may_draft(const DraftView& view, int drafts) const;
  std::string_view drafting_refused() const;
  // Ends the passes with Input::view since the last call: their first `stay` rows become a chunk of generated tokens,
  // the others leave no trace. REQUIRES: stay is 0, or the view is what the policy keeps, as a range.
  void take_back_drafting(int stay = 0);

  // Ok, or why the sequence cannot go on: the policy cannot serve the model, or a pass was abandoned halfway. The
  // sequence may then only be looked at and destroyed.
  const Status& status() const { return status_; }
  // Records that a pass begun by make_room has failed. REQUIRES: !why.ok().
  void fail(Status why) { status_ = std::move(why); }

  // Drops the thoughts of an answer from all tables that the policy governs. REQUIRES: !in_chunk(); the policy has
  // DropsThoughts, and has dropped nothing.
  void drop_thoughts(IndexRange thoughts);

  bool in_chunk() const { return done_ > 0; }  // some rows of a chunk have run, others have not

  // Returns how many rows are left of the part of the text that the model repeats next; 0: none, the next pass runs
  // tokens of its input. Such a pass has no logits.
  std::int64_t rows_to_repeat() const;
  std::int64_t repeated_rows() const { return repeated_rows_; }  // that ran so far
  // The fork that repeats a part, while some of its rows have run and others have not; null otherwise.
  const Sequence* part() const { return part_.get(); }
  // Frees that fork. The part is repeated from its beginning when the text goes on.
  void give_up_part();

  // Makes a sequence in the same state that shares all pages and has copies of its layers' states. It has no taps.
  // REQUIRES: !in_chunk(). Errors: kResourceExhausted, status().
  Result<std::unique_ptr<Sequence>> fork() const;

  const std::shared_ptr<LoadedModel>& model() const { return model_; }
  const std::shared_ptr<KvCache>& cache() const { return cache_; }
  const KvCacheShape& shape() const { return shape_; }  // the cache's, with pages of this sequence's codec
  // The most tokens that its rotation is trained for.
  std::int64_t context() const { return model_->config.context_of(shape_.long_rotation); }
  std::span<const AppliedAdapter> adapters() const { return adapters_; }  // that all its tokens run with
  const KvSequence& tables() const { return tables_; }
  KvSequence& mutable_tables() { return tables_; }
  const RetentionPolicy& policy() const { return *policy_; }
  RetentionPolicy& mutable_policy() { return *policy_; }
  PolicyListener& listener() { return listener_; }  // what the policy is shown
  PolicyReads& reads() { return reads_; }           // what its rows read of the tables
  const PolicyReads& reads() const { return reads_; }
  const OffloadedTokens& offloaded() const { return offloaded_; }  // what they read beside the tables

  // Bytes of its tables, of the pages they refer to (shared ones included), of its layers' states, of its policy's
  // state and of offloaded tokens: now, and at most so far.
  std::uint64_t bytes() const;
  std::uint64_t bytes_peak() const { return std::max(bytes_peak_, bytes()); }
  // Parts of bytes() that nobody shares: without the tables' pages, and these.
  std::uint64_t own_bytes_beside_pages() const;
  std::uint64_t own_page_bytes() const { return part_ != nullptr ? own_page_bytes_ : tables_.own_page_bytes(); }
  // Bytes charged for the state of policy and selector: what is allocated for it, from the first pass on.
  std::uint64_t state_bytes() const { return state_.bytes(); }

  // Figures of the passes so far, which are saved with tables and policy.
  struct Counters {
    std::int64_t kept_max = 0;                // most tokens that a pass saw, in any table
    std::int64_t seen_least = 0;              // tokens that the last pass saw, in the table that held fewest
    std::optional<TokenIndex> first_dropped;  // the least index that some table no longer retains
  };
  const Counters& counters() const { return counters_; }
  // Goes on from tables and a policy that were restored: charges the bytes that the policy's state takes now. Errors:
  // kResourceExhausted.
  Status resume(const Counters& counters);

  // Returns the least number of tokens to which the sequence could still be cut: all of them once any was dropped, or
  // where layers hold states; otherwise as many as let a native sliding window find its pages. 0: to any number.
  TokenIndex truncatable_from() const {
    return counters_.first_dropped ? tables_.next_index() : tables_.truncatable_from();
  }

 private:
  // What stands before the first part that is repeated, before later ones, and behind either of these.
  struct Instruction {
    std::vector<TokenId> first, later, end;
  };

  Sequence(const Sequence& other, KvSequence tables);
  std::uint64_t most_state(const PolicyChunk& chunk) const;
  void count_seen(std::int64_t most);
  void prune();
  void decide(const std::function<void(int table)>& ask);
  void prepare_tables(const PolicyChunk& chunk);
  static void limit_frames(PageTable& table);  // compacts a table of many frames
  Instruction instruction_to_repeat() const;
  std::vector<TokenId> tokens_of_part() const;
  PassPlan plan_part(const Input& input) const;
  Input part_input(int grid, int most_rows) const;
  Status begin_part();
  Status make_room_for_part(const PassPlan& plan);
  void finish_part_pass();
  PassPlan plan_drafting(const DraftView& view) const;
  bool drafts_may_begin_pages() const;

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::vector<AppliedAdapter> adapters_;
  std::unique_ptr<RetentionPolicy> policy_;
  RepeatsText* repeats_;  // null: the policy has the model repeat nothing
  Instruction instruction_;
  KvSequence tables_;
  KvCacheShape shape_;
  PolicyListener listener_;
  PolicyReads reads_;
  OffloadedTokens offloaded_;
  MemoryCharge state_;  // of the state of policy and selector
  int most_rows_ = 1;   // of any chunk so far
  int drafting_ = 0;    // rows to take back

  // A fork that repeats a part of the text; null: none is under way.
  std::unique_ptr<Sequence> part_;
  std::vector<TokenId> part_tokens_;  // of it, the instruction first
  std::int64_t part_done_ = 0;        // of these, those that have run
  PassPlan part_plan_;                // of its pass under way
  std::uint64_t own_page_bytes_ = 0;  // before it shared the pages
  std::uint64_t evict_reserve_ = 0;   // bytes that evicting may take then, for copies of shared pages
  bool is_part_ = false;              // this sequence is such a fork
  std::int64_t repeated_rows_ = 0;

  PolicyChunk chunk_;  // under way
  int done_ = 0;       // rows of it that have run
  KeepPlan plan_;

  Counters counters_;
  std::uint64_t bytes_peak_ = 0;
  Status status_;
};

}  // namespace kvasir
