// What a request would take of the KV memory, before it runs.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

struct PlanRequest {
  std::string policy;            // as SessionOptions::policy
  std::int64_t protect = 0;      // as SessionOptions::protect
  std::string codec;             // as SessionOptions::codec
  std::int64_t prompt = 0;       // tokens of the prompt
  std::int64_t max_tokens = -1;  // to generate; -1: up to RequestPlan::most_tokens
  int samples = 1;               // several share the whole pages of the prompt, where the policy keeps them all: then
                                 // bytes are a bound
  int tenant = 0;                // whose ceiling bounds what there is
};

// Bytes are the same figures as those of `kvasir plan` for as many tokens.
struct RequestPlan {
  std::string policy;  // canonical spec
  std::string codec;
  std::int64_t prompt = 0;
  // The most tokens that can be generated behind such a prompt: what is left of the trained context or, if that is
  // less, of the whole KV memory. Under a policy that neither of them ends: the trained context.
  std::int64_t most_tokens = 0;
  bool endless = false;              // neither context nor memory ends a text under this policy
  std::int64_t max_tokens = 0;       // that the plan is for
  std::int64_t tokens = 0;           // prompt + max_tokens: of each sample
  std::int64_t tokens_seen_max = 0;  // most that a forward pass sees
  std::uint64_t pages = 0;           // at the peak; where they are encoded, those that are
  std::uint64_t page_bytes = 0;
  std::uint64_t open_pages = 0;  // at the peak: in 16 bits, where others are encoded
  std::uint64_t open_page_bytes = 0;
  std::uint64_t table_bytes = 0;
  std::uint64_t policy_bytes = 0;   // at most
  std::uint64_t demoted_bytes = 0;  // of what the policy drops and the sequence keeps in memory, at most
  // Of heads that the policy offloads (docs/policies/synckv.md), at most: in memory, beside pages; in the file.
  std::uint64_t offload_bytes = 0;
  std::uint64_t offload_file_bytes = 0;
  std::uint64_t bytes = 0;  // in all, at the peak: pages, tables, policy, demoted, offloaded
  bool exact = true;  // otherwise: at most, as it depends on the text or, of encoded pages, on who shares the passes
  std::uint64_t bytes_per_token = 0;  // that a policy without a bound takes for one more
  std::uint64_t budget = 0;           // of the whole cache
  Status refusal;                     // why it can never run to its end; ok if it can
};

}  // namespace kvasir
