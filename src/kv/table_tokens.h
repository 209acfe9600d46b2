// Where the retained tokens of a page table lie: runs of entries, which refer to slots of columns, and frames, which
// give entries their positions (page_table.h says what they are).
//
// Only the table changes these members; is_sound() checks what holds between changes. Thread-safety: none; const
// members may be called from many threads while nothing is changed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/keep_plan.h"
#include "kv/table_columns.h"

namespace kvasir {

struct TableTokens {
  using Column = TableColumns::Column;
  static constexpr std::uint32_t kNone = TableColumns::kNone;

  struct Frame {
    Position origin = 0;
    Position rotation = 0;
    std::int64_t tokens = 0;  // tokens whose pages were given back included
    int run = 0;
    std::uint32_t begin = 0;  // entries [begin, end) of the run
    std::uint32_t end = 0;
  };
  struct Run {
    std::vector<PageEntry> entries;  // entries outside all frames are dead
    std::int64_t capacity = 0;       // tokens; for runs 1, 2, ...
    std::uint64_t next_ordinal = 0;
    int columns = 0;
    std::uint32_t tail = kNone;  // newest column
  };

  TableColumns columns;
  std::vector<Run> runs;
  std::vector<Frame> frames;            // in order of token; the last is where tokens enter
  std::vector<TokenIndex> entry_first;  // original positions: the first index of each entry's column, densely
  TokenIndex next_index = 0;            // tokens seen so far
  std::int64_t length = 0;              // tokens retained
  IndexRange given_back;                // retained tokens in this range have no pages; whole columns
  std::int64_t written = 0;             // slots, of columns in runs
  bool original;                        // positions are original, not compact

  TableTokens(int lanes, PagePool* pool, const PageTableLayout& layout);

  const PageTableLayout& layout() const { return columns.layout(); }
  std::int64_t stored() const { return length - retained_in(given_back); }  // retained tokens that have pages
  std::int64_t dead_slots() const { return written - stored(); }
  // If all tokens of the text are retained and have pages: the number of leading columns that are full and, where pages
  // are encoded, sealed. Otherwise 0. Column i holds tokens [i * slots, (i + 1) * slots).
  std::int64_t whole_columns() const;
  // The pages of one of these columns. REQUIRES: column < whole_columns().
  std::span<const PageId> pages_of_whole(std::int64_t column) const {
    return columns.pages().of(entries_of(frames.front())[static_cast<std::size_t>(column)].column);
  }

  std::span<const PageEntry> entries_of(const Frame& frame) const {
    return std::span(runs[static_cast<std::size_t>(frame.run)].entries).subspan(frame.begin, frame.end - frame.begin);
  }
  // Index of the first token of a frame. REQUIRES: the frame holds tokens.
  TokenIndex first_token(std::size_t frame) const;
  // The range that the retained tokens of a frame lie in; in a table of ranges, they fill it. `before`: tokens of
  // earlier frames.
  IndexRange tokens_of(const Frame& frame, std::int64_t before) const;
  std::int64_t retained_in(IndexRange range) const;
  // The first entry of `frame` whose last token is at or behind `token`; frame.end if there is none.
  std::uint32_t find_entry(const Frame& frame, TokenIndex token) const;
  // The number of entries in [from, frame.end) whose column begins at or before `token`. REQUIRES: columns ascend.
  std::size_t columns_up_to(const Frame& frame, TokenIndex token, std::uint32_t from) const;
  // The rotation with which the key in a slot is stored. REQUIRES: the slot belongs to `frame`.
  Position stored_rotation(std::uint32_t column, int slot, const Frame& frame) const {
    return original ? columns.index(column, slot) : columns[column].base + slot + frame.rotation;
  }
  // Slots that are free in the newest column of a run.
  int room(std::size_t run) const {
    return runs[run].tail != kNone ? columns.slots() - columns[runs[run].tail].used : 0;
  }
  // The column of the newest entry of a run, or kNone.
  std::uint32_t newest_column(std::size_t run) const;
  // Calls visit(column) for each open column of run 0, newest first.
  template <class Visit>
  void for_each_open(Visit&& visit) const;

  // Puts a column at the end of a run.
  void start_column(std::uint32_t column, int run, TokenIndex first, Position base);
  // Adds the next `count` tokens to the newest column of run 0 and to `frame`, the last frame. REQUIRES: it has room.
  void extend(Frame& frame, int count);
  // Takes the newest `count` tokens back, as if extend had not added them, with the columns that they began. REQUIRES:
  // they are in `frame`, the last frame; pages are not encoded, or the tokens began no column.
  void retract(Frame& frame, int count);
  // Makes room for one more entry in the array of a run: when it is full, closes the gaps between frames.
  void make_entry_room(int run);
  // Adds an entry at the end of a frame. REQUIRES: the frame is the newest of its run.
  void push_entry(Frame& frame, const PageEntry& entry);
  // Counts one entry of the column less. Releases a column without live slots, unless it is the open column of a table
  // of ranges, which takes the next tokens.
  void unlink_entry(int run, std::uint32_t column);
  // Masks the tokens of `range` out of a frame whose tokens lie in `held` (tokens_of). If tokens on both sides remain,
  // the frame ends before the hole and a new one begins behind it, with the same origin and rotation. The frame may
  // become empty. Returns the number of dropped tokens, those without pages included.
  std::int64_t drop_from_frame(std::size_t number, IndexRange range, IndexRange held);
  // Makes a column, or none, the newest of a run. Frees the dead slots at the column's end, so that a ring whose newest
  // token is replaced has no hole.
  void set_tail(std::size_t run, std::uint32_t column);
  // Lays the live slots of these columns out anew, in frames of consecutive positions. Returns false if there would be
  // too many frames or entries. REQUIRES: one run, all of whose columns are given; compact positions.
  bool lay_out(std::span<const std::uint32_t> in_order);
  // As lay_out, with one frame and one entry for each column.
  void lay_out_whole(std::span<const std::uint32_t> in_order, Position origin);

  // Holds the same tokens as `other`, in the same pages. REQUIRES: no tokens are held; room in the arrays.
  void share(const TableTokens& other);

  // Bytes of the arrays of tables with room for `capacity` columns.
  static std::uint64_t bytes_at(int lanes, int slots, const PageTableLayout& layout, std::int64_t capacity);
  void reserve(std::int64_t capacity);
  std::uint64_t allocated_bytes() const;  // computed from the arrays

  // Whether the arrays agree with each other, as append and apply assume.
  bool is_sound() const;
};

template <class Visit>
void TableTokens::for_each_open(Visit&& visit) const {
  const std::uint32_t tail = runs.front().tail;
  if (tail != kNone && !columns[tail].sealed) visit(tail);
  std::uint32_t last = tail;
  for (std::size_t f = frames.size(); f > 0; --f) {
    if (frames[f - 1].run != 0) continue;
    const std::span<const PageEntry> entries = entries_of(frames[f - 1]);
    for (std::size_t e = entries.size(); e > 0; --e) {
      const std::uint32_t column = entries[e - 1].column;
      if (column == last) continue;
      if (columns[column].sealed) return;
      visit(column);
      last = column;
    }
  }
}

}  // namespace kvasir
