// How the memory for keys and values is spent: the size of the default policy, the chunk of its prompts, the bytes of
// the cache; and what can never fit. The engine decides by these functions, and `plan` and `info` report what it would
// decide. Thread-safety: pure functions of their arguments.
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
  int chunk = 0;                // given by the user; 0: the policy's own, or chosen where it changes nothing
  std::uint64_t kv_memory = 0;  // given by the user; 0: what the policy needs
  std::uint64_t available = 0;  // bytes of memory, once the weights are loaded
  std::function<std::uint64_t(const Backend::WorkspaceRequest&)> workspace_bytes;
  bool divided = false;  // see MemoryRequest
  // The same cache in other codecs that sequences may have: a pass takes the largest workspace of all.
  std::vector<KvCacheShape> others;
  std::int64_t protect = 0;  // SessionOptions::protect
};

// What a policy needs for a text without end (without a bound: as long as the trained context), and what it may have.
struct CacheFit {
  int chunk = 0;  // tokens of a prompt per chunk, more than 0
  std::uint64_t needed = 0;
  std::uint64_t limit = 0;

  bool fits() const { return needed <= limit; }
};

// Returns the fit with the largest chunk that fits; if none does, with the smallest that was tried. There is one chunk
// to try, unless none is given and it changes no bit (policies by range, but for realign=rotate): then 512, 256,
// ... 16.
CacheFit fit_cache(const CacheConditions& conditions, const RetentionPolicy& policy);

// Returns what `sequences` side by side take at most, each of them `needed`, but at most `limit`.
std::uint64_t for_several(std::uint64_t needed, std::uint64_t limit, int sequences);

struct CacheSize {
  std::unique_ptr<RetentionPolicy> policy;
  int chunk = 0;            // of prompts; 0: the policy's own
  std::uint64_t bytes = 0;  // the cache's budget
};

// The cache of a first session. `spec`: none for the default, which is `streaming` with the smaller of the trained
// context and what the memory holds as its cap; there a chunk is at most a sixteenth of the cap, but for chunks of 16,
// so that a small memory is spent on tokens that stay. `sequences`: side by side. Errors: kInvalidArgument (the policy,
// or a kv_memory that is too small for it), kResourceExhausted (the machine's memory).
Result<CacheSize> size_cache(const CacheConditions& conditions, const std::optional<PolicySpec>& spec, int sequences);

// The same in a cache of `conditions.kv_memory` bytes that exists. Errors: kResourceExhausted for a bounded policy that
// needs more.
Result<CacheSize> share_cache(const CacheConditions& conditions, const std::optional<PolicySpec>& spec);

// Returns what a new sequence takes at the least to read a prompt of `tokens` tokens. `chunk`: 0: the policy's own.
std::uint64_t least_prompt_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                                 int chunk);

// Checks that `tokens` more of a prompt can be read with all of a cache of `budget` bytes for itself, and within the
// trained context. `place`: where the sequence stands; `least_held`: tokens in the table that retains fewest. `chunk`:
// of prompts, 0: the policy's own. Errors: kResourceExhausted with the arithmetic.
Status check_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, ContextPlace place,
                    std::int64_t least_held, std::int64_t tokens, int chunk, std::int64_t context,
                    std::uint64_t budget);

}  // namespace kvasir
