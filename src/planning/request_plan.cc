#include "planning/request_plan.h"

#include <algorithm>

#include "base/status.h"
#include "planning/memory_plan.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

// Returns the most of `tokens` tokens that are held between two chunks.
std::int64_t most_held(const RetentionPolicy& policy, std::int64_t tokens) {
  return std::min(tokens, policy.bound().value_or(tokens));
}

KvMemory memory_of(const KvCacheShape& shape, const CacheSize& place, std::int64_t prompt, std::int64_t tokens,
                   int sequences) {
  return plan_kv_memory(shape, *place.policy,
                        {tokens, std::min(prompt, tokens), prompt_chunk(*place.policy, place.chunk), sequences, true});
}

// Deducts the pages of the prompt that several samples share, so that each counts once: those sealed before the samples
// diverge.
void share_prompt(const KvCacheShape& shape, const RetentionPolicy& policy, const PlanRequest& request,
                  KvMemory* memory) {
  if (!keeps_all(policy, shape)) return;
  const std::int64_t columns = std::max<std::int64_t>(0, request.prompt - shape.recent) / shape.page.slots;
  const auto samples = static_cast<std::uint64_t>(request.samples);
  // With encoded pages the peak may be a moment with fewer of them.
  const std::uint64_t of_each = std::min(static_cast<std::uint64_t>(columns * shape.lanes()), memory->pages / samples);
  const std::uint64_t pages = (samples - 1) * of_each;
  memory->pages -= pages;
  memory->table_bytes -= pages * PagePool::kPageOverhead;
  memory->bytes -= pages * (memory->page_bytes + PagePool::kPageOverhead);
}

// Returns how many of `most` tokens behind a prompt the whole cache can hold, under a policy without a bound.
std::int64_t tokens_that_fit(const KvCacheShape& shape, const CacheSize& place, std::int64_t prompt,
                             std::int64_t most) {
  const auto fits = [&](std::int64_t tokens) {
    // The demoted bytes are not known in advance: a request is refused only for its least.
    if (place.policy->traits().demotion)
      return check_prompt(shape, *place.policy, {}, 0, tokens, place.chunk, kUnlimitedContext, place.bytes).ok();
    return least_kv_bytes(shape, *place.policy, most_held(*place.policy, tokens)) <= place.bytes &&
           memory_of(shape, place, prompt, tokens, 1).bytes <= place.bytes;
  };
  if (fits(prompt + most)) return most;
  std::int64_t least = 0;
  while (least < most) {
    const std::int64_t middle = least + (most - least + 1) / 2;
    if (fits(prompt + middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

// `held`: prompt tokens that are kept.
Status prompt_too_long(const KvCacheShape& shape, const CacheSize& place, std::int64_t prompt, std::int64_t held) {
  if (held > kMostPlannedTokens)
    return exhausted("the prompt's {} tokens take at least {} bytes of KV memory, and there are {}", held,
                     least_kv_bytes(shape, *place.policy, held), place.bytes)
        .about({"prompt"});
  const KvMemory memory = memory_of(shape, place, prompt, prompt, 1);
  return exhausted("the prompt's {} tokens take {}{} bytes of KV memory, and there are {}", held,
                   memory.exact ? "" : "up to ", memory.bytes, place.bytes)
      .about({"prompt"});
}

}  // namespace

Result<RequestPlan> plan_request(const PlanRequest& request, const KvCacheShape& shape, const CacheSize& place,
                                 std::int64_t context) {
  if (request.prompt < 1 || request.prompt > kMostTokens)
    return invalid_argument("a prompt of {} tokens is outside 1 to 2^40", request.prompt).about({"prompt"});
  if (request.max_tokens < -1 || request.max_tokens > kMostTokens)
    return invalid_argument("max_tokens={} is outside 0 to 2^40 (-1: what there is room for)", request.max_tokens)
        .about({"max_tokens"});
  if (request.samples < 1 || request.samples > kMostSamples)
    return invalid_argument("samples={} is outside 1 to {}", request.samples, kMostSamples).about({"samples"});
  const RetentionPolicy& policy = *place.policy;
  RequestPlan plan;
  plan.policy = policy.traits().spec;
  plan.codec = codec_name(shape.codec());
  plan.prompt = request.prompt;
  plan.budget = place.bytes;
  plan.bytes_per_token = shape.page.slot_bytes() * static_cast<std::uint64_t>(shape.lanes());
  plan.endless = policy.bound().has_value() && policy.context_use() != ContextUse::kText;
  plan.most_tokens = context;
  const std::int64_t held = most_held(policy, request.prompt);
  plan.refusal = least_kv_bytes(shape, policy, std::min(held, kMostTokens)) > place.bytes || held > kMostPlannedTokens
                     ? prompt_too_long(shape, place, request.prompt, held)
                     : check_prompt(shape, policy, {}, 0, request.prompt, place.chunk, context, place.bytes);
  if (!plan.endless) {
    plan.most_tokens = std::max<std::int64_t>(0, context - request.prompt);
    if (!plan.refusal.ok()) plan.most_tokens = 0;
    plan.most_tokens = tokens_that_fit(shape, place, request.prompt, plan.most_tokens);
  }
  plan.max_tokens = request.max_tokens >= 0 ? request.max_tokens : plan.most_tokens;
  plan.tokens = request.prompt + plan.max_tokens;
  const std::int64_t kept = most_held(policy, plan.tokens);
  if (kept > kMostPlannedTokens)
    return invalid_argument("policy '{}' keeps {} of these tokens; plan at most 2^24 of them", plan.policy, kept)
        .about({"max_tokens", "prompt"});
  KvMemory memory = memory_of(shape, place, request.prompt, plan.tokens, request.samples);
  share_prompt(shape, policy, request, &memory);
  plan.tokens_seen_max = memory.tokens_seen_max;
  plan.pages = memory.pages;
  plan.page_bytes = memory.page_bytes;
  plan.open_pages = memory.open_pages;
  plan.open_page_bytes = memory.open_page_bytes;
  plan.table_bytes = memory.table_bytes;
  plan.policy_bytes = memory.policy_bytes;
  plan.demoted_bytes = memory.demoted_bytes;
  plan.offload_bytes = memory.offload_bytes;
  plan.offload_file_bytes = memory.offload_file_bytes;
  plan.bytes = memory.bytes;
  plan.exact = memory.exact && request.samples == 1;
  if (plan.refusal.ok() && !plan.endless && plan.max_tokens > plan.most_tokens)
    plan.refusal = exhausted(
                       "a prompt of {} tokens and {} more take {} bytes of KV memory, of {}, in a context of {}; at "
                       "most {} more have room",
                       request.prompt, plan.max_tokens, memory.bytes, place.bytes, context, plan.most_tokens)
                       .about({"max_tokens"});
  if (plan.refusal.ok() && memory.exact && request.samples == 1 && memory.bytes > place.bytes)
    plan.refusal = exhausted("the request takes {} bytes of KV memory, and there are {}", memory.bytes, place.bytes)
                       .about({"policy", "max_tokens"});
  return plan;
}

}  // namespace kvasir
