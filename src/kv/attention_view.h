// What the attention kernels read of a lane group in one forward pass: entries in order, per-row masks, and the rotary
// position of every query in every frame. Built once per pass; the same for all lanes of the group.
// Ownership: points into the group's columns; valid until the group changes. Thread-safety: const use from any thread.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "kv/lane_group.h"

namespace kvasir {

struct AttentionView {
  // A run of at most kPartialEntries entries of one frame. Its bounds depend on the ordinals of the columns alone, so a
  // row's sums are taken in the same order whatever the chunk it came in.
  struct Partial {
    int frame = 0;
    int begin = 0;  // entries [begin, end)
    int end = 0;
  };
  struct RowSlot {
    const LaneGroup::Column* column = nullptr;
    int slot = 0;
  };

  int rows = 0;
  int frames = 0;
  std::int64_t retained_before = 0;               // tokens that row 0 sees beside itself
  std::vector<const LaneGroup::Column*> columns;  // [entries], their tokens in order of id
  std::vector<SlotMask> masks;                    // [rows][entries], what a row attends to
  // [rows][entries], what a row could see but for the model's sliding window; empty: the same as masks.
  std::vector<SlotMask> unwindowed_masks;
  std::vector<Partial> partials;
  std::vector<Position> query_positions;  // [frames][rows]: what a query is rotated by for a frame
  std::vector<Position> key_positions;    // [rows]: what a new key is rotated by
  std::vector<RowSlot> slots;             // [rows]: where a new token's key and value go

  std::size_t entries() const { return columns.size(); }
  Position query_position(int frame, int row) const {
    return query_positions[static_cast<std::size_t>(frame) * static_cast<std::size_t>(rows) +
                           static_cast<std::size_t>(row)];
  }

  // The newest `rows` tokens of the group are the queries; row r sees the retained tokens with ids up to its own, less
  // hidden[r]. REQUIRES: hidden ranges are empty, or begin where a frame begins (tokens before them lie in earlier
  // frames), and end at or before the row's own token; hidden.size() == rows. `window`: a row attends to keys less than
  // this many positions before it (native sliding-window attention); 0: to all. What lies outside stays retained.
  void build(const LaneGroup& group, std::span<const IndexRange> hidden, Position window = 0);

 private:
  void apply_window(const LaneGroup& group, std::span<const LaneGroup::Entry> entries, Position window);
};

}  // namespace kvasir
