// The KV memory that a request would take, planned before it runs.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvasir/quality.h"
#include "kvasir/status.h"

namespace kvasir {

struct PlanRequest {
  std::string policy;            // as SessionOptions::policy
  std::int64_t protect = 0;      // as SessionOptions::protect
  std::string codec;             // as SessionOptions::codec
  std::int64_t prompt = 0;       // tokens of the prompt
  std::int64_t max_tokens = -1;  // tokens to generate; -1: RequestPlan::most_tokens
  int samples = 1;               // share the prompt's whole pages if the policy keeps them all; then bytes are a bound
  int tenant = 0;                // its ceiling bounds the memory
  std::optional<QualityOptions> quality = {};  // as RequestOptions::quality
  std::string draft = {};                      // as GenerateOptions::draft
};

// Bytes are those of `kvasir plan` for the same number of tokens.
struct RequestPlan {
  std::string policy;  // canonical spec
  std::string codec;
  std::int64_t prompt = 0;
  // The most tokens that can be generated behind the prompt: as many as the rest of the trained context or of the whole
  // KV memory allows, whichever is less. If neither ends a text under the policy: the trained context.
  std::int64_t most_tokens = 0;
  bool endless = false;              // neither context nor memory ends a text under this policy
  std::int64_t max_tokens = 0;       // tokens to generate that the plan is for
  std::int64_t tokens = 0;           // prompt + max_tokens, per sample
  std::int64_t tokens_seen_max = 0;  // most tokens that a forward pass sees
  std::uint64_t pages = 0;           // at the peak; only encoded pages if the codec encodes
  std::uint64_t page_bytes = 0;
  std::uint64_t open_pages = 0;  // at the peak: 16-bit pages that are not encoded yet
  std::uint64_t open_page_bytes = 0;
  std::uint64_t table_bytes = 0;
  std::uint64_t policy_bytes = 0;   // at most
  std::uint64_t demoted_bytes = 0;  // dropped tokens that the sequence keeps in memory, at most
  // Keys and values that the policy offloads (docs/policies/synckv.md), at most: in memory beside pages; in the file.
  std::uint64_t offload_bytes = 0;
  std::uint64_t offload_file_bytes = 0;
  // With PlanRequest::quality: the figures above are those of the largest budget; besides, the rows to compare, and the
  // full cache of the longest text.
  std::uint64_t quality_bytes = 0;
  std::uint64_t bytes = 0;  // total at the peak: pages, tables, policy, demoted, offloaded, quality
  // With PlanRequest::draft of a draft model: what its cache takes for the text besides, at most. Not part of `bytes`:
  // it is given up whenever anything else needs it.
  std::uint64_t draft_bytes = 0;
  bool exact = true;  // false: upper bounds; figures vary with the text or, for encoded pages, with other requests
  std::uint64_t bytes_per_token = 0;  // for one more token, if the policy has no bound
  std::uint64_t budget = 0;           // of the whole cache
  Status refusal;                     // why it can never run to its end; ok if it can
};

}  // namespace kvasir
