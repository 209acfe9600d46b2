// Drives a retention policy from recorded attention, without a model: the same policy object and protocol as in the
// engine (retention/policy.h), with lists of tokens instead of pages.
//
// A step is one token: it enters, the forward pass sees the token and what the policy holds, then the policy prunes. In
// a prompt chunk, the policy's tables do not change while all rows are observed; the chunk's tokens are then inserted
// and pruned one at a time, each as a step. Each recorded row is restricted to the tokens it would see and renormalised
// before the policy observes it (backend/attention_mass.h). Keys, values and queries are shown as recorded.
//
// Thread-safety: none; different calls share only the trace.
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
  std::int64_t kv_heads = 0;  // groups of consecutive query heads; 0: those recorded, or one group per query head
};

struct ReplayFigures {
  double kept_mean = 0;  // tokens held after each step: mean over steps
  std::int64_t kept_max = 0;
  double recall = 0;  // share of the recorded weight on tokens the pass saw, itself included: mean over steps, heads
  std::int64_t prunes = 0;  // steps at which a token was dropped
};

struct ReplayedTable {
  ReplayFigures figures;
  std::vector<TokenIndex> final;  // held after the last step, ascending
};

struct ReplayedLayer {
  ReplayFigures figures;  // means over its tables; kept_max: largest; prunes: steps at which any table dropped
  std::vector<ReplayedTable> tables;  // one, or one for each KV head
};

struct ReplayResult {
  bool by_head = false;  // the policy decides for each KV head
  std::vector<ReplayedLayer> layers;
};

// Groups of query heads that share a KV head.
std::int64_t replayed_kv_heads(const AttentionTrace& trace, const ReplayOptions& options);

// Errors: kInvalidArgument for options that do not fit the trace.
Status check_replay_options(const AttentionTrace& trace, const ReplayOptions& options);

// Checks that a policy can be replayed. Errors: kUnsupported for a policy whose reads the engine chooses by queries and
// keys (RanksSegments), for one that has the model repeat the text (RepeatsText), for one that weighs projected values
// (ReadsHeldKv::projects_values), and for one that reads keys, values or queries which the trace lacks;
// kInvalidArgument if it reads them for other KV heads than the trace has.
Status check_replayable(const AttentionTrace& trace, const RetentionPolicy& policy, const ReplayOptions& options);

// REQUIRES: a new `policy`, and a trace that passed AttentionTrace::check (otherwise the figures are meaningless).
// Errors: those of check_replay_options and check_replayable; kUnsupported for more query heads than a policy can
// reduce; kCancelled when `progress` returns false.
Result<ReplayResult> replay(const AttentionTrace& trace, RetentionPolicy& policy, const ReplayOptions& options,
                            const AttentionTrace::Progress& progress);

}  // namespace kvasir
