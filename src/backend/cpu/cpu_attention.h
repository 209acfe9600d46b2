// Attention over paged lanes: divides a pass into tiles of rows and partials of entries, and runs them on all threads.
// Internal to src/backend/cpu.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cpu/observed_weights.h"
#include "backend/cpu/pass_tables.h"

namespace kvasir {

// The most queries of a task, unless one row has more. Wide tiles share the work of opening a page among more queries;
// narrow ones give few rows to more threads.
inline constexpr int kWideTile = 128;
inline constexpr int kNarrowTile = 32;

// The most rows of one ObservedRows: enough tasks for all threads.
inline int most_observed_rows(const LayerShape& layer, int threads) {
  return std::max(1, kNarrowTile / layer.group()) * std::max(1, 4 * threads / layer.kv_heads);
}

class CpuAttention {
 public:
  CpuAttention(const BackendShape* shape, const KernelTable* kernels, ThreadPool* threads)
      : kernels_(*kernels), threads_(*threads), tables_(shape), observed_(kernels, threads, &tables_) {}
  CpuAttention(const CpuAttention&) = delete;
  CpuAttention& operator=(const CpuAttention&) = delete;

  void begin(const Backend::Pass& pass) { tables_.begin(pass); }
  // keys, values: [rows][kv_heads * head_dim].
  void store(int layer, const float* keys, const float* values);
  struct Weights {  // Backend::AttentionWeights; null: none
    const float* sinks = nullptr;
    const float* query_scales[2] = {};
  };
  // query, out: [rows][heads * head_dim].
  void attend(int layer, const float* query, const Weights& weights, float* out);

  // Returns attention's share of Backend::workspace_bytes (cpu_workspace.cc).
  static std::uint64_t workspace_bytes(const BackendShape& shape, const Backend::WorkspaceRequest& request,
                                       int threads);
  std::uint64_t allocated_bytes() const;

 private:
  const LayerShape& layer() const { return tables_.layer(); }
  // Floats from one row of queries to the next.
  std::size_t row_stride() const { return product(layer().heads, layer().head_dim); }
  void rotate_queries(const float* query);
  void select_slots();
  void attend_unobserved();
  void attend_observed();
  void observe_units(std::span<const ObservedRows> units);
  // Adds tasks of tiles of at most `queries` queries.
  void add_tasks(const LayerTable& table, int begin_row, int end_row, int queries);
  // Returns whether several threads compute the partials of one task: there are fewer than four tasks a thread.
  bool splits_partials() const;
  void run_tasks();
  // Attends to entries; latent ones are opened first.
  void attend_entries(const AttentionPartial& run, const AttentionState& into) const;
  void attend_biased(const AttentionTask& task, const TablePartial& part, const AttentionPartial& run,
                     const AttentionState& into) const;
  // `next`: see AttentionPartial::next_pages.
  void run_partial(const AttentionTask& task, std::size_t partial, int state, const NextPages& next);
  // Sets what the task's rows attend to of a partial: [rows][entries of the partial]. Returns false where that is
  // nothing because a selector left it unread.
  bool fill_masks(const AttentionTask& task, const TablePartial& part, SlotMask* masks) const;
  void end_task(const AttentionTask& task);
  // Sets a task's total to that of no tokens.
  void clear_total(const AttentionTask& task) const;
  // Returns the rotated queries [group][head_dim] of a row and KV head.
  float* rotated(const LayerTable& table, int head, std::size_t frame, int row) const;
  void choose_recalled(const AttentionTask& task);
  void add_recalled(const AttentionTask& task);
  void finish_recalling();
  // Writes the task's output.
  void finish_task(const AttentionTask& task);
  // Returns a task's total (index 0) or one of its partials (from index 1 on).
  AttentionState state(const AttentionTask& task, int index) const;

  const KernelTable& kernels_;
  ThreadPool& threads_;
  PassTables tables_;
  ObservedWeights observed_;
  Weights weights_;
  float* out_ = nullptr;

  std::vector<AttentionTask> tasks_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shares_;  // task, partial
  std::vector<std::uint32_t> recalling_;                         // tasks
  AlignedBuffer<SlotMask> read_;         // per layer table with a selector: [heads][rows][entries]
  AlignedBuffer<float> rotated_;         // per layer table [frames][rows][its query heads * head_dim]
  AlignedBuffer<float> state_weighted_;  // attention states: per task the total, then partials
  AlignedBuffer<float> state_scalars_;   // maximum and sum of each
};

// Resets the states of some queries to those of an empty sum.
void reset_states(const AttentionState& state, int queries, int head_dim);
// Returns the part of a task's state that belongs to one of its rows.
inline AttentionState of_row(const AttentionState& state, int row, int group, int head_dim) {
  return {state.maximum + row * group, state.sum + row * group, state.weighted + product(row * group, head_dim)};
}

}  // namespace kvasir
