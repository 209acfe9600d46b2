// The rules that tie a sequence to the context its model was trained for; one function each. Sessions, evaluations,
// recordings, benchmarks and the memory plan all ask here.
//
// Which rule can refuse a policy follows from RetentionPolicy::context_use(): kText counts the tokens seen, kHeld the
// tokens retained, kNone neither.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <limits>

#include "sequence/sequence.h"

namespace kvasir {

inline constexpr std::int64_t kUnlimitedContext = std::int64_t{1} << 62;

// How far a sequence has come.
struct ContextPlace {
  std::int64_t seen = 0;  // tokens read and generated
  std::int64_t held = 0;  // tokens in the table that retains most
};
ContextPlace context_place(const KvSequence& tables);

// Rule 1: what one forward pass sees must fit the trained context where positions are compact. Applies to bounded,
// attention-scored policies; those that decide by range may see more. `tokens` is the length of the text, if known: no
// pass sees more than that. Errors: kInvalidArgument.
Status check_positions(const RetentionPolicy& policy, int chunk, std::int64_t context,
                       std::int64_t tokens = std::numeric_limits<std::int64_t>::max());

// Rule 2: returns how many more tokens a sequence may take before the trained context is full; kUnlimitedContext for
// policies that never fill it.
std::int64_t context_left(const RetentionPolicy& policy, ContextPlace place, std::int64_t context);
std::int64_t context_left(const Sequence& sequence);

// Rule 3: a text may be read on only while rule 2 leaves room. kText needs room for all the `rest` of the text, and
// so does kHeld where prompts are held until they end; otherwise kHeld needs it for the `next` tokens, those of the
// next pass. Errors: kResourceExhausted.
Status check_room(const RetentionPolicy& policy, ContextPlace place, std::int64_t rest, std::int64_t next,
                  std::int64_t context);

// Rule 4: where a model has two sets of angles (LongRoPE), a sequence keeps those that it begins with, so they must
// suit the length that it may reach. Returns the codec with the angles for a text of up to `tokens` tokens under a
// policy: the ones for long texts if some pass may see tokens that far apart, or if the codec has them already.
// `chunk`: of prompts; 0: the policy's own.
KvCodec codec_for(const ModelConfig& model, const KvCodec& codec, const RetentionPolicy& policy, int chunk,
                  std::int64_t tokens = kUnlimitedContext);

}  // namespace kvasir
