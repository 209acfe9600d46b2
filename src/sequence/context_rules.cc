#include "sequence/context_rules.h"

#include <algorithm>

#include "base/status.h"

namespace kvasir {

ContextPlace context_place(const KvSequence& tables) {
  return {tables.next_index(), tables.longest()};
}

Status check_positions(const RetentionPolicy& policy, int chunk, std::int64_t context, std::int64_t tokens) {
  if (!policy.traits().compacts || !policy.bound() || policy.traits().positions == PositionMode::kOriginal) return {};
  const std::int64_t most = *policy.bound() - 1 + prompt_chunk(policy, chunk);
  if (std::min(most, tokens) <= context) return {};
  return invalid_argument(
             "policy '{}' shows a pass up to {} tokens (what it keeps and a chunk of {}), more than the trained "
             "context of {}; give it a smaller size (budget, size, max) or a smaller chunk",
             policy.traits().spec, most, prompt_chunk(policy, chunk), context)
      .about({"policy", "chunk"});
}

std::int64_t context_left(const RetentionPolicy& policy, ContextPlace place, std::int64_t context) {
  switch (policy.context_use()) {
    case ContextUse::kNone: break;
    case ContextUse::kText: return context - place.seen;
    case ContextUse::kHeld: return context - place.held;
  }
  return kUnlimitedContext;
}

std::int64_t context_left(const Sequence& sequence) {
  return context_left(sequence.policy(), context_place(sequence.tables()), sequence.context());
}

KvCodec codec_for(const ModelConfig& model, const KvCodec& codec, const RetentionPolicy& policy, int chunk,
                  std::int64_t tokens) {
  if (!model.has_long_rotation()) return codec;
  // Tables of ranges hold neighbours, and compact positions are those of what is held, so both reach no further than
  // the policy's bound.
  const PolicyTraits& traits = policy.traits();
  std::int64_t apart = policy.context_use() == ContextUse::kNone ? tokens : std::min(tokens, model.context);
  const bool near = !traits.compacts || traits.positions == PositionMode::kCompact;
  if (policy.bound() && near && !traits.demotion && !traits.holds_prompts)
    apart = std::min(apart, *policy.bound() - 1 + prompt_chunk(policy, chunk));
  KvCodec chosen = codec;
  chosen.long_rotation = codec.long_rotation || apart > model.context_of(false);
  return chosen;
}

Status check_room(const RetentionPolicy& policy, ContextPlace place, std::int64_t rest, std::int64_t next,
                  std::int64_t context) {
  const std::int64_t left = context_left(policy, place, context);
  const PolicyTraits& traits = policy.traits();
  if (policy.context_use() == ContextUse::kText && rest > left) {
    const bool original = traits.positions == PositionMode::kOriginal || traits.demotion;
    return exhausted(
               "this model's maximum context length is {} tokens; the text has {}, policy '{}' keeps {}, and there is "
               "room for {}: use {}, or a shorter text",
               context, rest, traits.spec, original ? "their positions" : "all of them",
               std::max<std::int64_t>(0, left),
               traits.demotion ? "no demotion and a policy with compact positions"
               : original      ? "a policy with pos=compact, such as streaming"
                               : "a policy that forgets, such as streaming")
        .about({"policy"});
  }
  if (policy.context_use() == ContextUse::kHeld && traits.holds_prompts && rest > left)
    return exhausted(
               "this model's maximum context length is {} tokens; the text has {}, policy '{}' holds all of a prompt "
               "until its end, and there is room for {}: use a policy that forgets while it reads, such as streaming, "
               "or "
               "a shorter text",
               context, rest, traits.spec, std::max<std::int64_t>(0, left))
        .about({"policy"});
  if (policy.context_use() == ContextUse::kHeld && next > left)
    return exhausted(
               "this model's maximum context length is {} tokens; policy '{}' holds {} of the {} tokens seen, and "
               "there "
               "is no room for the next {}: use a policy with a bound or a shorter text",
               context, traits.spec, place.held, place.seen, next)
        .about({"policy"});
  return {};
}

}  // namespace kvasir
