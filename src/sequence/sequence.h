// One sequence under one retention policy: its page tables, its policy's state, the chunk that is under way. It says
// what its next pass is (plan, const), makes room for it, describes it to a batch, receives its attention, and prunes.
// Whoever runs passes (sequence/step.h) does so for one sequence or for many.
//
// Thread-safety: one caller at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/attention_listener.h"
#include "kv/kv_cache.h"
#include "offload/demotion.h"
#include "offload/follower_heads.h"
#include "retention/policy.h"
#include "runtime/loaded_model.h"
#include "sequence/policy_inputs.h"
#include "sequence/sequence_selector.h"
#include "sequence/slot_biases.h"

namespace kvasir {

inline constexpr int kDefaultChunk = 512;

// Whether tokens are a prompt, read in chunks and ended with the last of them, or were generated, one after the other.
enum class Source { kPrompt, kGenerated };
enum class Logits { kNone, kLast, kAll };

// What policies are told of a model.
PolicyModel policy_model(const LoadedModel& model);

// How a sequence under this policy is held. `codec`: none: that of the cache.
SequenceLayout sequence_layout(const RetentionPolicy& policy, std::optional<KvCodec> codec = {});

// Tokens of a prompt that share a chunk: `chunk`, or if it is 0 what the policy or else the engine's default says.
int prompt_chunk(const RetentionPolicy& policy, int chunk);

// Rows of the chunk that starts at token `done`: prompts go in chunks on a grid anchored at token 0, the rest singly.
int next_chunk_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk);
// The same for a policy, which may have the last token of a prompt alone.
int next_chunk_rows(const RetentionPolicy& policy, std::int64_t done, std::int64_t prompt, std::int64_t total,
                    int chunk);

class Sequence {
 public:
  // `codec`: one that the cache allows; none: that of the cache's shape.
  Sequence(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache, std::unique_ptr<RetentionPolicy> policy,
           std::optional<KvCodec> codec = {});
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence();

  // Every row rotates its query for every frame. A chunk of more than kFewRows rows begins with a compaction of tables
  // of lists with compact positions and one run that have more than kMostChunkFrames frames; of those whose pages are
  // encoded, kMostEncodedChunkFrames.
  static constexpr int kFewRows = 8;
  static constexpr int kMostChunkFrames = 4;
  static constexpr int kMostEncodedChunkFrames = 16;

  // Tokens that wait to be run behind what the sequence holds.
  struct Input {
    std::span<const TokenId> rest;  // what is left of a prompt, or generated tokens; not empty
    Source source = Source::kPrompt;
    int chunk = 0;                                    // of prompts; 0: the policy's own
    int most_rows = std::numeric_limits<int>::max();  // of this pass
    Logits logits = Logits::kLast;                    // kLast: of the last of `rest`
  };

  // The next pass: some rows of a chunk.
  struct PassPlan {
    PolicyChunk chunk;
    bool begins_chunk = true;
    int first = 0;  // row of the chunk
    int rows = 0;
    int logits = 0;             // of the last this many rows
    std::uint64_t bytes = 0;    // that the rows take: pages, tables, and the growth of `state`
    std::uint64_t state = 0;    // bytes of policy state, at most, until the chunk has ended
    std::uint64_t reserve = 0;  // bytes that must be available besides, for copies of shared pages at the chunk's end
    bool ends_chunk() const { return first + rows == chunk.rows; }
  };
  // Plans as many of the first tokens of `input.rest` as share a chunk, or are left of the one under way, up to
  // most_rows. Changes nothing. REQUIRES: status().ok().
  PassPlan plan_pass(const Input& input) const;

  // Makes room for the rows of a plan. Succeeds whole or leaves no trace. status() is an error from here until
  // finish_pass: where an exception ends the pass, it stays one. Errors: kResourceExhausted.
  Status make_room(const PassPlan& plan);
  // Adds the rows to a batch. REQUIRES: make_room(plan) succeeded; the sequence outlives the batch unchanged.
  void describe(const PassPlan& plan, std::span<const TokenId> tokens, Batch* batch, std::size_t* tables_in_use);
  // The rows have run. At the end of a chunk the policy decides, and its plan is executed.
  void finish_pass(const PassPlan& plan);

  // Ok, or why the sequence cannot go on: the policy cannot serve the model, or a pass did not come to its end and has
  // left it half applied. It may then only be looked at and destroyed.
  const Status& status() const { return status_; }
  // A pass that make_room began has failed. REQUIRES: !why.ok().
  void fail(Status why) { status_ = std::move(why); }

  bool in_chunk() const { return done_ > 0; }  // some rows of a chunk have run, others not

  // Optional observer of the attention of every pass; may be null. Must outlive the passes. While there is one, the
  // tables that the policy governs give back no page behind a sliding window; a memory plan that is to hold then takes
  // a shape without a window.
  void set_tap(AttentionObserver* tap);
  // Optional second reader of keys and values, of all chunks; may be null. Must outlive the passes. What it takes is
  // not charged.
  void set_kv_tap(ReadsKv* tap) { kv_tap_ = tap; }
  // For tests: in place of the policy's own. REQUIRES: no pass has run.
  void set_selector(std::unique_ptr<SequenceSelector> selector) { selector_ = std::move(selector); }
  // Chooses what its rows read; null: all that they see.
  const SequenceSelector* selector() const { return selector_.get(); }
  // What the policy dropped and is still to be had; null: it is lost.
  const SequenceDemotion* demotion() const { return demotion_.get(); }
  // Whether anything is.
  bool has_demoted() const { return demotion_ != nullptr && !demotion_->empty(); }
  // Heads whose keys and values leave memory; null: of none they do.
  const FollowerHeads* followers() const { return followers_.get(); }
  // Whether its tables have all that its rows may read: nothing was demoted or offloaded.
  bool is_whole() const { return !has_demoted() && (followers_ == nullptr || followers_->empty()); }
  // What kept its rows of the last pass from reading what was demoted or offloaded: their results are then wrong.
  Status recall_status() const {
    if (followers_ != nullptr && !followers_->status().ok()) return followers_->status();
    return demotion_ != nullptr ? demotion_->status() : Status();
  }
  // Charges the bytes that the policy's state takes now, after the policy was restored. Errors: kResourceExhausted.
  Status charge_state();

  // Copies what is shared and will be written sooner or later. Errors: kResourceExhausted.
  Status own_pages();

  // A sequence in the same state that shares all pages and has copies of its layers' states. REQUIRES: !in_chunk().
  // Errors: kResourceExhausted, status().
  Result<std::unique_ptr<Sequence>> fork() const;

  LoadedModel& model() { return *model_; }
  const std::shared_ptr<LoadedModel>& shared_model() const { return model_; }
  const std::shared_ptr<KvCache>& cache() const { return cache_; }
  const KvCacheShape& shape() const { return shape_; }  // the cache's, with pages of this sequence's codec
  const KvSequence& tables() const { return tables_; }
  KvSequence& mutable_tables() { return tables_; }
  const RetentionPolicy& policy() const { return *policy_; }
  RetentionPolicy& mutable_policy() { return *policy_; }
  std::int64_t kept_max() const { return kept_max_; }      // most tokens a pass saw, in any table
  std::int64_t seen_least() const { return seen_least_; }  // tokens the last pass saw, in the table that held fewest
  // Bytes of its tables, of the pages they refer to (shared ones included), of its layers' states, and of its policy's
  // state: now, and at most since it was made.
  std::uint64_t bytes() const;
  std::uint64_t bytes_peak() const { return std::max(bytes_peak_, bytes()); }
  double seconds_observing() const;  // that the policy took for what it was shown
  // Bytes charged for the state of policy and selector: what is allocated for it, from the first pass on.
  std::uint64_t state_bytes() const { return state_.bytes(); }
  // Bytes that nobody shares, but for the tables' pages.
  std::uint64_t own_bytes_beside_pages() const;

  // The least index that is no longer retained everywhere; nothing while all are.
  std::optional<TokenIndex> first_dropped() const { return first_dropped_; }

  // The least number of tokens to which the sequence could still be cut: all of them once a policy dropped any, or
  // where layers hold states; otherwise as many as let a native sliding window find its pages. 0: to any number.
  TokenIndex truncatable_from() const { return first_dropped_ ? tables_.next_index() : tables_.truncatable_from(); }

  // What a snapshot keeps beside tables and policy.
  struct Counters {
    std::int64_t kept_max = 0;
    std::int64_t seen_least = 0;
    std::int64_t first_dropped = -1;
  };
  Counters counters() const { return {kept_max_, seen_least_, first_dropped_.value_or(-1)}; }
  void set_counters(const Counters& counters);

 private:
  class Listener;

  Sequence(const Sequence& other, KvSequence tables);
  std::uint64_t most_state(const PolicyChunk& chunk) const;
  std::uint64_t allocated_state() const;
  bool rotates() const { return ranges_ != nullptr && policy_->traits().realign == Realign::kRotate; }
  void prepare_tables(const PolicyChunk& chunk);
  void prune();
  void offload();
  Status add_followers();

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<RetentionPolicy> policy_;
  PolicyInputs inputs_;
  SlotBiases biases_;
  const HidesRanges* ranges_;   // of the policy; null: it hides nothing
  const LeavesUnread* unread_;  // of the policy; null: its rows read all
  TableLayout layout_;          // of the tables that the policy governs
  KvSequence tables_;
  KvCacheShape shape_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<SequenceSelector> selector_;  // null: rows read all that they see
  std::unique_ptr<SequenceDemotion> demotion_;  // null: what is dropped is lost
  std::unique_ptr<FollowerHeads> followers_;    // null: nothing is offloaded
  MemoryCharge state_;                          // of the state of policy and selector
  int most_rows_ = 1;                           // of any chunk so far

  // The chunk under way.
  PolicyChunk chunk_;
  int done_ = 0;                            // rows of it that have run
  std::vector<IndexRange> hidden_;          // [chunk rows]
  std::vector<IndexRange> nothing_hidden_;  // [rows of a pass]
  std::vector<IndexRange> reads_;           // of a table, while it is described
  KeepPlan plan_;
  ReadsKv* kv_tap_ = nullptr;

  std::optional<TokenIndex> first_dropped_;
  std::int64_t kept_max_ = 0;
  std::int64_t seen_least_ = 0;
  std::uint64_t bytes_peak_ = 0;
  Status status_;  // an error from make_room to finish_pass
};

}  // namespace kvasir
