// Measures the perplexity of a text under retention policies, and the distance of their predictions from the full
// cache's. The text is one long stream, or windows of fixed length. Thread-safety: one evaluation at a time per model.
//
// Row r of a stream (or window) is the model's prediction after reading r + 1 tokens. It is scored against token r + 1,
// whose position is r + 1.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/perplexity_sums.h"
#include "eval/scoring.h"
#include "kvasir/status.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct PerplexityOptions {
  std::vector<std::string> policies = {"full"};
  std::vector<std::string> kv_types;  // codecs (EngineOptions::kv_type), each with every policy; empty: the model's own
  std::int64_t window = 0;     // tokens; each window starts with an empty cache, its first token replaced by BOS if the
                               // model wants one. 0: the text is one stream
  bool whole_windows = false;  // true: score every token of a window; false: only its second half, as llama.cpp's
                               // llama-perplexity does
  int chunk = 1;               // tokens per forward pass; 1: read as generated tokens, otherwise as a prompt
  // Tokens at the start of the stream, or of each window, that are a prompt: read in passes of `chunk` tokens and not
  // scored. Later tokens come one at a time, as if generated. 0: `chunk` holds for all.
  std::int64_t prefill = 0;
  std::int64_t first_scored = 0;  // streams only: rows before this one are read but not scored
  bool compare_full = false;      // compare with policy `full` and f16 pages, with the angles that the length asks for
  std::int64_t bins = 0;          // points of the curve over the positions scored; 0: no curve
  std::int64_t bins_over = 0;     // tokens of the longest of several texts that share their bins; 0: of this text
  // Windows and texts that are read together, 1 to kMostParallel: single tokens of all of them share a pass, which
  // reads the weights once. No figure changes but the times, which are then those of such a batch. Needs that many
  // caches; not with the model's kv_memory.
  int parallel = 1;
  bool keep_nlls = false;  // keep the value of each scored token in the sums, for nll_difference()
};

inline constexpr std::int64_t kMostBins = 10000;
inline constexpr int kMostParallel = 256;

struct FullComparison {
  double kld_mean = 0;    // mean of KL(full || policy) over the tokens scored, nats
  double kld_p99 = 0;     // its 99th percentile
  double top1_agree = 0;  // share of tokens, 0 to 1, for which both predict the same likeliest token
};

// How many nats per token a run needs more than another, token by token.
struct NllDifference {
  double mean = 0;
  double error = 0;  // standard error: sd(difference) / sqrt(tokens), with tokens - 1 in the variance
};

// Means over the tokens scored whose positions fall into one bin.
struct PerplexityCurvePoint {
  double position = 0;
  std::int64_t tokens = 0;
  double nll = 0;
  double kld = 0;  // 0 without a comparison
  double kept = 0;
};

struct PerplexityResult {
  std::string policy;
  std::string codec;
  std::int64_t tokens = 0;  // scored
  double nll = 0;           // mean negative log-likelihood, nats per token
  double ppl = 0;           // exp(nll)
  double ppl_error = 0;     // standard error, which takes tokens as independent: ppl * sd(nll) / sqrt(tokens)
  std::optional<FullComparison> full;
  std::optional<NllDifference> difference;  // left to the caller to set, by nll_difference()
  // Means over the scored tokens, of the forward pass that predicted each:
  double kept_mean = 0;   // tokens that a scored row saw (its own included), mean over rows, layers and KV heads
  double dead_share = 0;  // share of written slots, in pages still held, whose token was dropped
  // Number of times the codec encoded a token retained in an encoded page at the end of the stream or window: mean and
  // most.
  double encodings_mean = 0;
  int encodings_max = 0;
  std::uint64_t kv_bytes_peak = 0;  // of the sequence of one stream or window
  std::int64_t kept_max = 0;        // most tokens a forward pass saw, in any layer and KV head
  // Tokens seen by the last pass of the stream, in the layer and KV head with the fewest; with windows, the least of
  // all.
  std::int64_t seen_least = std::numeric_limits<std::int64_t>::max();
  // Times of this policy's passes, without those of `prefill`.
  double tpot_ms = 0;  // median per token, forward and cache together
  double tpot_p10_ms = 0;
  double tpot_p90_ms = 0;
  double forward_ms = 0;                    // mean per token
  double cache_op_ms = 0;                   // mean per token
  std::int64_t timed = 0;                   // number of passes timed
  std::vector<PerplexityCurvePoint> curve;  // by position; bins without a scored token are omitted

  PerplexitySums sums;  // the sums that the figures above are computed from
};

// Returns the first row of a stream, or of each window, that is scored.
std::int64_t first_scored_row(const PerplexityOptions& options);

// Checks whether a text of `tokens` tokens can be scored with these options. Errors: kInvalidArgument.
Status check_perplexity(std::int64_t tokens, const PerplexityOptions& options);

// Returns one result per policy and codec: those of the first policy first, in order of codec. `tokens`: the text, with
// BOS in front if the model wants one.
//   - Without compare_full, one run follows another.
//   - With compare_full, all runs and one full cache read the text in parallel, pass by pass. Only the full cache's
//     logits of a pass or two are stored, but all caches are in memory at once. The model's kv_memory bounds the cache
//     of each run, but not the full cache.
// `progress` receives tokens done and in total. Errors: those of check_perplexity, kResourceExhausted, kCancelled.
Result<std::vector<PerplexityResult>> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                                          std::span<const TokenId> tokens,
                                                          const PerplexityOptions& options, const Progress& progress);

// As above, for several texts, which with `parallel` share passes: [texts][policies and codecs].
Result<std::vector<std::vector<PerplexityResult>>> evaluate_perplexities(const std::shared_ptr<LoadedModel>& model,
                                                                         std::span<const std::vector<TokenId>> texts,
                                                                         const PerplexityOptions& options,
                                                                         const Progress& progress);

// Returns the paired difference of two runs that scored the same tokens. Its error is smaller than that of either where
// both find the same tokens hard. Like ppl_error it takes tokens as independent. Returns nullopt if a run kept no
// values of its tokens, or the runs scored different numbers of tokens.
std::optional<NllDifference> nll_difference(const PerplexityResult& run, const PerplexityResult& reference);

// Pools one policy's results on several texts: every token counts equally, times cover all passes, peaks are the
// largest. REQUIRES: at least one result; all made with the same options, `bins_over` included.
PerplexityResult pool_perplexity(std::span<const PerplexityResult> results);

}  // namespace kvasir
