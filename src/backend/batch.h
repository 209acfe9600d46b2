// One forward pass of several sequences as plain data: token ids, rows, write slots, entries of page tables, positions
// and masks. The caller fills it from page tables; a backend executes it without knowing page tables.
//
// Size: O(rows x frames + rows x entries with masks). Entries are spans into the page tables. Explicit masks exist only
// for entries whose visible slots differ between rows: the newest pages, the ends of hidden ranges and the edges of
// windows. What lies between the ends of a hidden range takes one HiddenBlock, however long it is. Ownership: spans
// point into the page tables of the sequences; the batch is valid until one of them changes. Thread-safety: plain
// values; const use from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/page_format.h"

namespace kvasir {

using Position = std::int64_t;  // rotary position

// The live slots of a page column that belong to one frame.
struct PageEntry {
  SlotMask live = 0;
  std::uint64_t ordinal = 0;  // of the column in its run: decides which entries are summed together
  std::uint32_t column = 0;   // pages are at [column][lane]
};

// A run of tokens whose keys are rotated relative to one origin.
struct BatchFrame {
  std::span<const PageEntry> entries;  // in order of token
  std::uint32_t visible_from = 0;      // entries before it are beyond the window of every row
};

// Entries [begin, end) of one frame have a mask of their own for each row.
struct MaskBlock {
  std::uint32_t frame = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::size_t masks = 0;  // index of the first in BatchTable::masks: [row][end - begin]
};

// Rows [first_row, end_row) see nothing of entries [begin, end) of one frame, whatever their masks say.
struct HiddenBlock {
  std::uint32_t frame = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  int first_row = 0;
  int end_row = 0;
};

struct WriteSlot {
  std::uint32_t column = 0;
  std::int32_t slot = 0;
};

// A column that this pass encodes: all of its slots are written, and some row is far enough behind it to read it
// encoded.
struct SealedColumn {
  std::uint32_t column = 0;
  int first_row = 0;  // earlier rows read the column in 16 bits; it and later rows read the encoded pages
  // [lanes]: its pages in 16 bits; BatchTable::pages has the encoded ones. Null: this pass writes the whole column, so
  // that its 16-bit form is only needed while a layer runs.
  const PageId* open = nullptr;
  SlotMask live = 0;  // slots that take part in scales
};

// One page table of one sequence: what all lanes of a sequence, of a layer, or one lane alone read and write.
struct BatchTable {
  int rows = 0;
  int lanes = 0;
  std::span<const PageId> pages;    // [column][lane]
  PageFormat format;                // of its sealed pages; others have its open form
  std::vector<BatchFrame> frames;   // in order of token
  std::vector<MaskBlock> blocks;    // ascending by frame, then begin; disjoint
  std::vector<HiddenBlock> hidden;  // ascending by frame, then first row; rows of one frame are disjoint
  std::vector<SlotMask> masks;      // what a row attends to
  // As masks, but with tokens beyond the window and those left unread by choice. Empty: the same as masks.
  std::vector<SlotMask> retained_masks;
  std::vector<Position> query_positions;  // [frames][rows]: what a query is rotated by for a frame
  std::vector<Position> key_positions;    // [rows]: what a new key is rotated by
  std::vector<WriteSlot> slots;           // [rows]: where a new token's key and value go
  std::vector<SealedColumn> seals;        // in order of token
  std::int64_t retained_before = 0;       // tokens that row 0 sees beside itself
  // [entries of all frames]: finite numbers to add to the scores of an entry's slots, [lanes][slots]; null: none, as
  // for every offloaded entry. Empty: all null.
  std::span<const float* const> biases;
  // How many entries at the start of the first frame are offloaded: their tokens are not in `pages`, and nothing is
  // written to them. If offloaded_rows is empty, entry e is the page offloaded_pages[e]. Otherwise its live slots, in
  // order, are rows offloaded_rows[offloaded_first[e]], ... of offloaded_pages (PageStore::put_row), counted with
  // `slots` rows a page.
  std::uint32_t offloaded = 0;
  std::span<const PageId> offloaded_pages;
  std::span<const std::uint32_t> offloaded_rows;
  std::span<const std::uint32_t> offloaded_first;

  PageId page(std::uint32_t column, int lane) const {
    return pages[std::size_t{column} * static_cast<std::size_t>(lanes) + static_cast<std::size_t>(lane)];
  }
  Position query_position(std::size_t frame, int row) const {
    return query_positions[frame * static_cast<std::size_t>(rows) + static_cast<std::size_t>(row)];
  }
  std::uint64_t bytes() const {
    return frames.capacity() * sizeof(BatchFrame) + blocks.capacity() * sizeof(MaskBlock) +
           hidden.capacity() * sizeof(HiddenBlock) + (masks.capacity() + retained_masks.capacity()) * sizeof(SlotMask) +
           (query_positions.capacity() + key_positions.capacity()) * sizeof(Position) +
           slots.capacity() * sizeof(WriteSlot) + seals.capacity() * sizeof(SealedColumn);
  }
};

// A loaded adapter (Backend::load_adapter) that a sequence's rows run with.
struct AppliedAdapter {
  int number = 0;   // of the adapter, in the order of loading
  float scale = 1;  // of what it adds; never 0
  bool operator==(const AppliedAdapter&) const = default;
};

class AttentionListener;
class EntrySelector;
class OffloadedPages;

// The tables and lanes of a sequence that hold one layer's keys and values. Those of KV head h are lane first_lane + h
// of table first_table; where each head has a table, lane first_lane of table first_table + h.
struct LayerLanes {
  int first_table = 0;  // among the sequence's tables
  int tables = 1;       // 1, or one a KV head; 0: the layer has a state instead
  int first_lane = 0;
  // The layer's number for the sequence's listener, selector and offloaded pages; -1: none of them gets it.
  int observed_as = -1;
  std::uint64_t state = 0;  // of a layer with a state: its place in BatchSequence::states, in bytes
};

// Consecutive tokens of one sequence: its newest tokens, for which its page tables have room.
struct BatchSequence {
  int first_row = 0;
  int rows = 0;
  std::size_t first_table = 0;
  int tables = 1;
  std::span<const LayerLanes> layers;  // [layers of the model]
  int rotation_shift = 0;              // added to LayerShape::rotation of all layers
  // Adapters that its rows run with, in the order in which their products are added; empty: the model alone.
  std::span<const AppliedAdapter> adapters;
  int logits = 0;                         // how many of the last rows have their logits wanted
  int hidden = 0;                         // how many of the last rows have their hidden states wanted; 0 with logits
  AttentionListener* listener = nullptr;  // optional; observes the attention of this sequence
  EntrySelector* selector = nullptr;      // optional; chooses what its rows read (page_access.h)
  OffloadedPages* offloaded = nullptr;    // optional; pages that its tables do not hold (page_access.h)
  std::byte* states = nullptr;            // of its layers with a state; the pass advances them. 64-byte aligned
};

struct Batch {
  std::vector<std::int32_t> tokens;  // [rows]: token ids
  std::vector<BatchSequence> sequences;
  std::vector<BatchTable> tables;  // of the first sequence, then of the next, ...; may be longer than what is in use

  int rows() const { return static_cast<int>(tokens.size()); }
  std::uint64_t bytes() const {
    std::uint64_t sum = tokens.capacity() * sizeof(std::int32_t) + sequences.capacity() * sizeof(BatchSequence) +
                        tables.capacity() * sizeof(BatchTable);
    for (const BatchTable& table : tables) sum += table.bytes();
    return sum;
  }
};

}  // namespace kvasir
