// What a description of a page table says of each row: a mask for every row and entry, from blocks and defaults.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "kv/describe_table.h"

namespace kvasir::test {

struct BatchRows {
  struct Entry {
    PageEntry page;
    std::size_t frame = 0;
    std::uint32_t number = 0;  // in its frame
  };
  // Entries whose sums are taken together.
  struct Partial {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Entry> entries;                   // of all frames
  std::vector<Partial> partials;                // of all entries, in order
  std::vector<std::vector<SlotMask>> attended;  // [rows][entries]
  std::vector<std::vector<SlotMask>> retained;  // the same, whatever the window
};

inline void expand(const BatchTable& table, BatchRows* out) {
  *out = {};
  std::vector<std::size_t> first;  // entry of each frame
  for (std::size_t f = 0; f < table.frames.size(); ++f) {
    first.push_back(out->entries.size());
    for (const PageEntry& entry : table.frames[f].entries)
      out->entries.push_back({entry, f, static_cast<std::uint32_t>(out->entries.size() - first.back())});
  }
  for (std::size_t e = 0; e < out->entries.size(); ++e) {
    const BatchRows::Entry& entry = out->entries[e];
    const auto group = [](const BatchRows::Entry& of) { return of.page.ordinal / kPartialEntries; };
    if (entry.number == 0 || group(out->entries[e - 1]) != group(entry)) out->partials.push_back({e, e});
    out->partials.back().end = e + 1;
  }
  ASSERT_TRUE(table.retained_masks.empty() || table.retained_masks.size() == table.masks.size());
  std::vector<SlotMask> attended, retained;
  for (const BatchRows::Entry& entry : out->entries) {
    ASSERT_NE(entry.page.live, 0u);
    retained.push_back(entry.page.live);
    attended.push_back(entry.number >= table.frames[entry.frame].visible_from ? entry.page.live : 0);
  }
  const auto rows = static_cast<std::size_t>(table.rows);
  out->attended.assign(rows, attended);
  out->retained.assign(rows, retained);
  std::size_t masks = 0;
  for (std::size_t b = 0; b < table.blocks.size(); ++b) {
    const MaskBlock& block = table.blocks[b];
    ASSERT_LT(block.frame, table.frames.size());
    ASSERT_LT(block.begin, block.end);
    ASSERT_LE(block.end, table.frames[block.frame].entries.size());
    ASSERT_EQ(block.masks, masks) << "masks of nobody";
    if (b > 0) {
      const MaskBlock& before = table.blocks[b - 1];
      ASSERT_TRUE(before.frame < block.frame || (before.frame == block.frame && before.end <= block.begin));
    }
    const std::size_t width = block.end - block.begin;
    masks += rows * width;
    ASSERT_LE(masks, table.masks.size());
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i) {
        const std::size_t mask = block.masks + row * width + i, entry = first[block.frame] + block.begin + i;
        out->attended[row][entry] = table.masks[mask];
        out->retained[row][entry] = table.retained_masks.empty() ? table.masks[mask] : table.retained_masks[mask];
      }
  }
  ASSERT_EQ(masks, table.masks.size());
  for (std::size_t b = 0; b < table.hidden.size(); ++b) {
    const HiddenBlock& block = table.hidden[b];
    ASSERT_LT(block.frame, table.frames.size());
    ASSERT_LT(block.begin, block.end);
    ASSERT_LE(block.end, table.frames[block.frame].entries.size());
    ASSERT_LE(0, block.first_row);
    ASSERT_LT(block.first_row, block.end_row);
    ASSERT_LE(block.end_row, table.rows);
    if (b > 0) {
      const HiddenBlock& before = table.hidden[b - 1];
      ASSERT_TRUE(before.frame < block.frame || (before.frame == block.frame && before.end_row <= block.first_row));
    }
    for (int row = block.first_row; row < block.end_row; ++row)
      for (std::size_t entry = first[block.frame] + block.begin; entry < first[block.frame] + block.end; ++entry)
        out->attended[static_cast<std::size_t>(row)][entry] = out->retained[static_cast<std::size_t>(row)][entry] = 0;
  }
}

// The indices of the tokens in the masks of one row, in order of entries.
inline std::vector<TokenIndex> indices_in(const PageTable& table, const BatchRows& rows,
                                          const std::vector<SlotMask>& masks) {
  std::vector<TokenIndex> indices;
  for (std::size_t e = 0; e < masks.size(); ++e)
    for (int slot = 0; slot < 64; ++slot)
      if ((masks[e] >> slot & 1) != 0) indices.push_back(table.columns().index(rows.entries[e].page.column, slot));
  return indices;
}

}  // namespace kvasir::test
