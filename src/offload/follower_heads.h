// SyncKV's cold tier, for one sequence: keys and values of heads that follow another (FollowsHeads::leader) leave
// memory for the cold file. What later rows read of them is fetched while other layers compute.
//
// At the end of a chunk, tables that follow write whole pages of settled tokens (FollowsHeads::settled) to the file and
// give them back. The file stores them token by token: for each cluster (the heads that follow one leader) a token's
// rows lie beside each other, and several tokens form a part with a checksum.
// - The row of a generated token reads the tokens that its leader chose, from copies in memory, the hot rows: at most
//   Bounds::chosen for each head. When a pass chooses anew, each layer requests, once it has attended, the chosen
//   tokens that are not hot; they replace hot ones that are no longer chosen. The next pass waits for them before that
//   layer attends.
// - The rows of a prompt read everything: one layer's pages are in memory, the work pages, while the next one's come.
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

// Checks that a policy which offloads has a folder for its file, pages of 16 or 32 bits, and a model none of whose
// layers reads another's. Errors: kInvalidArgument, kUnsupported.
Status check_offload(const RetentionPolicy& policy, const KvCacheShape& shape, const ColdTier* tier);

class FollowerHeads final : public OffloadedPages {
 public:
  // Returns null where the policy offloads nothing. REQUIRES: the policy was begun. Policy, cache and tier must outlive
  // the object. Errors: those of check_offload.
  static Result<std::unique_ptr<FollowerHeads>> create(const RetentionPolicy& policy, KvCache* cache,
                                                       const KvCacheShape& shape, ColdTier* tier);
  ~FollowerHeads() override;
  // Makes that of a forked sequence with policy `policy`: it shares what is in the file, and has its own hot rows.
  // Waits for reads under way. REQUIRES: no chunk is under way. Errors: kResourceExhausted, status().
  Result<std::unique_ptr<FollowerHeads>> fork(const RetentionPolicy& policy) const;

  // -- Before a pass. --
  struct Room {
    std::uint64_t bytes = 0;    // that the chunk's passes take
    std::uint64_t reserve = 0;  // bytes that must be available when it ends
  };
  Room plan(const PolicyChunk& chunk) const;
  // Takes plan(chunk).bytes. Errors: kResourceExhausted.
  Status make_room(const PolicyChunk& chunk);
  // Returns what fetches offloaded tokens for the pass; null while everything is in the tables.
  OffloadedPages* begin_pass(const PolicyChunk& chunk, const KvSequence& tables);
  // Adds the offloaded entries to a table that was described. Call it for each table after begin_pass.
  void describe(int table, BatchTable* out) const;

  void fetch(int layer) override;

  // -- After the policy has ended a chunk. --
  // Writes the tokens that leave, and makes the chosen ones hot.
  void keep(const PolicyChunk& chunk, const KvSequence& tables);
  // Gives back the pages of what keep has written.
  void give_back(KvSequence* tables);

  bool empty() const { return cold_ == 0; }  // no token has left the tables
  // Returns the first failure to write or read: results of the last pass are then wrong, or those of the next would be.
  const Status& status() const { return status_; }
  std::uint64_t bytes() const;  // charged

  struct Report {
    std::uint64_t hot_bytes = 0;   // in memory: hot rows, and the pages that the following tables still have
    std::uint64_t cold_bytes = 0;  // in the file
    double write_wait_seconds = 0;
    KvReport::Fetched chosen;   // hot rows
    KvReport::Fetched prompts;  // pages of layers for rows that read everything
  };
  Report report(const KvSequence& tables) const;

 private:
  struct Cluster {
    int layer = 0;
    std::vector<int> tables;  // those that follow the leader
    int first_hot = 0;        // index in hot_ of the first table's
    FollowerSet set;
    std::vector<std::shared_ptr<ColdBlock>> blocks;  // [column]
    std::vector<std::shared_ptr<ColdFetch>> fetches;
    // Of the current pass:
    std::vector<PageEntry> entries;         // offloaded ones, then the tables' own
    std::uint32_t offloaded = 0;            // number of offloaded entries
    std::vector<std::uint32_t> first_rows;  // [offloaded]: index in set.rows() of its first
  };

  FollowerHeads(const RetentionPolicy& policy, KvCache* cache, const KvCacheShape& shape, ColdTier* tier);
  FollowerHeads(const RetentionPolicy& policy, const FollowerHeads& other);
  bool find_clusters();
  void make_refs();
  bool reads_all(const PolicyChunk& chunk) const;
  Status resize_lists(std::int64_t tokens);
  std::int64_t most_chosen(const PolicyChunk& chunk) const;
  void write_columns(Cluster& cluster, const KvSequence& tables, std::int64_t first, std::int64_t end);
  void choose_rows(Cluster& cluster, const PolicyChunk& next, TokenIndex end, const KvSequence* tables);
  void begin_work(int layer);
  void end_fetches(std::vector<std::shared_ptr<ColdFetch>>& fetches, bool needed, KvReport::Fetched* report);
  void drop_hot();
  void drop_work();
  Status take_hot(std::int64_t chosen);
  std::size_t work_index(int layer, int of_layer) const {
    return static_cast<std::size_t>(layer % FollowerPlan::kWorkLayers) * static_cast<std::size_t>(plan_.followers) +
           static_cast<std::size_t>(of_layer);
  }

  const FollowsHeads& heads_;  // of the policy, like the two below
  const LeavesUnread& unread_;
  const ObservesMasses& masses_;
  KvCache* cache_;
  ColdTier* tier_;
  PageClass page_class_{};
  FollowerPlan plan_;
  std::vector<Cluster> clusters_;  // by layer
  struct Place {
    int cluster = -1;    // -1: the table does not follow
    int of_cluster = 0;  // its index among the tables of the cluster
    int of_layer = 0;    // its index among the following tables of its layer
  };
  std::vector<Place> places_;   // [table]
  std::vector<PageRefs> hot_;   // [cluster][Place::of_cluster]: pages of hot rows
  std::vector<PageRefs> work_;  // [layer % kWorkLayers][Place::of_layer]
  std::vector<std::shared_ptr<ColdFetch>> work_fetches_[FollowerPlan::kWorkLayers];
  MemoryCharge lists_;            // of sets, entries, blocks
  std::int64_t list_tokens_ = 0;  // tokens for which entries and blocks have room
  MemoryCharge refs_;             // of hot_ and work_, without the pages
  TokenIndex cold_ = 0;           // tokens before it have left the tables; whole pages
  TokenIndex leaves_ = 0;         // tokens before it were written by keep: the next cold_
  std::int64_t chosen_ = 0;       // tokens for which the sets and hot_ have room
  bool lacks_hot_ = false;        // a prompt has begun since hot rows were chosen
  std::vector<std::shared_ptr<ColdBlock>> writing_;
  // Of the current pass:
  PolicyChunk chunk_;
  bool whole_ = false;     // its rows read everything
  bool chooses_ = false;   // its row chooses anew
  int chosen_layers_ = 0;  // layers whose choice was requested
  std::vector<IndexRange> ranges_;
  std::vector<FollowerSet::Missing> missing_;
  Status status_;
  Report report_;
};

}  // namespace kvasir
