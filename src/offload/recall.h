// Evict = demote: which demoted pages a row reads again.
//
// In each layer and KV head, when a row has attended to what its table retains, with highest score s_h for query head
// h, a column of demoted pages (demoted_pages.h) is ranked by
//   above = max over h, and over its chunks, of (bound_h - s_h)
//   bound_h = sum over d of max(q_hd * low_d, q_hd * high_d)
// which no score of its tokens exceeds: a float sum of 16 interleaved sums, d mod 16, which are added in order. Of the
// columns with above > -ln 1000 the `most` with the largest are attended too, the younger among equals, in order of
// age, as one partial behind all others: of no other column can a token weigh more than a thousandth of the heaviest
// retained one. They are outside the policy's retained set, and the masses that it observes are those without them.
//
// Pages in the file are read into pages of a fixed number, `most` for each lane, and stay there until others are
// chosen. What a layer needs is asked for together, and waited for.
// Thread-safety: as OffloadedPages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/page_access.h"
#include "offload/demoted_pages.h"

namespace kvasir {

class Recall final : public OffloadedPages {
 public:
  // `tables`: those of the sequence, [layer][table of the layer], or one for all lanes. Outlives this. Nothing is
  // charged before reserve.
  Recall(PagePool* pool, std::span<const DemotedPages> tables, int layers, int kv_heads, int most);

  // Bytes that reserve charges. `table`: the layout of a table; `lanes`: of all layers.
  static std::uint64_t bytes_for(const DemotedPages::Layout& table, int lanes, int kv_heads, int most);
  std::uint64_t bytes() const { return charge_.bytes() + page_bytes_; }
  // Takes the memory that it works in; nothing if it was called before. Errors: kResourceExhausted.
  Status reserve();

  // A pass begins whose last row is the token `row`. REQUIRES: reserve succeeded.
  void begin_pass(TokenIndex row);
  // Of the pass: the first page that could not be read. Its attention is then wrong.
  const Status& status() const { return status_; }

  bool recalls() const override { return true; }
  void choose(const LaneRow& row, std::span<const float> highest) override;
  void fetch_chosen(int layer) override;
  std::span<const RecalledPage> chosen(int head) const override {
    const Head& own = heads_[static_cast<std::size_t>(head)];
    return {own.pages, static_cast<std::size_t>(own.count)};
  }

  // So far: pages read again, of them those that were fetched from the file, and the seconds waited for these.
  struct Counts {
    std::int64_t recalled = 0;
    std::int64_t fetched = 0;
    double seconds_waited = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  // What one KV head of the layer at hand chose.
  struct Head {
    RecalledPage pages[kMostRecalled];
    int count = 0;
    int fetches = 0;  // of these, pages that are to be fetched
    struct Fetch {
      std::int64_t column = 0;
      int slot = 0;  // of the lane's pages
    } fetch[kMostRecalled];
    bool fresh = false;  // chosen since the last fetch_chosen()
  };
  int table_of(int layer, int head) const;
  int lane_of(int layer, int head) const;
  // Place of a lane's first page among those for what is fetched.
  std::size_t first_slot(int layer, int head) const {
    return (static_cast<std::size_t>(layer) * heads_.size() + static_cast<std::size_t>(head)) *
           static_cast<std::size_t>(most_);
  }
  static float bound(const float* q, const float* bounds, int dim);

  PagePool* pool_;
  std::span<const DemotedPages> tables_;
  int layers_;
  int most_;
  TokenIndex row_ = 0;
  Status status_;
  Counts counts_;
  std::vector<Head> heads_;            // [kv_heads]; empty before reserve
  PageRefs pages_;                     // with a file: [layer][head][most]
  std::vector<std::int64_t> columns_;  // which column each of them holds, or -1
  MemoryCharge charge_;                // but for the pages
  std::uint64_t page_bytes_ = 0;
  int kv_heads_;
};

}  // namespace kvasir
