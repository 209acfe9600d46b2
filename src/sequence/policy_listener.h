// Shows a policy what it wants of the passes of a sequence: the masses of its rows, and of each chunk the sums of its
// queries, and its keys and values (retention/capabilities.h). Also serves two optional observers, the taps. Holds no
// memory between chunks.
// Thread-safety: as AttentionListener.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "backend/attention_listener.h"
#include "base/thread_pool.h"
#include "kv/kv_cache.h"
#include "retention/policy.h"
#include "retention/query_accumulator.h"

namespace kvasir {

// Returns the tables that a policy of this scope has in a cache of this shape.
TableLayout table_layout(const KvCacheShape& shape, PolicyScope scope);

// Transformer::projected_norms, for a layer of the model.
using ProjectedNorms =
    std::function<void(int layer, int kv_head, std::span<const float> values, std::span<double> norms)>;

class PolicyListener final : public AttentionListener {
 public:
  // `policy`, `shape`, `threads` and what `projected_norms` refers to must outlive the object. end_chunk uses
  // `threads`: call it from outside their tasks.
  PolicyListener(RetentionPolicy* policy, const KvCacheShape& shape, ThreadPool* threads,
                 ProjectedNorms projected_norms);
  PolicyListener(const PolicyListener&) = delete;  // batches point to it

  // Optional observer of the attention of every pass; may be null. Must outlive the passes. While there is one, the
  // tables that the policy governs give back no page behind a sliding window; a memory plan that is to hold then takes
  // a shape without a window.
  void set_tap(AttentionObserver* tap) { tap_ = tap; }
  bool has_tap() const { return tap_ != nullptr; }
  // Optional second reader of the keys and values of every chunk; may be null. Must outlive the passes. Its memory is
  // not charged.
  void set_kv_tap(ReadsKv* tap) { kv_tap_ = tap; }

  // Returns the most bytes that a chunk of up to `rows` rows takes, from begin_chunk to end_chunk, of a sequence of up
  // to `tokens` tokens, on any number of threads; and of one chunk, on those that there are.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens,
                                  int rows);
  std::uint64_t bytes_for(const PolicyChunk& chunk) const;
  void begin_chunk(const PolicyChunk& chunk);
  // Rows [first, first + rows) of the chunk run next. Returns this object, or null where none of them matters.
  AttentionListener* begin_pass(int first, int rows);
  // All rows have run: shows policy and tap the chunk's queries, keys and values, and the policy what is held, several
  // tables at once.
  void end_chunk(const KvSequence& tables, const PageStore& store);

  // Returns the seconds that the policy took for masses, for sums of queries, and for what is held.
  double seconds() const { return seconds_; }

  std::span<const MassReduction> reductions() const override;
  bool wants_row(int row) const override { return masses_ != nullptr && masses_->wants_row(chunk_, first_ + row); }
  bool wants_weights() const override { return tap_ != nullptr; }
  bool wants_queries() const override { return wants_queries_ || (tap_ != nullptr && tap_->wants_queries()); }
  void hear_queries(const ObservedQueries& queries) override;
  void hear_masses(const ObservedMasses& masses) override;
  void hear_weights(const ObservedAttention& weights) override { tap_->observe(weights); }

 private:
  int wanted_queries(const PolicyChunk& chunk, int first, int rows) const;
  bool reads_held(const PolicyChunk& chunk) const;
  void show_held(const KvSequence& tables, const PageStore& store);

  const KvCacheShape& shape_;
  ThreadPool* threads_;
  ProjectedNorms projected_norms_;
  PolicyScope scope_;
  int tables_per_layer_;
  ObservesMasses* masses_;  // null: the policy does not look at attention
  ReadsKv* kv_;             // null: it reads neither keys nor values of a chunk
  std::optional<std::int64_t> bound_;
  ReadsHeldKv* held_;     // null: it reads neither keys nor values of what is held
  SumsQueries* queries_;  // null: it does not look at queries
  QueryAccumulator sums_;
  AttentionObserver* tap_ = nullptr;
  ReadsKv* kv_tap_ = nullptr;
  PolicyChunk chunk_;
  int first_ = 0;  // row of the chunk that the pass begins with
  bool wants_masses_ = false;
  bool wants_queries_ = false;
  double seconds_ = 0;
};

}  // namespace kvasir
