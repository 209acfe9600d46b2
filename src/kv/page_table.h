// The page table of the lanes that agree on what they keep: flat arrays of columns, entries with live masks, and frames
// with origins.
//
// A column is one page of each lane. An entry names the live slots of a column that belong to one frame. A column may
// have several entries with disjoint masks (sinks and window in page 0; the two sides of a hole). A frame is a series
// of tokens at consecutive positions whose keys are rotated relative to one origin. Masks and origins belong to the
// table, never to the page: forked tables share pages, which are copied at the first physical write.
//
// Compact positions: the retained tokens occupy 0 ... length-1 in order of index. The key in slot s of a column is
// stored rotated by base + s + its frame's rotation; adding the frame's origin gives its position. Moving a frame to
// other positions changes its origin alone (Realign::kFrames); rotating its keys instead changes its rotation alone
// (Realign::kRotate). Original positions: every key is stored rotated by its index, in one frame with origin 0.
//
// All changes but append go through apply. The layout decides which tokens may leave:
//  - ranges: a few holes that grow. Columns hold consecutive tokens, and nothing is ever compacted.
//  - lists: any tokens. Their slots are masked first, and compacted (moved together in place, and rotated
//    where its position asks for it) when more than a quarter of the written slots is dead or the holes make more
//    entries than two per column. Of lists with one run whose pages are encoded, only columns with many dead slots or
//    holes are packed (page_table_pack.cc): their tokens are encoded again. Tokens may move between runs: run 0 is
//    where tokens enter; each other run is a ring of its own columns, with one frame, whose tokens are older than those
//    of the run before it but for the tokens of run 0 that never leave it (Cascading KV cache, Willette et al., arXiv
//    2406.17808: one run for each sub-cache).
//
// A model whose rows see no further back than a window (Layout::window) needs no pages for older tokens. A table of
// ranges gives these pages back (give_back): the tokens stay retained, keep their positions and count as dropped only
// once a plan drops them, but no entry refers to them.
//
// Sealing: where the pages' format is encoded (Layout::classes), columns are written in its open form, 16 bits. A
// column of run 0 whose newest token is t is sealed by the pass of its first reader, token t + 1 + Layout::recent:
// append replaces its open pages by encoded ones, and keeps the open pages until the pass ends (end_pass). Rows before
// the first reader read the open pages (describe_table). Columns of other runs are sealed when the next one of their
// run begins. A sealed column is full, and is only ever written again as a whole.
//
// Cost: append and apply touch what they change, find tokens in a few steps at any length (find_entry), and move
// O(frames) integers. Exceptions: lists with compact positions and one run lay their entries out anew when tokens leave
// (O(entries)), compaction moves slots, and entries in front of an erased one close up (a memmove, at most once per
// column).
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "kv/table_memory.h"
#include "kv/table_tokens.h"

namespace kvasir {

class PageTable {
 public:
  using Layout = PageTableLayout;
  using Frame = TableTokens::Frame;
  using Column = TableColumns::Column;

  // The pool and its budget outlive the table. Nothing is charged before the first token.
  PageTable(int lanes, PagePool* pool, const Layout& layout)
      : tokens_(lanes, pool, layout), seals_(pool), charge_(&pool->budget()) {}

  // The table's tokens, their columns, and the pages of the columns.
  const TableTokens& tokens() const { return tokens_; }
  const TableColumns& columns() const { return tokens_.columns; }
  const ColumnPages& pages() const { return tokens_.columns.pages(); }
  const Layout& layout() const { return tokens_.layout(); }
  TokenIndex next_index() const { return tokens_.next_index; }  // tokens seen so far
  std::int64_t length() const { return tokens_.length; }        // tokens retained
  std::span<const Frame> frames() const { return tokens_.frames; }
  std::span<const PageEntry> entries_of(const Frame& frame) const { return tokens_.entries_of(frame); }
  // Of the current pass.
  const PassSeals& seals() const { return seals_; }
  // The bytes that the table and its changes take. Any change of the table makes the view stale.
  TableMemory memory() const { return {tokens_, seals_.kept_columns(), bytes()}; }
  std::uint64_t bytes() const { return charge_.bytes(); }  // charged for the arrays: TableMemory::bytes_at

  // Makes room for `tokens` tokens behind the newest. Succeeds whole or leaves no trace. Errors: kResourceExhausted.
  Status append(int tokens) { return append(tokens, tokens); }
  // As above, for a part of a chunk of `of_chunk` tokens, all of which may move between runs once it has run.
  Status append(int tokens, int of_chunk);
  // Returns how many tokens, at most `tokens`, may be appended together with the next one so that they can be taken
  // back. Where pages are encoded they share its column, and no column is sealed for them.
  int room_to_take_back(int tokens) const;
  // Returns whether the next token goes into a column that holds tokens already.
  bool shares_column() const { return tokens_.layout().runs() == 1 && tokens_.room(0) > 0; }
  // Returns whether take_back may give back whole columns: pages are not encoded, so that none was sealed meanwhile.
  bool may_take_back_columns() const { return layout().runs() == 1 && !layout().encoded(); }
  // Takes back the newest tokens, as if they had not been appended, except that the arrays do not shrink. REQUIRES: no
  // more than room_to_take_back() said before they were, and the one before them too if shares_column() was true then,
  // or may_take_back_columns(); nothing else has changed since.
  void take_back(int tokens);
  // Ends a pass: gives back the open pages of the columns that it sealed. Called before any other change.
  void end_pass();
  // Fills an empty table with the first pages.size() / lanes * slots tokens of a text, whose keys and values these
  // pages ([column][lane]) already hold, as if the tokens had been appended. Succeeds whole or leaves no trace.
  // REQUIRES: nothing was appended yet; one run. Errors: kResourceExhausted.
  Status adopt(std::span<const PageId> pages);

  // Executes a plan. Columns without live slots return their pages at once. With lists, compaction follows when it is
  // due. Errors: ranges, leaving no trace: kUnsupported if there would be more frames or entries than the table has
  // room for. REQUIRES: with lists, TableMemory::sharing_reserve() bytes are available; with kRotate, the pages behind
  // the hole are the table's own (unshare); ranges: one hole; several runs: the result has at most kMaxFrames frames
  // (checked; each ring has one, run 0 one for the sinks and one for its window).
  Status apply(const KeepPlan& plan);

  // Gives back the pages of columns behind the sinks whose tokens all lie outside the window of every later token. The
  // results of later rows do not change. Does nothing without a window, or with lists.
  void give_back();
  // Gives back the pages of all columns before the token `end`, of which the caller has a copy. The tokens stay
  // retained, but no entry refers to them. REQUIRES: ranges without a window; nothing was dropped; `end` is a multiple
  // of the slots and at most next_index().
  void give_back_to(TokenIndex end);

  // Moves tokens together into one frame, or, where pages are encoded, into at most kPackedFrames. REQUIRES: lists, a
  // single run, TableMemory::sharing_reserve() bytes are available.
  void compact();
  static constexpr int kPackedFrames = 8;
  // Changes from original to compact positions, for good. REQUIRES: as compact.
  void make_positions_compact();

  // Gives the table its own copy of every column with live tokens in `range`. Errors: kResourceExhausted.
  Status unshare(IndexRange range);
  // Returns a table with the same content that shares all pages. Errors: kResourceExhausted (its arrays are charged).
  Result<PageTable> fork() const;
  // Counts the references to pages as a cache's from now on (PagePool::mark_cached). Called once.
  void mark_cached() { tokens_.columns.pages().mark_cached(); }

  // Writes the layout: columns, entries, frames, indices; not the pages, only the number of columns. Columns are
  // written in the order of TableColumns::in_order, oldest first.
  void save(ByteWriter& out) const;
  // Rebuilds a saved layout in an empty table with the same Layout, with zeroed pages of its own. Errors:
  // kResourceExhausted; kDataLoss for bytes that save never writes. After an error the table is empty.
  Status restore(ByteReader& in);

  // KVASIR_CHECKs that the tokens are sound, that bytes() is what the arrays have allocated, and that all lanes of a
  // column have equally many references. Adds each page's appearances to `references`.
  void check_invariants(PageCounts& references) const;

 private:
  void reserve_columns(std::int64_t columns);
  void apply_list(std::span<const IndexRange> drop);  // page_table_lists.cc
  void apply_runs(const KeepPlan& plan);              // page_table_runs.cc
  // page_table_pack.cc: compacts a list of one run, to original positions or compact ones.
  void pack(bool original, int most_frames);

  TableTokens tokens_;
  PassSeals seals_;
  MemoryCharge charge_;
};

}  // namespace kvasir
