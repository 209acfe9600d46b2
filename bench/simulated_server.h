// A server without a model: requests of known lengths run through the engine's own schedule(), with a virtual clock, a
// linear cost of passes and the page arithmetic of the KV cache.
// Thread-safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/schedule.h"

namespace kvasir::bench {

// Lengths are log-normal, cut at `most`.
struct Workload {
  std::string name;
  double mean = 830;          // tokens of a request, prompt and answer
  double prompt_share = 0.6;  // of these, the prompt's
  double spread = 0.6;        // standard deviation of the logarithm
  int most = 4096;
};

// Draws lengths whose mean is the workload's within a percent or so, cut or not.
class Lengths {
 public:
  Lengths(const Workload& workload, std::uint64_t seed);
  struct Request {
    int prompt = 1;
    int answer = 1;
  };
  Request next();

 private:
  double draw(double median);

  Workload workload_;
  double median_ = 0;
  std::mt19937_64 random_;
};

struct MemoryModel {
  int block = 32;                      // tokens
  std::uint64_t token_bytes = 131072;  // keys and values of a token in all layers
  std::uint64_t block_bytes = 0;       // bookkeeping beside each block
  std::uint64_t table_bytes = 512;     // of a sequence
  bool contiguous = false;             // a sequence takes the most tokens at once
  int most = 4096;                     // tokens

  std::uint64_t bytes(std::int64_t tokens) const;
};

struct SimulatedTenant {
  ScheduleQuota quota;
  int priority = 0;
  int clients = 0;
};

struct SimulationOptions {
  std::int64_t requests = 100000;
  int clients = 96;  // each sends its next request when its last one has ended; of tenants, those of each
  std::uint64_t seed = 1;
  Workload workload;
  int max_tokens = 0;  // that each request names as its limit, at least; 0: it names as many as it gets
  MemoryModel memory;
  std::uint64_t capacity = 0;  // bytes; 0: 64 sequences of the workload's mean
  PassRates cost{.pass = 0.060, .prompt_row = 0.0001, .generated_row = 0.0002};
  double max_itl = 0;
  ScheduleLimits limits{.stop_mark = 0.90, .preempt_mark = 0.98};
  std::vector<SimulatedTenant> tenants;  // empty: one, without quota
};

// Seconds in buckets of 1%.
class Histogram {
 public:
  void add(double seconds);
  double quantile(double share) const;

 private:
  static constexpr double kLeast = 1e-4;
  std::array<std::int64_t, 2000> counts_{};
  std::int64_t total_ = 0;
};

struct SimulationResult {
  double seconds = 0;  // of the virtual clock
  std::int64_t passes = 0;
  std::int64_t finished = 0;
  std::int64_t generated = 0;
  std::int64_t recomputed = 0;
  std::int64_t preemptions = 0;
  std::int64_t preempted_twice = 0;  // without a token in between
  std::int64_t rejected = 0;
  double mean_batch = 0;                          // tasks that hold pages
  double mean_usage = 0;                          // of the capacity
  double utilisation = 0;                         // live tokens' bytes over allocated bytes
  double gap_p50 = 0, gap_p99 = 0, gap_most = 0;  // seconds between two tokens of a request
  double first_p50 = 0, first_p99 = 0;            // until the first
  std::vector<double> tenant_share;               // mean bytes of each over the capacity
  std::vector<std::int64_t> tenant_preemptions;
  std::vector<double> tenant_first_p50;
};

SimulationResult simulate(const SimulationOptions& options);

}  // namespace kvasir::bench
