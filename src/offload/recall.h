// Chooses the demoted pages that a row recalls.
//
// In each layer and KV head, a row first attends to what its table retains; s_h is then the highest score of query head
// h. A column of demoted pages (demoted_pages.h) is ranked by
//   above = max over h, and over its segments, of (bound_h - s_h)
//   bound_h = sum over d of max(q_hd * low_d, q_hd * high_d)
// bound_h is a float sum of 16 interleaved sums, d mod 16, which are added in order; no score of the column's tokens
// exceeds it. The row recalls columns with above > -ln 1000: in any other, no token can weigh more than a thousandth of
// the heaviest retained one. Of these it recalls the `most` with the largest `above`, the younger among equals. It
// attends to them in order of age, as one partial behind all others. They are outside the policy's retained set, and
// the masses that it observes do not include them.
//
// Pages in the file are read into `most` pages for each lane, and stay there until others are chosen. A layer's reads
// are requested together, and waited for.
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
  // `tables`: of the sequence, [layer][table of the layer], or one for all lanes; must outlive the object. Nothing is
  // charged before reserve.
  Recall(PagePool* pool, std::span<const DemotedPages> tables, int layers, int kv_heads, int most);

  // Returns the bytes that reserve charges. `table`: the layout of a table; `lanes`: of all layers.
  static std::uint64_t bytes_for(const DemotedPages::Layout& table, int lanes, int kv_heads, int most);
  std::uint64_t bytes() const { return charge_.bytes() + page_bytes_; }
  // Allocates working memory, once. Errors: kResourceExhausted.
  Status reserve();

  // Begins a pass whose last row is the token `row`. REQUIRES: reserve succeeded.
  void begin_pass(TokenIndex row);
  // Returns the pass's first failure to read a page. Its attention is then wrong.
  const Status& status() const { return status_; }

  bool recalls() const override { return true; }
  void choose(const LaneRow& row, std::span<const float> highest) override;
  void fetch_chosen(int layer) override;
  std::span<const RecalledPage> chosen(int head) const override {
    const Head& own = heads_[static_cast<std::size_t>(head)];
    return {own.pages, static_cast<std::size_t>(own.count)};
  }

  struct Counts {
    std::int64_t recalled = 0;  // pages
    std::int64_t fetched = 0;   // of these, read from the file
    double seconds_waited = 0;  // for these
  };
  const Counts& counts() const { return counts_; }

 private:
  // The choice of one KV head in the current layer.
  struct Head {
    RecalledPage pages[kMostRecalled];
    int count = 0;
    int fetches = 0;  // of these, pages to be fetched
    struct Fetch {
      std::int64_t column = 0;
      int slot = 0;  // of the lane's pages
    } fetch[kMostRecalled];
    bool fresh = false;  // chosen since the last fetch_chosen()
  };
  int table_of(int layer, int head) const;
  int lane_of(int layer, int head) const;
  // Returns the index in pages_ of a lane's first page.
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
  MemoryCharge charge_;                // of all but the pages
  std::uint64_t page_bytes_ = 0;
  int kv_heads_;
};

}  // namespace kvasir
