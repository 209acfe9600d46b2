// Quest: a generated token reads, in each KV head, the segments of 16 tokens whose keys may fit its queries best (Tang
// et al., arXiv 2406.10774).
//
// A segment is the tokens [16 c, 16 c + 16) of the text, whatever the page. low and high are the least and the greatest
// element of each dimension of its keys, as attention reads them (decoded, after RoPE, before the pages' Hadamard
// matrix). No product of the segment's keys with a query q is above
//   sum over d of max(q_d * low_d, q_d * high_d)        (a float sum, in order of d)
// The segment's bound is the greatest of these over the query heads of the KV head. A row reads the segments with the
// largest bounds, the younger first among equals, and a segment with a NaN before all others.
//
// Always read, and counted in the budget, are the first segment and all tokens behind the sealed pages
// (kv/page_table.h): those of the page that the row's own token is in, and of pages that the codec keeps in 16 bits.
// The rest of the budget goes to whole segments. Rows of prompts, and all rows in the first two layers, read
// everything. A segment that a native sliding window hides entirely is neither read nor counted.
//
// Bounds are computed from the pages when a row first needs them. So a fork, or a sequence whose pages come from
// elsewhere, has none at first and computes the same ones later. REQUIRES: a table of ranges that loses tokens only to
// a sliding window, so that keys never move.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "retention/budget.h"
#include "sequence/sequence_selector.h"

namespace kvasir {

class QuestSelector final : public SequenceSelector {
 public:
  static constexpr int kSegment = 16;     // tokens
  static constexpr int kWholeLayers = 2;  // the first ones, that read everything

  QuestSelector(const Budget& budget, const KvCacheShape& shape);

  bool begin_pass(const PolicyChunk& chunk, int first, int rows) override;
  bool selects(int layer) const override { return layer >= kWholeLayers; }
  void select(const LaneRow& row, std::span<SlotMask> read) override;
  std::unique_ptr<SequenceSelector> clone() const override;
  std::uint64_t bytes() const override;
  std::uint64_t bytes_for(std::int64_t tokens) const override;
  void reserve(std::int64_t tokens) override;
  std::optional<double> tokens_read() const override;

  // How many segments the row of a text's newest token reads. It depends on the number of tokens alone.
  struct Choice {
    std::int64_t first = 0;    // chooses among segments [first, end)
    std::int64_t end = 0;      //
    std::int64_t count = 0;    // segments read of these
    std::int64_t visible = 0;  // tokens that the row sees
    std::int64_t read = 0;     // tokens that it reads
    bool all() const { return count == end - first; }
  };
  Choice choice_at(std::int64_t tokens) const;

 private:
  static constexpr int kBlock = kScoredSegments;  // segments whose bounds lie together

  std::size_t lane_floats() const {
    return static_cast<std::size_t>(kBlock) * (2 * static_cast<std::size_t>(dim_) + 1);
  }
  // Return a lane's bounds in a block of segments, [dimension][low, high][segment], and the scores that follow them.
  float* bounds(std::int64_t block, int lane) const {
    return blocks_[static_cast<std::size_t>(block)].data() + static_cast<std::size_t>(lane) * lane_floats();
  }
  float* scores(std::int64_t block, int lane) const {
    return bounds(block, lane) + static_cast<std::size_t>(2 * kBlock) * static_cast<std::size_t>(dim_);
  }
  std::int64_t sealed_tokens(std::int64_t tokens) const;
  std::int64_t blocks_for(std::int64_t tokens) const;
  void note_bounds(const LaneRow& row, int lane, const Choice& choice);
  void score(const LaneRow& row, int lane, const Choice& choice);

  Budget budget_;
  KvCacheShape shape_;
  int lanes_ = 0;  // of all layers that choose
  int dim_ = 0;
  TokenIndex next_ = 0;                       // the token of the next row 0
  std::int64_t newest_ = 0;                   // tokens up to the newest generated row; 0: none has run
  std::vector<AlignedBuffer<float>> blocks_;  // [block][lane]
  std::vector<std::int64_t> known_;           // [lane]: leading pages that have bounds; empty: none
};

}  // namespace kvasir
