// SyncKV's cold tier, for one sequence: keys and values of heads that follow another (FollowsHeads::leader) leave
// memory, and of those that left the ones that are read come back while others compute.
//
// At the end of a chunk, of tables that follow, whole pages of settled tokens (FollowsHeads::settled) are written to
// the cold file and given back. There they are token by token: for each cluster of heads that follow one, a token's
// rows lie beside each other, some tokens in a part with a checksum.
//   A row that chooses (a generated token) reads what is chosen of them from rows in memory, the hot ones: at most
//   Bounds::chosen for each head. After each layer of a pass that chose anew, what is chosen and not hot is asked for
//   in place of what is no longer; the next pass waits for it before the layer attends.
//   Rows that read everything (those of a prompt) find the pages of one layer in memory, while those of the next come.
// Either way entries keep their places in the order of summation: the bits are those of tables that have everything.
//
// Where leaders are not known before a prompt has ended (a policy without a profile), nothing leaves until then.
// Thread-safety: one caller at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/page_access.h"
#include "kv/kv_cache.h"
#include "kvasir/result.h"
#include "offload/follower_plan.h"
#include "offload/follower_sets.h"
#include "retention/policy.h"
#include "tiers/cold_tier.h"

namespace kvasir {

// Whether there is a folder for what the policy offloads, if it does, and the pages are such that it can. Errors:
// kInvalidArgument.
Status check_offload(const RetentionPolicy& policy, const PageFormat& page, const ColdTier* tier);

class FollowerHeads final : public OffloadedPages {
 public:
  // Null where the policy offloads nothing. The policy was begun, and outlives this, as cache and tier do. Errors:
  // those of check_offload.
  static Result<std::unique_ptr<FollowerHeads>> create(const RetentionPolicy& policy, KvCache* cache,
                                                       const KvCacheShape& shape, ColdTier* tier);
  ~FollowerHeads() override;
  // Of a fork, whose policy this is: shares what is in the file, and has hot rows of its own. Waits for what is under
  // way. REQUIRES: no chunk is under way. Errors: kResourceExhausted, status().
  Result<std::unique_ptr<FollowerHeads>> fork(const RetentionPolicy& policy) const;

  // -- Before a pass. --
  // Bytes that the chunk's passes take, and those that must be available when it ends.
  struct Room {
    std::uint64_t bytes = 0;
    std::uint64_t reserve = 0;
  };
  Room plan(const PolicyChunk& chunk) const;
  // Takes what plan says. Errors: kResourceExhausted.
  Status make_room(const PolicyChunk& chunk);
  // Returns what fetches for the pass, after which describe is called for each table once it was described; null while
  // everything is in the tables.
  OffloadedPages* begin_pass(const PolicyChunk& chunk, const KvSequence& tables);
  void describe(int table, BatchTable* out) const;

  void fetch(int layer) override;

  // -- After a chunk that the policy has ended. keep first copies and writes what give_back then gives back. --
  void keep(const PolicyChunk& chunk, const KvSequence& tables);
  void give_back(KvSequence* tables);

  // Whether any token has left the tables.
  bool empty() const { return cold_ == 0; }
  // What could not be written or read: the rows of the last pass are then wrong, or the next one would be.
  const Status& status() const { return status_; }
  std::uint64_t bytes() const;  // charged

  struct Report {
    std::uint64_t hot_bytes = 0;   // keys and values in memory
    std::uint64_t cold_bytes = 0;  // in the file
    double write_wait_seconds = 0;
    KvReport::Fetched chosen;   // hot rows
    KvReport::Fetched prompts;  // pages of layers for rows that read everything
  };
  const Report& report() const { return report_; }  // with the hot rows alone
  // With the pages that the tables which follow still have.
  Report report_with(const KvSequence& tables) const;

 private:
  struct Cluster {
    int layer = 0;
    std::vector<int> tables;  // those that follow
    int first_hot = 0;        // of hot_
    FollowerSet set;
    std::vector<std::shared_ptr<ColdBlock>> blocks;  // [column]
    std::vector<std::shared_ptr<ColdFetch>> fetches;
    // Of the pass at hand: the offloaded entries, then the tables' own.
    std::vector<PageEntry> entries;
    std::vector<std::uint32_t> first_rows;  // of the former
    std::uint32_t offloaded = 0;
  };

  FollowerHeads(const RetentionPolicy& policy, KvCache* cache, const KvCacheShape& shape, ColdTier* tier);
  FollowerHeads(const RetentionPolicy& policy, const FollowerHeads& other);
  bool find_clusters();
  void make_refs();
  bool reads_all(const PolicyChunk& chunk) const;
  std::uint64_t list_bytes(std::int64_t tokens) const;
  Status resize_lists(std::int64_t tokens);
  std::int64_t most_chosen(const PolicyChunk& chunk) const;
  void write_columns(Cluster& cluster, const KvSequence& tables, std::int64_t first, std::int64_t end);
  void choose_rows(Cluster& cluster, const PolicyChunk& next, TokenIndex end, const KvSequence* tables);
  void choose_after(int layer);
  void begin_work(int layer);
  static Status not_written(const Status& why);
  void end_fetches(std::vector<std::shared_ptr<ColdFetch>>& fetches, bool needed, KvReport::Fetched* report);
  void drop_hot();
  void drop_work();
  Status take_hot(std::int64_t chosen);
  std::size_t work_index(int layer, int of_layer) const {
    return static_cast<std::size_t>(layer % FollowerPlan::kWorkLayers) * static_cast<std::size_t>(plan_.followers) +
           static_cast<std::size_t>(of_layer);
  }

  const FollowsHeads& heads_;  // of the policy, as the two below
  const LeavesUnread& unread_;
  const ObservesMasses& masses_;
  KvCache* cache_;
  ColdTier* tier_;
  PageClass page_class_{};
  FollowerPlan plan_;
  std::vector<Cluster> clusters_;  // by layer
  // By table: its cluster, or -1; its number among the tables of the cluster, and of those of its layer that follow.
  struct Place {
    int cluster = -1;
    int of_cluster = 0;
    int of_layer = 0;
  };
  std::vector<Place> places_;
  std::vector<PageRefs> hot_;   // [cluster][table of it]: rows
  std::vector<PageRefs> work_;  // [layer % kWorkLayers][table of the layer]: pages
  std::vector<std::shared_ptr<ColdFetch>> work_fetches_[FollowerPlan::kWorkLayers];
  MemoryCharge lists_;            // of sets, entries, blocks
  std::int64_t list_tokens_ = 0;  // for which there is room in entries and blocks
  MemoryCharge refs_;             // of hot_ and work_, but for the pages
  TokenIndex cold_ = 0;           // tokens before it have left the tables; whole pages
  TokenIndex leaves_ = 0;         // what keep has copied: cold_ once they were given back
  std::int64_t chosen_ = 0;       // room in the sets and in hot_; 0: none
  bool lacks_hot_ = false;        // a prompt has begun since hot rows were chosen
  std::vector<std::shared_ptr<ColdBlock>> writing_;
  // Of the pass at hand.
  PolicyChunk chunk_;
  bool whole_ = false;    // its rows read everything
  bool chooses_ = false;  // its row chooses anew
  int chosen_layers_ = 0;
  std::vector<IndexRange> ranges_;
  std::vector<FollowerSet::Missing> missing_;
  Status status_;
  Report report_;
};

}  // namespace kvasir
