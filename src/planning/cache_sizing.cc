#include "planning/cache_sizing.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "base/counted.h"
#include "base/status.h"
#include "offload/demotion.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

constexpr std::int64_t kSinks = 4;  // default policy's
constexpr int kLeastChosenChunk = 16;
// Divides the default policy's cap to give the largest chosen chunk.
constexpr std::int64_t kChunkPart = 16;
// Length of an endless text. The plan of a bounded policy is periodic, so it costs no more than for a short text.
constexpr std::int64_t kEndless = std::int64_t{1} << 50;

// With realign=rotate keys are rounded again at each prune, so there, too, the chunk shows in the bits.
bool chunk_decides(const RetentionPolicy& policy) {
  return policy.traits().chunk > 0 || policy.traits().realign == Realign::kRotate;
}

bool chooses_chunk(const CacheConditions& conditions, const RetentionPolicy& policy) {
  return conditions.chunk == 0 && !chunk_decides(policy);
}

std::vector<int> chunks_to_try(const CacheConditions& conditions, const RetentionPolicy& policy) {
  std::vector<int> chunks = {prompt_chunk(policy, conditions.chunk)};
  while (chooses_chunk(conditions, policy) && chunks.back() > kLeastChosenChunk) chunks.push_back(chunks.back() / 2);
  return chunks;
}

// Returns the chunk to report: the conditions' own if that gives the same.
int told_chunk(const CacheConditions& conditions, const RetentionPolicy& policy, int chunk) {
  return chunk == prompt_chunk(policy, conditions.chunk) ? conditions.chunk : chunk;
}

std::uint64_t limit_beside(const CacheConditions& conditions, std::uint64_t workspace) {
  const std::uint64_t available = conditions.available;
  if (conditions.kv_memory > 0) return conditions.kv_memory;
  return std::min(available / 10 * 8, available - std::min(available, workspace));
}

// Workspace of a pass of one sequence, in the codec that takes most. `kv`: the plan for the conditions' codec.
std::uint64_t most_workspace(const CacheConditions& conditions, const RetentionPolicy& policy, const KvMemory& kv,
                             const MemoryRequest& request) {
  const auto of = [&](const KvCacheShape& shape, const KvMemory& memory) {
    return conditions.workspace_bytes(plan_workspace(shape, policy, memory, request.chunk, 1));
  };
  std::uint64_t most = of(conditions.shape, kv);
  if (conditions.kv_memory > 0) return most;  // with a given kv_memory it does not matter
  for (const KvCacheShape& other : conditions.others)
    most = std::max(most, of(other, plan_kv_memory(other, policy, request)));
  return most;
}

// Returns whether a sequence's memory is bounded, however long its text. Demoted tokens grow with the text.
bool has_bound(const RetentionPolicy& policy) {
  return policy.bound().has_value() && !policy.traits().demotion;
}

CacheFit fit_of(const CacheConditions& conditions, const RetentionPolicy& policy, int chunk) {
  CacheFit fit;
  fit.chunk = chunk;
  const std::int64_t tokens = has_bound(policy) ? kEndless : conditions.context;
  const std::uint64_t least = least_kv_bytes(conditions.shape, policy, policy.bound().value_or(tokens));
  // This lower bound suffices to refuse a policy that is far too large. Otherwise the figure is exact, so that a caller
  // may set kv_memory to the one in the error message.
  if (least > limit_beside(conditions, 0) && policy.bound().value_or(0) > kMostPlannedTokens) {
    fit.needed = least;
    fit.limit = limit_beside(conditions, 0);
    return fit;
  }
  const MemoryRequest request{tokens, tokens, chunk, 1, conditions.divided};
  const KvMemory kv = plan_kv_memory(conditions.shape, policy, request);
  fit.needed = kv.bytes;
  fit.limit = limit_beside(conditions, most_workspace(conditions, policy, kv, request));
  return fit;
}

// Returns the largest smaller chunk with which the policy fits; nullopt if none does.
std::optional<int> smaller_chunk(const CacheConditions& conditions, const RetentionPolicy& policy, int chunk) {
  for (int smaller = 2048; smaller > 0; smaller /= 2)
    if (smaller < chunk && fit_of(conditions, policy, smaller).fits()) return smaller;
  return std::nullopt;
}

Status too_large(const CacheConditions& conditions, const RetentionPolicy& policy, const CacheFit& fit) {
  const bool given = conditions.kv_memory > 0;
  std::optional<int> smaller;
  if (!chooses_chunk(conditions, policy)) smaller = smaller_chunk(conditions, policy, fit.chunk);
  std::string remedy = given ? "give it more, or a smaller size" : "choose a smaller size";
  if (smaller)
    remedy = fmt::format("a chunk of {} would fit{}; or {}", *smaller,
                         chunk_decides(policy) ? ", but it is part of what the policy decides" : "", remedy);
  const std::string there = given ? fmt::format("and is given {}", conditions.kv_memory)
                                  : fmt::format("more than this machine can give ({})", fit.limit);
  Status status = make_status(given ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
                              "policy '{}' needs {} bytes of KV memory{}, {}; {}", policy.traits().spec, fit.needed,
                              smaller ? fmt::format(" with a chunk of {}", fit.chunk) : "", there, remedy);
  if (given && smaller) return std::move(status).about({"kv_memory", "policy", "chunk"});
  if (given) return std::move(status).about({"kv_memory", "policy"});
  if (smaller) return std::move(status).about({"policy", "chunk"});
  return std::move(status).about({"policy"});
}

Result<std::unique_ptr<RetentionPolicy>> with_cap(std::int64_t cap, std::int64_t protect) {
  PolicySpec spec = PolicySpec::named("streaming");
  spec.parts.front().set("sinks", kSinks);
  spec.parts.front().set("window", cap - kSinks);
  return make_policy(with_protection(spec, protect));
}

// Makes the policy of an explicit spec, with `conditions.protect`.
Result<std::unique_ptr<RetentionPolicy>> make_asked(const CacheConditions& conditions, const PolicySpec& spec) {
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy,
                          make_policy(with_protection(spec, conditions.protect)));
  KVASIR_RETURN_IF_ERROR(check_positions(*policy, conditions.chunk, conditions.context));
  return policy;
}

// Returns `streaming`, which equals `full` until its cap is reached, with a chunk. REQUIRES: conditions.kv_memory is at
// most what is available.
Result<CacheSize> default_size(const CacheConditions& conditions) {
  CacheSize size;
  const std::int64_t context = std::max<std::int64_t>(conditions.context, kSinks + 1);
  KVASIR_ASSIGN_OR_RETURN(size.policy, with_cap(context, conditions.protect));
  const int slots = conditions.shape.page.slots;
  const std::vector<int> chunks = chunks_to_try(conditions, *size.policy);
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> least, with_cap(kSinks + 1, conditions.protect));
  int chunk = 0;
  std::int64_t columns = 0;  // that the bytes alone would hold, without windows and states beside them
  for (const int tried : chunks) {
    chunk = tried;
    const CacheFit all = fit_of(conditions, *size.policy, chunk);
    if (all.fits()) {
      size.chunk = told_chunk(conditions, *size.policy, chunk);
      return size;
    }
    columns = static_cast<std::int64_t>(all.limit / (static_cast<std::uint64_t>(conditions.shape.lanes()) *
                                                     (conditions.shape.page.bytes() + PagePool::kPageOverhead)));
    const bool others = !conditions.shape.windows.empty() || !conditions.shape.states.empty();
    const bool others_fit = !others || fit_of(conditions, *least, chunk).fits();
    if (columns * slots >= chunk * (kChunkPart + 1) && others_fit) break;
  }
  std::int64_t low = kSinks + 1;  // the largest cap known to fit
  KVASIR_ASSIGN_OR_RETURN(size.policy, with_cap(low, conditions.protect));
  if (const CacheFit fit = fit_of(conditions, *size.policy, chunk); !fit.fits()) {
    const bool chosen = chunks.size() > 1;
    Status status =
        make_status(conditions.kv_memory > 0 ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
                    "{} of KV memory {} no cache at all for this model (at least {} are needed with chunk={}); give it "
                    "more memory{}",
                    counted(static_cast<std::int64_t>(fit.limit), "byte"), fit.limit == 1 ? "holds" : "hold",
                    fit.needed, chunk, chosen || chunk == 1 ? "" : ", or a smaller chunk");
    if (chosen || chunk == 1) return std::move(status).about({"kv_memory"});
    return std::move(status).about({"kv_memory", "chunk"});
  }
  // A pass in chunks needs a little more than the kept tokens. So the search starts just below the cap that the bytes
  // alone would hold, and ends at a step of one token in 4,096.
  std::int64_t high = std::min(context, (columns + 1) * slots);  // the smallest cap known not to fit
  bool close = true;
  while (high - low > 1 + high / 4096) {
    const std::int64_t near = high - chunk - 4 * slots;
    const std::int64_t middle = close && near > low ? near : low + (high - low) / 2;
    close = false;
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> candidate, with_cap(middle, conditions.protect));
    if (fit_of(conditions, *candidate, chunk).fits()) {
      low = middle;
      size.policy = std::move(candidate);
    } else {
      high = middle;
    }
  }
  size.chunk = told_chunk(conditions, *size.policy, chunk);
  return size;
}

// Returns the least bytes in memory of demoted tokens of a text: all but the kept ones and a chunk.
std::uint64_t least_demoted_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                                  std::int64_t chunk) {
  if (!policy.traits().demotion) return 0;
  const std::int64_t kept = std::min(tokens, policy.bound().value_or(tokens) + chunk);
  return SequenceDemotion::most_bytes(policy, shape, std::min(tokens - kept, kMostPlannedTokens));
}

// Returns the bytes that a new sequence takes to read a prompt under a policy without a bound; the least of them if the
// policy may drop parts of a prompt while it is read. `first`: tokens of its first chunk.
std::uint64_t need_of_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                             std::int64_t first, int chunk) {
  const PolicyTraits& traits = policy.traits();
  if (tokens > kMostPlannedTokens && !traits.compacts) return least_kv_bytes(shape, policy, tokens);
  if (!traits.compacts || traits.holds_prompts) {
    const std::int64_t planned = std::min(tokens, kMostPlannedTokens);
    const KvMemory memory = plan_kv_memory(shape, policy, {planned, planned, chunk, 1});
    return memory.bytes - memory.demoted_bytes + least_demoted_bytes(shape, policy, planned, first);
  }
  const std::int64_t held = std::max(first, policy.exact_prefix(tokens));
  const std::int64_t slots = shape.page.slots;
  std::uint64_t others = shape.state_bytes();
  for (const WindowGroup& group : shape.windows) others += least_kv_bytes(shape.of(group), tokens);
  return KvCache::cost(shape.governed(), sequence_layout(policy), (held + slots - 1) / slots) + others +
         least_demoted_bytes(shape, policy, tokens, first);
}

// Returns the least that a sequence takes when it has read `tokens` more of a prompt.
std::uint64_t least_with_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t least_held,
                                std::int64_t tokens) {
  if (policy.traits().compacts && !policy.traits().holds_prompts) return 0;
  return least_kv_bytes(shape, policy, least_held + tokens);
}

}  // namespace

std::uint64_t for_several(std::uint64_t needed, std::uint64_t limit, int sequences) {
  const auto count = static_cast<std::uint64_t>(sequences);
  return needed > limit / count ? limit : needed * count;
}

CacheFit fit_cache(const CacheConditions& conditions, const RetentionPolicy& policy) {
  CacheFit fit;
  for (const int chunk : chunks_to_try(conditions, policy)) {
    fit = fit_of(conditions, policy, chunk);
    // Without a bound the policy may still serve short texts. Then a smaller chunk is worth trying only for the
    // workspace.
    if (fit.fits() || (!has_bound(policy) && fit.limit >= limit_beside(conditions, 0))) break;
  }
  return fit;
}

Result<CacheSize> size_cache(const CacheConditions& conditions, const std::optional<PolicySpec>& spec, int sequences) {
  CacheSize size;
  if (!spec) {
    CacheConditions within = conditions;
    within.kv_memory = std::min(conditions.kv_memory, conditions.available);
    KVASIR_ASSIGN_OR_RETURN(size, default_size(within));
  } else {
    KVASIR_ASSIGN_OR_RETURN(size.policy, make_asked(conditions, *spec));
  }
  CacheConditions with_chunk = conditions;
  if (!spec) with_chunk.chunk = size.chunk;
  const CacheFit fit = fit_cache(with_chunk, *size.policy);
  if (!fit.fits() && has_bound(*size.policy)) return too_large(conditions, *size.policy, fit);
  size.chunk = told_chunk(conditions, *size.policy, fit.chunk);
  size.bytes = conditions.kv_memory;
  if (size.bytes == 0) size.bytes = fit.fits() ? for_several(fit.needed, fit.limit, sequences) : fit.limit;
  const std::uint64_t least = KvCache::cost(conditions.shape, {}, 1);
  if (conditions.kv_memory == 0 && size.bytes < least)
    return exhausted(
        "beside the model's weights, {} bytes of memory are left for keys and values, less than the first page of each "
        "layer takes ({}); close other programs, or use smaller weights",
        size.bytes, least);
  return size;
}

Result<CacheSize> share_cache(const CacheConditions& shared, const std::optional<PolicySpec>& spec) {
  CacheConditions conditions = shared;
  conditions.divided = true;
  if (!spec) {
    KVASIR_ASSIGN_OR_RETURN(CacheSize size, default_size(conditions));
    size.bytes = conditions.kv_memory;
    return size;
  }
  CacheSize size;
  KVASIR_ASSIGN_OR_RETURN(size.policy, make_asked(conditions, *spec));
  const CacheFit fit = fit_cache(conditions, *size.policy);
  if (!fit.fits() && has_bound(*size.policy))
    return exhausted(
               "policy '{}' needs {} bytes of KV memory, but there are {} for all requests and sessions together; "
               "choose one that keeps less, or give more KV memory",
               size.policy->traits().spec, fit.needed, conditions.kv_memory)
        .about({"policy", "kv_memory"});
  size.chunk = told_chunk(conditions, *size.policy, fit.chunk);
  size.bytes = conditions.kv_memory;
  return size;
}

std::uint64_t least_prompt_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                                 int chunk) {
  const int rows = prompt_chunk(policy, chunk);
  const std::int64_t first = std::min<std::int64_t>(tokens, rows);
  if (!policy.bound() || policy.traits().compacts) return need_of_prompt(shape, policy, tokens, first, chunk);
  const std::int64_t planned = std::min(tokens, 4 * (*policy.bound() + rows));
  return plan_kv_memory(shape, policy, {planned, planned, chunk, 1}).bytes;
}

Status check_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, ContextPlace place,
                    std::int64_t least_held, std::int64_t tokens, int chunk, std::int64_t context,
                    std::uint64_t budget) {
  const std::int64_t first = std::min<std::int64_t>(tokens, prompt_chunk(policy, chunk));
  KVASIR_RETURN_IF_ERROR(check_room(policy, place, tokens, first, context));
  if (has_bound(policy)) return {};
  const std::uint64_t needed = place.seen == 0 ? need_of_prompt(shape, policy, tokens, first, chunk)
                                               : least_with_prompt(shape, policy, least_held, tokens);
  if (needed <= budget) return {};
  return exhausted(
             "the prompt has {} tokens, for which policy '{}' needs {} bytes of KV memory, but the KV memory has "
             "{}; give it more, or {}",
             tokens, policy.traits().spec, needed, budget,
             policy.traits().demotion ? "demote to fewer bits or to a file"
                                      : "choose a policy that forgets, such as streaming")
      .about({"kv_memory", "policy"});
}

}  // namespace kvasir
