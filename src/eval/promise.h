// Measures a promise of quality (kv.quality) on a text whose tokens count as generated: the budgets that the controller
// gives the policy, the distance from the full cache that results, and what that costs; and the same of fixed budgets.
//
// The distance of every token is measured beside the promise, by a full cache that reads token by token. The promise
// itself knows only what its shadow passes measure: full attention over the same tokens, read in chunks.
// Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/scoring.h"
#include "kvasir/quality.h"
#include "kvasir/status.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct PromiseOptions {
  std::string policy;               // of the promise, with its first budget
  QualityOptions quality;           // the promise
  std::vector<std::int64_t> fixed;  // budgets that are measured beside it, each without a promise
  std::int64_t prompt = 128;        // first tokens of the text, read as a prompt
  int chunk = 0;                    // of prompts; 0: the policy's own
};

// One policy over the text, with a promise or a fixed budget.
struct PromiseRun {
  std::string policy;                    // canonical spec at the start
  std::int64_t tokens = 0;               // behind the prompt
  double kl_mean = 0;                    // over all of them, nats
  std::optional<QualityReport> quality;  // of the promise
  double kept_mean = 0;                  // tokens that the pass of a token saw, mean over layers and KV heads
  std::uint64_t kv_bytes_peak = 0;       // of the policy's cache alone
  double policy_seconds = 0;             // passes of the tokens behind the prompt
  double reread_seconds = 0;             // of reading again under another budget
};

struct PromiseResult {
  PromiseRun promise;
  std::vector<PromiseRun> fixed;        // [PromiseOptions::fixed]
  std::uint64_t shadow_bytes_peak = 0;  // of the full cache
  // A fixed budget with the promise's kl_mean: between two measured ones, interpolated as log KL over log budget. None:
  // it is not between any two.
  std::optional<double> equal_budget;
};

// Returns kInvalidArgument for a chunk, or a prompt that leaves nothing of a text of `tokens` tokens behind it.
Status check_promise_prompt(const PromiseOptions& options, std::int64_t tokens);

// Errors: kInvalidArgument for options and a text that is too short or longer than the trained context,
// kResourceExhausted, kCancelled.
Result<PromiseResult> evaluate_promise(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> tokens,
                                       const PromiseOptions& options, const Progress& progress);

}  // namespace kvasir
