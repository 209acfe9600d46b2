// The tokens of one sequence that are outside its page tables: demoted ones (demotion.h), and those of heads that were
// offloaded (follower_heads.h). Adds up their memory, and offers a pass what its rows read of them.
// Thread-safety: one caller at a time, but for OffloadedPages.
#pragma once

#include <memory>
#include <span>

#include "offload/demotion.h"
#include "offload/follower_heads.h"

namespace kvasir {

class OffloadedTokens {
 public:
  // Makes what the policy asks for. REQUIRES: the policy was begun. Policy, cache and files outlive the object. Errors:
  // those of SequenceDemotion::create and FollowerHeads::create.
  static Result<OffloadedTokens> create(const RetentionPolicy& policy, KvCache* cache, const KvCacheShape& shape,
                                        DemotionFile* file, ColdTier* tier);
  // Makes those of a fork under `policy`. Errors: kResourceExhausted, status().
  Result<OffloadedTokens> fork(const RetentionPolicy& policy) const;

  // Null: tokens that the policy drops are lost.
  SequenceDemotion* demotion() { return demotion_.get(); }
  const SequenceDemotion* demotion() const { return demotion_.get(); }
  // Null: no head is offloaded.
  FollowerHeads* followers() { return followers_.get(); }
  const FollowerHeads* followers() const { return followers_.get(); }

  // Returns whether the tables have everything: nothing was demoted or offloaded.
  bool empty() const;
  // Returns the first failure to write or read such a token. The results of the last pass are then wrong.
  Status status() const;
  std::uint64_t bytes() const;      // charged
  std::uint64_t own_bytes() const;  // of these, what is freed with this object

  // Returns what the next `rows` rows take, in a chunk under way or about to begin.
  using Room = FollowerHeads::Room;
  Room plan(const KvSequence& tables, const PolicyChunk& chunk, int rows) const;
  // Rows of `chunk` up to `end` run next. Returns what fetches tokens for them; null: their tables have everything.
  OffloadedPages* begin_pass(const PolicyChunk& chunk, int end, const KvSequence& tables);

 private:
  std::unique_ptr<SequenceDemotion> demotion_;
  std::unique_ptr<FollowerHeads> followers_;
};

}  // namespace kvasir
