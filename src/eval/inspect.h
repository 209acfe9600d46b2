// Measures attention on a text under a policy, layer by layer: its sparsity, how the most important tokens change over
// time and between heads, where the weight goes, and what the policy keeps.
//
// The top set of a KV head at a query holds the `top` tokens of largest weight, after max-pooling over the query heads
// of its group (SyncKV, "A Syncopated Scheduling Approach to KV Cache Compression"); ties go to the younger token. Two
// sets are compared by their overlap coefficient |A ∩ B| / min(|A|, |B|). Only queries that see more than `top` tokens
// count. Thread-safety: one inspection at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/observed_text.h"

namespace kvasir {

// Longest text; limited by the size of the report.
inline constexpr std::int64_t kMostInspectedTokens = 16384;

struct InspectOptions {
  ObservedTextOptions reading;
  int top = 32;      // tokens of a top set
  int bins = 64;     // most points of a curve over position; each is the mean over an equal part of the text
  int matrix = 256;  // most cells of the attention matrix along one side
};

// Averages over nothing are NaN.
struct InspectedLayer {
  std::vector<double> hoyer;       // [bins] Hoyer sparsity (Lethe, Eq. 1) of the mass summed over heads
  double hoyer_mean = 0;           // over all queries that see more than one token
  std::vector<double> kept;        // [bins] tokens that a query sees, mean over KV heads
  std::vector<double> drift;       // [bins] overlap of top sets with the reference query's (SyncKV, Fig. 2)
  std::vector<double> locality;    // [lags] overlap of the top sets of two queries `lag` tokens apart (SyncKV, Fig. 2)
  std::vector<double> by_chance;   // [lags] the same for random top sets: top / tokens seen, of the query seeing more
  std::vector<double> similarity;  // [KV heads, KV heads] overlap of their top sets at the same query
  std::vector<double> query_similarity;  // [query heads, query heads] the same without pooling
  // [cells, cells] weight of a cell's queries on a cell's tokens, mean over heads and queries (Cascading KV, Fig. 8).
  // Rows sum to 1. NaN where no query sees a token.
  std::vector<float> matrix;
};

struct InspectResult {
  ObservedText reading;
  std::int64_t tokens = 0;
  TokenIndex reference = 0;       // the query that drift compares with: the prompt's last, or the middle of the text
  std::vector<double> positions;  // [bins] mean token index of a bin's queries
  std::vector<int> lags;
  std::int64_t cell_tokens = 1;  // tokens per matrix cell, along each side
  std::int64_t cells = 0;        // along one side
  std::vector<InspectedLayer> layers;
};

// Errors: kInvalidArgument for options out of range and those of check_observed_text.
Status check_inspect_options(const LoadedModel& model, std::int64_t tokens, const InspectOptions& options);

// Errors: those of check_inspect_options and read_observed.
Result<InspectResult> inspect_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                        const InspectOptions& options, const Progress& progress);

}  // namespace kvasir
