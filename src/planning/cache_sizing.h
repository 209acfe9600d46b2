// Divides memory for keys and values: the default policy's size, the chunk of its prompts, the bytes of the cache; and
// finds what can never fit. The engine decides by these functions; `plan` and `info` report what it would decide.
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "planning/memory_plan.h"
#include "retention/policy.h"
#include "retention/policy_spec.h"
#include "sequence/context_rules.h"

namespace kvasir {

struct CacheConditions {
  KvCacheShape shape;
  std::int64_t context = 0;     // trained, tokens
  int chunk = 0;                // given by the user; 0: the policy's own, or chosen if it changes no bit
  std::uint64_t kv_memory = 0;  // given by the user; 0: what the policy needs
  std::uint64_t available = 0;  // bytes of memory after the weights are loaded
  std::function<std::uint64_t(const Backend::WorkspaceRequest&)> workspace_bytes;
  bool divided = false;  // see MemoryRequest
  // The same cache in the other codecs of sequences: a pass takes the largest workspace of all.
  std::vector<KvCacheShape> others;
  std::int64_t protect = 0;  // SessionOptions::protect
};

// What a policy needs for an endless text (without a bound: as long as the trained context), and what it may have.
struct CacheFit {
  int chunk = 0;  // tokens of a prompt per chunk, more than 0
  std::uint64_t needed = 0;
  std::uint64_t limit = 0;

  bool fits() const { return needed <= limit; }
};

// Returns the fit with the largest chunk that fits; if none does, with the smallest that was tried. Tries one chunk
// only, unless none is given and the chunk changes no bit (policies by range without realign=rotate): then 512, 256,
// ... 16.
CacheFit fit_cache(const CacheConditions& conditions, const RetentionPolicy& policy);

// Returns the most that `sequences` in parallel take, each `needed`, but at most `limit`.
std::uint64_t for_several(std::uint64_t needed, std::uint64_t limit, int sequences);

struct CacheSize {
  std::unique_ptr<RetentionPolicy> policy;
  int chunk = 0;            // of prompts; 0: the policy's own
  std::uint64_t bytes = 0;  // the cache's budget
};

// Returns the cache of a first session. `spec`: nullopt for the default: `streaming`, with the smaller of the trained
// context and what the memory holds as its cap. Its chunks are 16, or up to a sixteenth of the cap, so that a small
// memory is spent on tokens that stay. `sequences`: in parallel. Errors: kInvalidArgument (the policy, or too small a
// kv_memory), kResourceExhausted (the machine's memory).
Result<CacheSize> size_cache(const CacheConditions& conditions, const std::optional<PolicySpec>& spec, int sequences);

// As size_cache, in an existing cache of `conditions.kv_memory` bytes. Errors: kResourceExhausted for a bounded policy
// that needs more.
Result<CacheSize> share_cache(const CacheConditions& conditions, const std::optional<PolicySpec>& spec);

// Returns the least that a new sequence takes to read a prompt of `tokens` tokens. `chunk`: 0: the policy's own.
std::uint64_t least_prompt_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                                 int chunk);

// Checks that `tokens` more of a prompt can be read with a whole cache of `budget` bytes, within the trained context.
// `place`: the sequence's position; `least_held`: tokens in the table that retains fewest. `chunk`: of prompts, 0: the
// policy's own. Errors: kResourceExhausted with the arithmetic.
Status check_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, ContextPlace place,
                    std::int64_t least_held, std::int64_t tokens, int chunk, std::int64_t context,
                    std::uint64_t budget);

}  // namespace kvasir
