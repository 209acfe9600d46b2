// Perplexity of a text under retention policies, and how far their predictions are from those of the full cache: one
// long stream, or windows of fixed length. Thread-safety: one evaluation at a time per model.
//
// Rows and positions: row r of a stream (or window) is what the model says once it has read r + 1 tokens; it is scored
// against token r + 1, whose position is r + 1.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "eval/perplexity_sums.h"
#include "eval/scoring.h"
#include "kvasir/status.h"

namespace kvasir {

struct PerplexityOptions {
  std::vector<std::string> policies = {"full"};
  std::int64_t window = 0;     // 0: the text is one stream; else each window starts afresh, its first token replaced by
                               // BOS where the model wants one
  bool whole_windows = false;  // every token of a window is scored; else those of its second half alone (as
                               // llama.cpp's llama-perplexity does)
  int chunk = 1;               // tokens per forward pass; 1: they count as generated, else as a prompt
  std::int64_t first_scored = 0;  // of a stream: rows before this one are read but not scored
  bool compare_full = false;      // against policy `full` with f16 pages
  std::int64_t bins = 0;          // of the curve, over the positions scored; 0: none
  std::int64_t bins_over = 0;     // tokens of the longest text where several texts share their bins; 0: of this one
};

inline constexpr std::int64_t kMostBins = 10000;

struct FullComparison {
  double kld_mean = 0;    // of KL(full || policy) over the tokens scored, nats
  double kld_p99 = 0;     // its 99th percentile
  double top1_agree = 0;  // share of tokens, 0 to 1, at which both find the same token likeliest
};

// Of the tokens scored whose positions fall into one bin: means.
struct PerplexityCurvePoint {
  double position = 0;
  std::int64_t tokens = 0;
  double nll = 0;
  double kld = 0;  // 0 where nothing was compared
  double kept = 0;
};

struct PerplexityResult {
  std::string policy;
  std::string codec;
  std::int64_t tokens = 0;  // scored
  double nll = 0;           // mean negative log-likelihood, nats per token
  double ppl = 0;           // exp(nll)
  double ppl_error = 0;     // standard error: ppl * sd(nll) / sqrt(tokens)
  std::optional<FullComparison> full;
  // Means over the tokens scored, of the forward pass that foretold each:
  double kept_mean = 0;   // tokens that it saw (its own included), mean over layers and KV heads
  double dead_share = 0;  // share of the slots written so far, of those still held, whose token was dropped
  std::uint64_t kv_bytes_peak = 0;
  std::int64_t kept_max = 0;  // most tokens a forward pass saw, in any layer and KV head
  // Tokens that the last pass of a window, or of the stream, saw in the layer and KV head that held fewest; the least
  // of all windows.
  std::int64_t seen_least = std::numeric_limits<std::int64_t>::max();
  double tpot_ms = 0;  // median time per token, forward and cache together, of this policy's passes alone
  double tpot_p10_ms = 0;
  double tpot_p90_ms = 0;
  double forward_ms = 0;                    // mean per token
  double cache_op_ms = 0;                   // mean per token
  std::int64_t timed = 0;                   // passes behind these times
  std::vector<PerplexityCurvePoint> curve;  // by position; bins without a token scored are left out

  PerplexitySums sums;  // what the figures above are computed from
};

// Whether a text of `tokens` tokens can be scored so. Errors: kInvalidArgument.
Status check_perplexity(std::int64_t tokens, const PerplexityOptions& options);

// `tokens` is the text with BOS in front where the model wants one. One result per policy, in order. Without
// compare_full the policies run one after the other. With it, they and one full cache read the text side by side, pass
// by pass, so that no more logits are stored than the full cache's of a pass or two; all their caches are held at once,
// and the model's kv_memory bounds each policy's, not the full one's. `progress` hears tokens done and in all. Errors:
// those of check_perplexity, kResourceExhausted, kCancelled.
Result<std::vector<PerplexityResult>> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                                          std::span<const TokenId> tokens,
                                                          const PerplexityOptions& options, const Progress& progress);

// One policy's results of several texts as one: every token counts the same, whichever text it is of; times are of all
// passes, peaks are the largest. REQUIRES: at least one; made with the same options, `bins_over` included.
PerplexityResult pool_perplexity(std::span<const PerplexityResult> results);

}  // namespace kvasir
