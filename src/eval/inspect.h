// What attention does on a text under a policy, layer by layer: how sparse it is, how its most important tokens change
// over time and from head to head, where it goes, and what the policy keeps.
//
// The top set of a KV head at a query: the `top` tokens of largest weight, the query heads of its group max-pooled
// first (SyncKV, "A Syncopated Scheduling Approach to KV Cache Compression"), of equal weights the younger. Two sets
// compare by their overlap coefficient |A ∩ B| / min(|A|, |B|). Only queries that see more than `top` tokens count.
// Thread-safety: one inspection at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/observed_text.h"

namespace kvasir {

// The longest text, a matter of the report's size.
inline constexpr std::int64_t kMostInspectedTokens = 16384;

struct InspectOptions {
  ObservedTextOptions reading;
  int top = 32;      // tokens of a top set
  int bins = 64;     // points of curves over position, at most; each the mean of an equal part of the text
  int matrix = 256;  // cells of the attention matrix along a side, at most
};

// Averages that nothing fell into are NaN.
struct InspectedLayer {
  std::vector<double> hoyer;       // [bins] Hoyer sparsity (Lethe, Eq. 1) of the mass summed over heads
  double hoyer_mean = 0;           // over all queries that see more than one token
  std::vector<double> kept;        // [bins] tokens that a query sees, mean over KV heads
  std::vector<double> drift;       // [bins] overlap of top sets with those of the reference query (SyncKV, Fig. 2)
  std::vector<double> locality;    // [lags] overlap of top sets of queries so many tokens apart (SyncKV, Fig. 2)
  std::vector<double> by_chance;   // [lags] the same if top sets were drawn at random: top / the most seen of the two
  std::vector<double> similarity;  // [KV heads, KV heads] overlap of their top sets at the same query
  std::vector<double> query_similarity;  // [query heads, query heads] the same without pooling
  // [cells, cells] a query's weight on the tokens of a cell, mean over heads and the queries of a cell (Cascading KV,
  // Fig. 8): a row sums to 1. NaN where no query sees a token.
  std::vector<float> matrix;
};

struct InspectResult {
  ObservedText reading;
  std::int64_t tokens = 0;
  TokenIndex reference = 0;       // the query that drift compares with: the prompt's last, or the middle of the text
  std::vector<double> positions;  // [bins] mean id of the queries of a bin
  std::vector<int> lags;
  std::int64_t cell_tokens = 1;  // tokens of a cell of the matrix, along each side
  std::int64_t cells = 0;        // along a side
  std::vector<InspectedLayer> layers;
};

// Errors: kInvalidArgument for options out of range and those of check_observed_text.
Status check_inspect_options(const LoadedModel& model, std::int64_t tokens, const InspectOptions& options);

// Errors: those of check_inspect_options and read_observed.
Result<InspectResult> inspect_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                        const InspectOptions& options, const Progress& progress);

}  // namespace kvasir
