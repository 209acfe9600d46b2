// Interfaces to observe the attention of a sequence: retention policies receive masses, reduced over heads; recordings
// and inspections receive the raw weights.
// Thread-safety: called by one thread, between the parallel regions of a pass, but for hear_queries.
#pragma once

#include <span>

#include "backend/mass_reduction.h"

namespace kvasir {

// The softmax weights of some rows of one layer, as they were used. Valid during the call.
struct ObservedAttention {
  int layer = 0;
  int first_row = 0;  // rows [first_row, first_row + rows) of the sequence's rows in this pass
  int rows = 0;
  int heads = 0;                                    // query heads
  std::span<const std::span<const float>> weights;  // [rows][heads]: on each token that the row sees, in order of index

  std::span<const float> of(int row, int head) const {
    return weights[static_cast<std::size_t>(row) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)];
  }
};

// The queries of some rows of one query head, before they are rotated and scaled. Valid during the call.
struct ObservedQueries {
  int layer = 0;
  int head = 0;       // query head
  int first_row = 0;  // rows [first_row, first_row + rows) of the sequence's rows in this pass
  int rows = 0;
  std::size_t head_dim = 0;
  std::size_t row_stride = 0;      // in floats
  const float* queries = nullptr;  // of the first of the rows

  std::span<const float> of(int row) const { return {queries + static_cast<std::size_t>(row) * row_stride, head_dim}; }
};

// Receives the raw attention of a sequence: per pass all layers in order, per layer all rows in order, in blocks.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  virtual void observe(const ObservedAttention& attention) = 0;
  // Queries come before the layer's attention, each head's rows in order, from several threads at once.
  virtual bool wants_queries() const { return false; }
  virtual void observe_queries(const ObservedQueries& queries) { static_cast<void>(queries); }
};

// The masses of one row in one page table: one span for each reduction asked for, on each token that the row sees, in
// order of index. Valid during the call.
struct ObservedMasses {
  int layer = 0;
  int table = 0;                                    // of this layer: 0, or the KV head
  int row = 0;                                      // of the sequence's rows in this pass
  std::span<const std::span<const double>> masses;  // [reductions]
};

class AttentionListener {
 public:
  virtual ~AttentionListener() = default;

  // Which reductions are wanted, over the query heads of each page table; empty: no masses.
  virtual std::span<const MassReduction> reductions() const { return {}; }
  // Whether the masses of a row (of the sequence's rows in this pass) are wanted.
  virtual bool wants_row(int row) const {
    static_cast<void>(row);
    return true;
  }
  virtual bool wants_weights() const { return false; }
  virtual bool wants_queries() const { return false; }

  // Per pass all layers in order, before the layer's masses and weights; per layer the rows of each head in order.
  // Called for different heads from several threads at once.
  virtual void hear_queries(const ObservedQueries& queries) { static_cast<void>(queries); }
  // Per pass all layers in order; per layer the rows of each table in order.
  virtual void hear_masses(const ObservedMasses& masses) { static_cast<void>(masses); }
  // Per pass all layers in order; per layer all rows in order, some at a time.
  virtual void hear_weights(const ObservedAttention& weights) { static_cast<void>(weights); }
};

}  // namespace kvasir
