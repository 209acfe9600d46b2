// Drives a retention policy from recorded attention, without a model: the same object and the same protocol as in the
// engine (retention/policy.h), with lists of tokens in place of pages.
//
// A step is one token: it enters, the forward pass sees what the policy holds and the token, then the policy prunes. In
// a chunk of a prompt the policy's tables stand still while all rows are observed; its tokens are then inserted and
// pruned one at a time, and each is a step. A row is cut down to the tokens that it sees, and normalised anew before
// the policy is shown it (backend/attention_mass.h).
//
// Thread-safety: none; different calls share nothing but the trace.
#pragma once

#include <cstdint>
#include <vector>

#include "kvasir/status.h"
#include "replay/trace.h"
#include "retention/policy.h"

namespace kvasir {

struct ReplayOptions {
  std::int64_t prefill = 0;   // the first tokens are a prompt; the others are generated, one at a time
  std::int64_t chunk = 0;     // tokens of the prompt per chunk; 0: all of them
  std::int64_t kv_heads = 0;  // how query heads are grouped, consecutive ones together; 0: each by itself
};

struct ReplayFigures {
  double kept_mean = 0;  // tokens held after each step: mean over steps
  std::int64_t kept_max = 0;
  double recall = 0;        // weight, of 1, on what the forward pass saw (its own token too): mean over steps and heads
  std::int64_t prunes = 0;  // steps at which a token was dropped
};

struct ReplayedTable {
  ReplayFigures figures;
  std::vector<TokenIndex> final;  // held after the last step, ascending
};

struct ReplayedLayer {
  ReplayFigures figures;              // over its tables: means, the largest; prunes: steps at which any of them dropped
  std::vector<ReplayedTable> tables;  // one, or one for each KV head
};

struct ReplayResult {
  bool by_head = false;  // the policy decides for each KV head
  std::vector<ReplayedLayer> layers;
};

// Errors: kInvalidArgument for options that do not fit the trace.
Status check_replay_options(const AttentionTrace& trace, const ReplayOptions& options);

// `policy` is fresh: it has taken in nothing. The trace is sound (AttentionTrace::check); what is not gives figures
// that mean nothing. Errors: those of check_replay_options; kUnsupported for more query heads than a policy can reduce;
// kCancelled when `progress` said so.
Result<ReplayResult> replay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options,
                            const AttentionTrace::Progress& progress);

}  // namespace kvasir
