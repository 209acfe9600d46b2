#include "session/session_need.h"

#include <algorithm>

#include "planning/memory_plan.h"

namespace kvasir {

std::uint64_t bytes_behind(const SessionBase* session, const std::function<std::uint64_t(std::int64_t before)>& plan) {
  if (session == nullptr) return plan(0);
  const Sequence& held = *session->held().sequence;
  const RetentionPolicy& policy = held.policy();
  const std::uint64_t bytes = held.bytes();
  std::int64_t seen = held.tables().next_index();
  // The smaller of: session plus request; both as one new text. The second is far too high if a policy holds a prompt
  // whole and the session kept little of it.
  std::uint64_t need = 0;
  if (__builtin_add_overflow(bytes, plan(0), &need)) need = ~std::uint64_t{0};
  if (!policy.traits().holds_prompts) {
    // A policy with a bound reaches its peak within fewer tokens.
    if (policy.bound())
      seen = std::min(
          seen, 4 * (*policy.bound() + prompt_chunk(policy, session->held().chunk) + held.shape().widest_window()));
    const std::uint64_t whole = std::max(bytes, plan(seen));
    // A selector's memory covers the whole text, and a fork does not have it yet.
    need = policy.as<LeavesUnread>() != nullptr ? whole : std::min(need, whole);
  }
  if (const RepeatsText* repeats = policy.as<RepeatsText>()) {
    // A fork repeats what has come since the last repetition; plan(0) has the request's own tokens.
    const std::int64_t rows = repeats->most_part(std::ssize(repeats->text()));
    const std::uint64_t pages = KvCache::page_cost(held.shape(), sequence_layout(policy, held.tables().codec()),
                                                   rows / held.shape().page.slots + 2);
    const std::uint64_t fork = held.own_bytes_beside_pages() + held.state_bytes() + pages;
    if (__builtin_add_overflow(need, fork, &need)) need = ~std::uint64_t{0};
  }
  if (session->stored()) return need;
  return need - std::min(need, shared_bytes(policy, held.shape(), held.tables().next_index()));
}

}  // namespace kvasir
