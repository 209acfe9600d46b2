// Measures the speed of one model on this machine: prefill and decoding at given cache depths, and how fast the same
// threads read memory, which limits decoding. Every figure is a median over repetitions, with the extremes. Repetitions
// of all figures and policies are interleaved, so that a temporary slowdown affects all of them alike. Thread-safety:
// one measurement at a time per model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct SpeedOptions {
  std::int64_t prefill = 512;              // tokens of a prompt; 0: not measured
  std::int64_t decode = 32;                // tokens generated per repetition; 0: not measured
  std::vector<std::int64_t> depths = {0};  // tokens in the cache when a measurement starts
  std::vector<int> batches = {1};          // sequences that decode together in one pass, each at the same depth
  int repeat = 5;
  std::vector<std::string> policies = {"full"};
};

struct SpeedFigure {
  std::string policy;  // as given
  std::string name;    // "prefill", "decode"
  std::int64_t depth = 0;
  int batch = 1;            // sequences decoded together
  std::int64_t tokens = 0;  // per repetition and sequence
  double median = 0;        // tokens per second, of all sequences together
  double lowest = 0;
  double highest = 0;
  double slowdown = 0;         // time per token relative to the first policy in the same test: median over repetitions
  double gigabytes_per_s = 0;  // decode: weights and live keys and values read, at the median; 0: not known
  std::uint64_t kv_bytes = 0;  // live keys and values at the start
};

struct Speed {
  std::vector<SpeedFigure> figures;
  double read_gigabytes_per_s = 0;  // with threads that only read memory: median over repetitions
};

// Errors: kInvalidArgument, kResourceExhausted, kCancelled when progress returns false.
Result<Speed> measure_speed(const std::shared_ptr<LoadedModel>& model, const SpeedOptions& options,
                            const std::function<bool(std::int64_t, std::int64_t)>& progress);

}  // namespace kvasir
