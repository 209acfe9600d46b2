// The recurrence of a layer that holds a state of fixed size for each sequence, in place of keys and values: a short
// convolution, linear attention, a state space. The products before and behind it are operations of the op graph.
//
// Contract: the rows of a sequence advance its state one after the other, in index order. Outputs and states have the
// same bits however rows are divided into calls, and whatever other sequences run beside them.
// Thread-safety: const. advance may be called by several threads at once, for different parts of a step or
// different states.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvasir {

class StateMixer {
 public:
  virtual ~StateMixer() = default;

  // Identifies the arithmetic and the layout of states: kind, version, sizes. Files hold it.
  virtual std::string arithmetic_id() const = 0;

  // Floats of a row in each input (at most kMostInputs), and in the output.
  static constexpr std::size_t kMostInputs = 5;
  virtual std::span<const int> inputs() const = 0;
  virtual int output() const = 0;

  // Bytes of one sequence's state in one layer. A state begins as zeros.
  virtual std::size_t state_bytes() const = 0;

  // An advance is made of steps, each of which is finished for all of its parts before the next begins.
  virtual int steps() const { return 1; }
  // Parts of a step that are independent of each other, such as heads. They may run in parallel.
  virtual int parts(int step) const = 0;

  // Consecutive rows of one sequence.
  struct Rows {
    int count = 0;
    float* inputs[kMostInputs] = {};           // each [count][its floats of a row]; an advance may overwrite them
    std::span<const float* const> parameters;  // of the layer, as StateSpec::parameters lists them
    float* output = nullptr;                   // [count][output()]
  };
  // Does one part of a step for all of the rows: advances that part of the state, or writes that part of their outputs.
  // `state`: 64-byte aligned.
  virtual void advance(int step, int part, const Rows& rows, std::byte* state) const = 0;
};

}  // namespace kvasir
