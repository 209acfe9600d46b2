#include "offload/offloaded_tokens.h"

#include "base/status.h"

namespace kvasir {

Result<OffloadedTokens> OffloadedTokens::create(const RetentionPolicy& policy, KvCache* cache,
                                                const KvCacheShape& shape, DemotionFile* file, ColdTier* tier) {
  OffloadedTokens tokens;
  KVASIR_ASSIGN_OR_RETURN(tokens.demotion_, SequenceDemotion::create(policy, cache, shape, file));
  KVASIR_ASSIGN_OR_RETURN(tokens.followers_, FollowerHeads::create(policy, cache, shape, tier));
  return tokens;
}

Result<OffloadedTokens> OffloadedTokens::fork(const RetentionPolicy& policy) const {
  OffloadedTokens copy;
  if (demotion_ != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(copy.demotion_, demotion_->fork());
  }
  if (followers_ != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(copy.followers_, followers_->fork(policy));
  }
  return copy;
}

bool OffloadedTokens::empty() const {
  return (demotion_ == nullptr || demotion_->empty()) && (followers_ == nullptr || followers_->empty());
}

Status OffloadedTokens::status() const {
  if (followers_ != nullptr) KVASIR_RETURN_IF_ERROR(followers_->status());
  return demotion_ != nullptr ? demotion_->status() : Status();
}

std::uint64_t OffloadedTokens::bytes() const {
  return (demotion_ != nullptr ? demotion_->bytes() : 0) + (followers_ != nullptr ? followers_->bytes() : 0);
}

std::uint64_t OffloadedTokens::own_bytes() const {
  return (demotion_ != nullptr ? demotion_->own_bytes() : 0) + (followers_ != nullptr ? followers_->bytes() : 0);
}

OffloadedTokens::Room OffloadedTokens::plan(const KvSequence& tables, const PolicyChunk& chunk, int rows) const {
  Room room = followers_ != nullptr ? followers_->plan(chunk) : Room();
  if (demotion_ != nullptr) room.reserve += demotion_->may_take(tables, rows);
  return room;
}

OffloadedPages* OffloadedTokens::begin_pass(const PolicyChunk& chunk, int end, const KvSequence& tables) {
  if (followers_ != nullptr) return followers_->begin_pass(chunk, tables);
  const bool recalls = !chunk.prompt || (chunk.ends_prompt() && end == chunk.rows);
  return demotion_ != nullptr && recalls ? demotion_->begin_pass(chunk.first + end - 1) : nullptr;
}

}  // namespace kvasir
