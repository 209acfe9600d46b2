// The page table of the lanes that agree on what they keep: flat arrays of columns, entries with live masks, and frames
// with origins.
//
// A column is one page of each lane. An entry is the slots of a column that are live and belong to one frame; a column
// may have several, with disjoint masks (sinks and window in page 0, either side of a hole). A frame is a series of
// tokens at consecutive positions whose keys are rotated relative to one origin. Masks and origins belong to the table,
// never to the page: pages are shared between tables that were forked, and copied at the first physical write.
//
// Compact positions: the retained tokens occupy 0 ... length-1 in order of index. The key in slot s of a column is
// stored rotated by base + s + rotation of its frame, and its position is that + origin of its frame. Moving a frame to
// other positions changes its origin alone (Realign::kFrames); rotating its keys instead changes its rotation alone
// (Realign::kRotate). Original positions: every key is stored rotated by its index, in one frame with origin 0.
//
// All changes but append go through apply. What may leave depends on the layout:
//  - ranges: a few holes that grow. Columns hold consecutive tokens, and nothing is ever compacted.
//  - lists: any tokens. What they leave behind is masked first, and compacted (moved together in place, and rotated
//  where
//    its position asks for it) when more than a quarter of the written slots is dead or the holes make more entries
//    than two per column. Of lists with one run whose pages are encoded, only columns with many dead slots or holes are
//    packed (page_table_pack.cc): their tokens are encoded again. Tokens may move between runs: run 0 is where tokens
//    enter; each other run is a ring of its own columns, with one frame, whose tokens are older than those of the run
//    before it but for the tokens of run 0 that never leave it (Cascading KV cache, Willette et al., arXiv 2406.17808:
//    one run for each sub-cache).
//
// A model whose rows see no further back than a window (Layout::window) needs no pages of what lies behind it. A table
// of ranges gives them back (give_back): the tokens stay retained, keep their positions and count as dropped only once
// a plan drops them, but no entry refers to them.
//
// Sealing: where the pages' format is encoded (Layout::classes), columns are written in its open form, 16 bits. A
// column of run 0 is sealed by the pass of the token that lies Layout::recent behind the token that follows its newest
// one: the pass has its encoded pages in place of the open ones (append), and the open ones are kept until it ends
// (end_pass). Rows before that token read the open form (describe_table). Columns of other runs are sealed when the
// next one of their run begins. A sealed column is full and never written again, but as a whole.
//
// Cost: append and apply touch what they change, find tokens in a few steps whatever the length (find_entry), and move
// O(frames) integers. Exceptions:
// lists with compact positions and one run lay their entries out anew when tokens leave (O(entries)), compaction moves
// slots, and entries in front of an erased one close up (a memmove, at most once per column).
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "base/bytes.h"
#include "kv/keep_plan.h"
#include "kv/page_refs.h"

namespace kvasir {

class PageTable {
 public:
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxColumnEntries = 4;
  // The same of lists with one run whose pages are encoded: a hole costs less there than to encode tokens again.
  static constexpr int kMaxEncodedFrames = 64;
  static constexpr int kMaxEncodedColumnEntries = 8;

  struct Layout {
    bool lists = false;                        // any tokens may leave; otherwise ranges
    bool original_positions = false;           // REQUIRES: lists, and no other run
    std::vector<std::int64_t> run_capacities;  // tokens that runs 1, 2, ... hold. REQUIRES: lists if not empty
    // Ranges: rows attend to keys less than this many positions before them, in every layer; 0: to all.
    Position window = 0;
    // Ranges: first tokens of the text that come nearer to later tokens as what lies behind them is dropped. Their
    // pages are never given back.
    TokenIndex sinks = 0;
    // Of its pages. Different: see Sealing above.
    PageClasses classes;
    int recent = 0;

    bool encoded() const { return classes.sealed != classes.open; }
    // Lists whose compaction leaves most columns as they are.
    bool packs() const { return encoded() && lists && run_capacities.empty(); }
    int most_frames() const { return packs() ? kMaxEncodedFrames : kMaxFrames; }
  };

  struct Frame {
    Position origin = 0;
    Position rotation = 0;
    std::int64_t tokens = 0;  // those whose pages were given back included
    int run = 0;
    std::uint32_t begin = 0;  // entries [begin, end) of the run
    std::uint32_t end = 0;
  };
  struct Column {
    SlotMask live = 0;          // slots that hold retained tokens
    std::uint64_t ordinal = 0;  // of this column in its run, from 0
    TokenIndex first = 0;       // index of the token in slot 0
    Position base = 0;          // compact positions: slot s is stored rotated by base + s + its frame's rotation
    std::int32_t used = 0;      // slots written
    std::int16_t entries = 0;   // that refer to it
    bool sealed = false;        // its pages are encoded
  };
  // A column that was sealed by the append before the pass at hand.
  struct Seal {
    std::uint32_t column = 0;
    TokenIndex first_reader = 0;  // the first token that reads the encoded pages
    int open = -1;                // place of the open pages in open_pages(); -1: the column was not there before
  };

  // The pool and its budget outlive the table. Nothing is charged before the first token.
  PageTable(int lanes, PagePool* pool, const Layout& layout);
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&& other) noexcept;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable();

  int lanes() const { return lanes_; }
  const MemoryBudget& budget() const { return pool_->budget(); }
  TokenIndex next_index() const { return next_index_; }                       // tokens seen so far
  std::int64_t length() const { return length_; }                             // tokens retained
  std::int64_t stored() const { return length_ - retained_in(given_back_); }  // of these, those that have pages
  // Retained tokens in this range have no pages; whole columns.
  IndexRange given_back() const { return given_back_; }
  // The least number of tokens to which a text that lost none of its tokens could be cut so that all that the next
  // token attends to has pages; 0 while nothing was given back.
  TokenIndex truncatable_from() const {
    if (given_back_.empty()) return 0;
    return layout_.window > 0 ? given_back_.end - 1 + layout_.window : next_index_;
  }
  PageOwner owner() const { return pages_.owner(); }  // of its references to pages
  // Pages that nobody else refers to. O(1).
  std::uint64_t own_pages() const {
    return static_cast<std::uint64_t>(columns_) * static_cast<std::uint64_t>(lanes_) - pages_.shared();
  }
  // Bytes charged for its pages, and for those of them that nobody else refers to. O(open columns).
  std::uint64_t page_bytes() const;
  std::uint64_t own_page_bytes() const;
  // Columns whose pages are not encoded. O(their number).
  int open_columns() const;
  // Seals of the pass at hand, in order of token, and the open pages that they replaced: [Seal::open][lane].
  std::span<const Seal> seals() const { return seals_; }
  std::span<const PageId> open_pages() const { return open_pages_.ids(); }
  // Columns whose open pages are kept until the pass ends.
  int kept_columns() const {
    return static_cast<int>(std::ranges::count_if(seals_, [](const Seal& seal) { return seal.open >= 0; }));
  }
  const PageFormat& format() const { return pool_->format(layout_.classes.sealed); }
  // Ends a pass: gives back the open pages of the columns that it sealed. To be called before anything else changes the
  // table.
  void end_pass();
  // From now on its references to pages count as a cache's: PagePool::mark_cached, once.
  void mark_cached() { pages_.mark_cached(); }
  int columns() const { return columns_; }  // that hold pages, spare ones included
  std::int64_t dead_slots() const { return written_ - stored(); }
  bool lists() const { return lists_; }
  bool original_positions() const { return original_; }
  int runs() const { return static_cast<int>(runs_.size()); }

  std::span<const Frame> frames() const { return frames_; }
  const Frame& newest_frame() const { return frames_.back(); }
  // Index of the first token of a frame. REQUIRES: the frame holds tokens.
  TokenIndex first_token(std::size_t frame) const;
  std::span<const PageEntry> entries_of(const Frame& frame) const {
    return std::span(runs_[static_cast<std::size_t>(frame.run)].entries).subspan(frame.begin, frame.end - frame.begin);
  }
  const Column& column(std::uint32_t column) const { return column_[column]; }
  std::span<const PageId> pages() const { return pages_.ids(); }  // [column][lane]
  std::span<const PageId> pages_of(std::uint32_t column) const {
    return pages_.ids().subspan(first_page(column), static_cast<std::size_t>(lanes_));
  }
  TokenIndex index(std::uint32_t column, int slot) const {
    return column_[column].first + (lists_ ? static_cast<TokenIndex>(offset(column)[slot]) : slot);
  }
  // The slots of a column whose tokens have indices in [begin, end); indices ascend with slots.
  SlotMask slots_of(std::uint32_t column, TokenIndex begin, TokenIndex end) const;
  // What the key in a slot is stored rotated by. REQUIRES: the slot belongs to `frame`.
  Position stored_rotation(std::uint32_t column, int slot, const Frame& frame) const {
    return original_ ? index(column, slot) : column_[column].base + slot + frame.rotation;
  }

  // Bytes charged for the arrays of a table that has held at most `columns` columns at once.
  static std::uint64_t bytes_at(int lanes, int slots, const Layout& layout, std::int64_t columns);
  std::uint64_t bytes() const { return bytes_; }

  // What append would take. Const: a plan changes nothing.
  struct AppendPlan {
    int columns = 0;                 // new ones
    int spares = 0;                  // of these, kept ready for tokens that move between runs
    int open_spares = 0;             // of these, with open pages
    int seals = 0;                   // columns there are already that are sealed
    int sealed = 0;                  // new columns that are sealed at once
    std::uint64_t pages = 0;         // to allocate, copies of a shared open column included
    std::uint64_t sealed_pages = 0;  // of these, encoded
    std::uint64_t bytes = 0;         // pages and arrays together
  };
  AppendPlan plan_append(int tokens) const;

  // Fills an empty table with the first pages.size() / lanes() * slots tokens of a text, whose keys and values are in
  // these pages ([column][lane]) already: the table is then as if they had been appended. Succeeds whole or leaves no
  // trace. REQUIRES: nothing was appended yet; one run. Errors: kResourceExhausted.
  Status adopt(std::span<const PageId> pages);
  // The whole columns that hold the first tokens of the text, if all of its tokens are retained and have pages, and 0
  // otherwise. Column i holds tokens [i * slots, (i + 1) * slots).
  std::int64_t whole_columns() const;
  // The pages of such a column.
  std::span<const PageId> pages_of_whole(std::int64_t column) const {
    return pages_of(entries_of(frames_.front())[static_cast<std::size_t>(column)].column);
  }

  // Makes room for `tokens` tokens behind the newest. Succeeds whole or leaves no trace. Errors: kResourceExhausted.
  Status append(int tokens);

  std::int64_t retained_in(IndexRange range) const;

  // Executes a plan. Columns without live slots return their pages at once. With lists, compaction follows when it is
  // due. Errors: ranges, leaving no trace: kUnsupported when the holes would split the table into more frames or
  // entries than it has room for. REQUIRES: with lists, sharing_reserve() bytes are available; with kRotate, the pages
  // behind the hole are the table's own (unshare); ranges: one hole; several runs: no more than kMaxFrames frames come
  // of it (checked; rings have one each, and run 0 one for the sinks and one for its window).
  Status apply(const KeepPlan& plan);

  // Returns the pages of columns behind the sinks whose tokens are all beyond the window of every token to come.
  // Positions and bits of later rows stay as they are. Nothing without a window, or with lists.
  void give_back();
  // Returns the pages of all columns before the token `end`, which whoever calls has elsewhere. The tokens stay
  // retained, but no entry refers to them. REQUIRES: ranges without a window; nothing was dropped; `end` is a multiple
  // of the slots, and not beyond the newest token.
  void give_back_to(TokenIndex end);

  // Moves tokens together: into one frame; where pages are encoded, into at most kPackedFrames. REQUIRES: lists, a
  // single run, sharing_reserve() bytes are available.
  void compact();
  static constexpr int kPackedFrames = 8;
  // From original to compact positions, for good. REQUIRES: as compact.
  void make_positions_compact();
  // Bytes for copies of all shared pages of a table of lists: the most that its apply or compact may take. 0 for
  // ranges.
  // `append_first`: an append comes before, which copies a shared open page itself. O(1).
  std::uint64_t sharing_reserve(bool append_first = false) const;

  // Gives the table its own copy of every column with live tokens in `range`. Errors: kResourceExhausted.
  Status unshare(IndexRange range);
  // Bytes that unshare takes.
  std::uint64_t unshare_bytes(IndexRange range) const;

  // A table with the same content that shares all pages. Errors: kResourceExhausted (its arrays are charged).
  Result<PageTable> fork() const;

  // Writes the layout: columns, entries, frames, indices; of pages, how many there are. Columns are written oldest
  // first, run by run, in the order of for_each_column.
  void save(ByteWriter& out) const;
  // Rebuilds a saved layout in an empty table of the same options, with zeroed pages of its own. Errors:
  // kResourceExhausted; kDataLoss for bytes that no table writes. The table is then empty.
  Status restore(ByteReader& in);
  // Calls visit(pages [lanes]) for each column that holds tokens.
  template <class Visit>
  void for_each_column(Visit&& visit) const {
    for (const std::uint32_t column : columns_in_order()) visit(pages_of(column));
  }

  std::uint64_t slots_moved() const { return slots_moved_; }    // by compaction and between runs, per lane, so far
  std::uint64_t pages_copied() const { return pages_copied_; }  // because they were shared and written, so far
  // How often tokens were encoded: when their page was sealed, and each time that it was packed, handed on or rotated.
  struct Encodings {
    std::uint64_t tokens = 0;  // retained ones that were
    std::uint64_t sum = 0;     // of their numbers
    int most = 0;              // at most 255
    double mean() const { return tokens > 0 ? static_cast<double>(sum) / static_cast<double>(tokens) : 0; }
    std::uint64_t again =
        0;  // tokens of one lane that were encoded when they had been before, so far, also dropped ones
  };
  Encodings encodings() const;
  // Of the token in a slot. REQUIRES: the format is encoded.
  int encodings_of(std::uint32_t column, int slot) const { return encodings(column)[slot]; }

  // Bytes that the table and its arrays have allocated, read off the arrays. Equals bytes() once there was a token.
  std::uint64_t allocated_bytes() const;

  // Whether the arrays agree with each other: what apply and append may rely on.
  bool is_sound() const;
  // KVASIR_CHECKs is_sound(), that bytes() is what the arrays have allocated, and that the lanes of a column are shared
  // by equally many; adds each page's appearances to `references`.
  void check_invariants(PageCounts& references) const;

 private:
  void give_back_range(IndexRange range);
  struct Run {
    std::vector<PageEntry> entries;  // those outside all frames are dead
    std::int64_t capacity = 0;       // tokens, of runs 1, 2, ...
    std::uint64_t next_ordinal = 0;
    int columns = 0;
  };
  struct Place {
    std::uint32_t column = 0;
    int slot = 0;
  };

  std::uint32_t* offset(std::uint32_t column) { return offsets_.data() + std::size_t{column} * slots_; }
  const std::uint32_t* offset(std::uint32_t column) const { return offsets_.data() + std::size_t{column} * slots_; }
  std::size_t first_page(std::uint32_t column) const { return std::size_t{column} * static_cast<std::size_t>(lanes_); }
  TokenIndex first_live(const PageEntry& entry) const { return index(entry.column, std::countr_zero(entry.live)); }
  TokenIndex last_live(const PageEntry& entry) const {
    return index(entry.column, static_cast<int>(std::bit_width(entry.live)) - 1);
  }
  // The first entry of `frame` whose last token is at or behind `token`; frame.end if there is none.
  std::uint32_t find_entry(const Frame& frame, TokenIndex token) const;
  // Of the entries [from, frame.end), the number of those whose column begins at or before `token`. REQUIRES: columns
  // ascend.
  std::size_t columns_up_to(const Frame& frame, TokenIndex token, std::uint32_t from) const;
  std::uint8_t* encodings(std::uint32_t column) { return encodings_.data() + std::size_t{column} * slots_; }
  const std::uint8_t* encodings(std::uint32_t column) const { return encodings_.data() + std::size_t{column} * slots_; }
  // The slots of a column were encoded.
  void count_encodings(std::uint32_t column, SlotMask slots);
  int most_frames() const { return layout_.most_frames(); }
  int most_column_entries() const { return layout_.packs() ? kMaxEncodedColumnEntries : kMaxColumnEntries; }
  bool is_shared(std::uint32_t column) const;
  std::vector<std::uint32_t> columns_in_order() const;
  bool restore_arrays(ByteReader& in);
  bool columns_are_sound() const;
  bool frames_are_sound() const;
  std::vector<std::uint32_t> shared_columns(IndexRange range) const;

  void reserve_columns(std::int64_t columns);
  std::uint32_t take_column(PageRefs& pages, std::size_t first);
  void release_column(std::uint32_t column);
  void start_column(std::uint32_t column, int run, TokenIndex first, Position base);
  void make_entry_room(int run);
  void push_entry(Frame& frame, const PageEntry& entry);
  void unlink_entry(int run, std::uint32_t column);
  void copy_pages(std::uint32_t column, PageRefs& fresh, std::size_t first);
  void own_column(std::uint32_t column);
  struct Spares {
    int all = 0;
    int open = 0;
  };
  Spares spares_needed(int tokens) const;
  PageClass class_of(std::uint32_t column) const {
    return column_[column].sealed ? layout_.classes.sealed : layout_.classes.open;
  }
  int open_capacity() const { return open_capacity(layout_, static_cast<int>(slots_)); }
  static int open_capacity(const Layout& layout, int slots) { return layout.encoded() ? layout.recent / slots + 2 : 0; }
  // The token from which on a column of run 0 whose newest token will be `newest` is read encoded.
  TokenIndex first_reader(TokenIndex newest) const { return newest + 1 + layout_.recent; }
  // Calls visit(column) for each open column of run 0, newest first.
  template <class Visit>
  void for_each_open(Visit&& visit) const;
  std::uint64_t bytes_of_columns(std::uint64_t columns, std::uint64_t open) const;
  void add_seal(std::uint32_t column, TokenIndex first_reader, PageRefs& sealed, std::size_t first);
  std::int64_t drop_from_frame(std::size_t number, IndexRange range, IndexRange held);
  // The retained tokens of a frame lie in this range; with ranges, they are all of it. `before`: tokens of the frames
  // before.
  IndexRange tokens_of(const Frame& frame, std::int64_t before) const;

  // Ranges.
  Status check_hole(IndexRange range) const;
  void drop_range(IndexRange range, Realign realign);
  void rotate_behind(IndexRange hole);

  // Lists: see page_table_lists.cc.
  void apply_single(std::span<const IndexRange> drop);
  void apply_runs(const KeepPlan& plan);
  void mask_original(std::span<const IndexRange> drop);
  void mask_columns(std::span<const IndexRange> drop);
  void receive_moves(int run, std::span<const KeepPlan::Move> moves);
  Place locate(TokenIndex index, int runs) const;
  void move_slots(std::span<const SlotMove> moves);
  std::uint32_t take_spare(bool sealed);
  std::uint32_t next_ring_column(int run);
  void trim_tail(int run);
  bool rebuild_frames();
  void order_frames_of_runs();
  bool compaction_due() const;
  void gather_columns();
  void pack(bool original, int most_frames);
  void compact_columns(bool original);
  // Encoded lists: see page_table_pack.cc.
  class Packer;
  void pack_columns(bool original, int most_frames);

  static constexpr std::uint32_t kNone = 0xffffffff;

  int lanes_;
  std::size_t slots_;
  PagePool* pool_;
  bool lists_;
  bool original_;
  Layout layout_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> tail_;      // [runs]: newest column, or kNone
  std::vector<Frame> frames_;            // in order of token; the last is where tokens enter
  std::vector<Column> column_;           // by handle; those in free_ hold nothing
  PageRefs pages_;                       // [column][lane]
  std::vector<std::uint32_t> offsets_;   // lists: [column][slot], indices relative to the column's first
  std::vector<std::uint8_t> encodings_;  // pages are encoded: [column][slot], how often a token was, up to 255
  std::vector<std::uint32_t> free_;      // handles without pages
  std::vector<TokenIndex> entry_first_;  // original positions: the first index of each entry's column, densely
  std::vector<std::uint32_t> spare_;     // columns without tokens, for moves
  std::vector<Seal> seals_;              // of the pass at hand
  PageRefs open_pages_;                  // [seal][lane]
  int columns_ = 0;
  std::int64_t peak_columns_ = 0;  // most columns there ever were: decides the size of the arrays
  std::uint64_t bytes_ = 0;        // bytes_at(peak_columns_)
  TokenIndex next_index_ = 0;
  std::int64_t length_ = 0;
  IndexRange given_back_;     // multiples of slots
  std::int64_t written_ = 0;  // slots, of columns in runs
  std::uint64_t slots_moved_ = 0;
  std::uint64_t pages_copied_ = 0;
  std::uint64_t slots_encoded_again_ = 0;
};

template <class Visit>
void PageTable::for_each_open(Visit&& visit) const {
  const std::uint32_t tail = tail_.front();
  if (tail != kNone && !column_[tail].sealed) visit(tail);
  std::uint32_t last = tail;
  for (std::size_t f = frames_.size(); f > 0; --f) {
    if (frames_[f - 1].run != 0) continue;
    const std::span<const PageEntry> entries = entries_of(frames_[f - 1]);
    for (std::size_t e = entries.size(); e > 0; --e) {
      const std::uint32_t column = entries[e - 1].column;
      if (column == last) continue;
      if (column_[column].sealed) return;
      visit(column);
      last = column;
    }
  }
}

}  // namespace kvasir
