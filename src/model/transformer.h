// The forward pass of a llama-family model over rows of one or several sequences.
//
// Contract: a row's logits are bit-identical whatever other rows run with it and on however many threads.
// Thread-safety: a Transformer owns its workspace; one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/vocabulary.h"

namespace kvasir {

// The softmax weights of some rows of one layer, as they were used. Valid during AttentionObserver::observe.
struct ObservedAttention {
  int layer = 0;
  int first_row = 0;  // of the rows [first_row, first_row + rows) of an item
  int rows = 0;
  std::span<const std::span<const float>> weights;  // [rows][heads]: on each token that the row sees, in order of id

  std::span<const float> of(int row, int head) const {
    return weights[static_cast<std::size_t>(row) * (weights.size() / static_cast<std::size_t>(rows)) +
                   static_cast<std::size_t>(head)];
  }
};

// Hears the attention of a sequence: per pass all layers in order, per layer all rows in order, some at a time.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  virtual void observe(const ObservedAttention& attention) = 0;
};

// Consecutive tokens of one sequence: its newest tokens, for which the sequence already has room.
struct ForwardItem {
  std::span<const TokenId> tokens;  // [rows]
  // Of each table of the sequence: one for all lanes, one a layer, or one a lane (layer * kv_heads + head). All of the
  // same rows.
  std::span<const AttentionView> views;
  int logits = 0;                         // logits are wanted of the last this many rows
  AttentionObserver* observer = nullptr;  // whoever wants to know the weights

  int rows() const { return static_cast<int>(tokens.size()); }
};

class Transformer {
 public:
  // All arguments outlive the object.
  Transformer(const ModelConfig* config, const Weights* weights, const KernelTable* kernels, ThreadPool* threads);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;
  ~Transformer();

  // Writes the tokens' keys and values into their pages and computes their logits. REQUIRES: token values within the
  // vocabulary. Returns [rows wanted, vocabulary], items in order; valid until the next call.
  std::span<const float> forward(PagePool& pool, std::span<const ForwardItem> items);

  // Moves slots as a table's plan says: see LaneGroup::SlotMover. `lanes` is the number of lanes of the table.
  void move_slots(PagePool& pool, int lanes, std::span<const LaneGroup::SlotCopy> copies);

  // Rotates the keys of all tokens with ids >= id in place by `shift` positions (realign=rotate).
  void rotate_keys_behind(PagePool& pool, LaneGroup& group, TokenIndex id, Position shift);

  // About what passes of `rows` rows over `frames` frames and `entries` entries take beside weights and KV.
  static std::uint64_t workspace_bytes(const ModelConfig& config, int rows, int frames, std::int64_t entries);

 private:
  struct Workspace;
  struct Job {
    const PackedMatrix* weights;
    const float* bias;  // [outputs], or none
    float* out;         // [rows, outputs]
  };
  // One table's lanes in one layer of an item.
  struct LayerTable {
    const ForwardItem* item = nullptr;
    const AttentionView* view = nullptr;
    int first_head = 0;  // KV heads [first_head, first_head + heads)
    int heads = 0;
    int first_lane = 0;           // of these heads in the table
    int first_row = 0;            // of the item among all rows
    std::size_t first_key = 0;    // of the view's key rotations
    std::size_t first_query = 0;  // of its query rotations, and of its rotated queries
  };
  struct AttentionTask;
  void embed(std::span<const ForwardItem> items);
  void set_tables(std::span<const ForwardItem> items, int layer);
  void fill_rotations();
  const float* rotation_of(Position position);
  void normalize(const float* x, const Norm& norm, int rows);
  void normalize_heads(float* x, const float* weight, int heads, int rows);
  void quantize(const float* x, int inputs, int rows);
  void multiply(const float* x, int inputs, int rows, std::span<const Job> jobs);
  void add_biases(int rows, std::span<const Job> jobs);
  void project_attention(const LayerWeights& layer, int rows);
  void feed_forward(const LayerWeights& layer, int rows);
  void store_keys_and_values(PagePool& pool);
  void rotate_queries();
  void attend(PagePool& pool, int layer);
  void attend_observed(PagePool& pool, std::span<const LayerTable> tables, int layer);
  void add_tasks(const LayerTable& table, int begin_row, int end_row);
  void run_tasks(PagePool& pool);
  void run_partial(PagePool& pool, const AttentionTask& task, int partial, int state);
  void finish_task(const PagePool& pool, const AttentionTask& task);
  AttentionState state(const AttentionTask& task, int index) const;
  void clear(const AttentionState& state, int queries) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const KernelTable& kernels_;
  ThreadPool& threads_;
  std::unique_ptr<Workspace> work_;
};

}  // namespace kvasir
