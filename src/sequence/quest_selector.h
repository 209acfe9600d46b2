// Quest: a generated token reads, in each KV head, the chunks of 16 tokens whose keys may fit its queries best (Tang et
// al., arXiv 2406.10774).
//
// A chunk is the tokens [16 c, 16 c + 16) of the text, whatever the page. Of its keys it has the least and the greatest
// element of each dimension, low and high: of the keys as attention reads them (decoded, after RoPE, before the pages'
// Hadamard matrix). No product of the chunk's keys with a query q is above
//   sum over d of max(q_d * low_d, q_d * high_d)        (a float sum, in order of d)
// and its bound is the greatest of these over the query heads of the KV head. A row reads the chunks with the largest
// bounds, the younger first among equals, a chunk with a NaN before all others. Always read, and counted in the budget:
// the first chunk, and all tokens behind the sealed pages (kv/page_table.h): of the page that the row's own token is
// in, and of those that the codec keeps in 16 bits. Of the budget's rest whole chunks are read. Rows of prompts, and
// all rows in the first two layers, read everything. Where a native sliding window hides a chunk as a whole, it is
// neither read nor counted.
//
// Bounds are computed from the pages when a row first needs them, so a fork, or a sequence whose pages come from
// elsewhere, has none at first, and the same ones later. REQUIRES: a table of ranges that loses no token but to a
// sliding window, so that keys never move.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "retention/budget.h"
#include "sequence/sequence_selector.h"

namespace kvasir {

class QuestSelector final : public SequenceSelector {
 public:
  static constexpr int kChunk = 16;       // tokens
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

  // What the row of a text's newest token chooses, which depends on the number of tokens alone.
  struct Choice {
    std::int64_t first = 0;    // of chunks [first, end), ...
    std::int64_t end = 0;      //
    std::int64_t count = 0;    // ... so many are read
    std::int64_t visible = 0;  // tokens that the row sees
    std::int64_t read = 0;     // tokens that it reads
    bool all() const { return count == end - first; }
  };
  Choice choice_at(std::int64_t tokens) const;

 private:
  static constexpr int kBlock = kScoredChunks;  // chunks whose bounds lie together

  std::size_t lane_floats() const {
    return static_cast<std::size_t>(kBlock) * (2 * static_cast<std::size_t>(dim_) + 1);
  }
  // Of a lane in a block of chunks: low and high of each dimension, [dimension][low, high][chunk], then a score each.
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
  std::int64_t newest_ = 0;                   // tokens up to the newest row that was to choose; 0: none was
  std::vector<AlignedBuffer<float>> blocks_;  // [block][lane]
  std::vector<std::int64_t> known_;           // per lane: pages in front that have bounds; empty: none in any
};

}  // namespace kvasir
