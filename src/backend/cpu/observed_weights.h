// Softmax weights of the rows that listeners observe: collected from finished tasks, reduced to masses, and reported.
#pragma once

#include "backend/attention_listener.h"
#include "backend/cpu/pass_tables.h"

namespace kvasir {

// Rows of a sequence whose weights are observed together, in all of its tables of the layer or in some.
struct ObservedRows {
  const BatchSequence* sequence = nullptr;
  std::size_t first_table = 0;  // PassTables::of_layer [first_table, last_table)
  std::size_t last_table = 0;
  int begin = 0;  // rows
  int end = 0;

  int rows() const { return end - begin; }
};

class ObservedWeights {
 public:
  // The most weights held at once, in floats. One row of one table may exceed it, and where a listener wants raw
  // weights, one row of all tables of a layer.
  static constexpr std::size_t kMost = std::size_t{4} << 20;

  ObservedWeights(const KernelTable* kernels, ThreadPool* threads, const PassTables* tables)
      : kernels_(*kernels), threads_(*threads), tables_(*tables) {}

  // Gives every task room for its weights, and forgets those of earlier tasks. `rows`: of all units together.
  void make_room(std::span<AttentionTask> tasks, std::size_t rows);
  // Turns a task's raw weights into softmax weights. REQUIRES: its rows have read all of their table, as `total` says.
  // Thread-safety: may be called for different tasks at once.
  void collect(const AttentionTask& task, const AttentionState& total);
  // Calls the listener of a unit all of whose tasks were collected. `observed`: AttentionTask::observed of its first
  // row.
  void report(const ObservedRows& unit, std::size_t observed);
  std::uint64_t allocated_bytes() const;

 private:
  void report_masses(const ObservedRows& unit, std::size_t observed);

  const KernelTable& kernels_;
  ThreadPool& threads_;
  const PassTables& tables_;
  AlignedBuffer<float> weights_;
  AlignedBuffer<float> weight_maxima_;
  AlignedBuffer<SlotMask> retained_;              // per task [entries]
  std::vector<std::span<const float>> observed_;  // [rows][heads]
  AlignedBuffer<double> masses_;
};

}  // namespace kvasir
