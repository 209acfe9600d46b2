// The table of lanes that agree on what they keep: columns of pages, entries with live masks, frames with origins.
//
// A column is one page of each lane of the group. An entry is the slots of a column that are live and belong to one
// frame; a column may have several, with disjoint masks (sinks and window in page 0, either side of a hole). A frame is
// a series of tokens at consecutive positions whose keys are rotated relative to one origin. Masks and origins belong
// to the group, never to the page: pages are shared between groups that were forked.
//
// Compact positions: the retained tokens occupy 0 ... length-1 in order of id. The key in slot s of a column is stored
// rotated by base + s + rotation of its frame, and its position is that + origin of its frame. Moving a frame to other
// positions changes its origin alone (Realign::kFrames); rotating its keys instead changes its rotation alone
// (Realign::kRotate). Original positions: every key is stored rotated by its id, in one frame with origin 0.
//
// Tokens leave in one of two ways, and a group keeps to one of them (Dropping):
//  - kRanges: drop. Columns hold consecutive tokens.
//  - kPlans: apply. Any tokens may leave; what they leave behind is masked first, and compacted (moved together in
//    place, and rotated where its position asks for it) when it is due. Tokens may move between runs: run 0 is where
//    tokens enter; each other run is a ring of its own columns, with one frame, whose tokens are older than those of
//    the run before it but for the tokens of run 0 that never leave it (Cascading KV cache, Willette et al., arXiv
//    2406.17808: one run for each sub-cache).
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/page_pool.h"

namespace kvasir {

using TokenIndex = std::int64_t;  // place of a token in its sequence, from 0
using Position = std::int64_t;    // rotary position

struct IndexRange {
  TokenIndex begin = 0;
  TokenIndex end = 0;  // exclusive
  bool empty() const { return end <= begin; }
};

// How the tokens behind a hole move up to close it.
enum class Realign {
  kFrames,  // the origin of their frame changes; no key is touched
  kRotate,  // their keys are rotated by the shift and stored again, as StreamingLLM was published
};

// What a table does after a pass. Ids refer to tokens that it holds (those of the pass included); both lists ascend.
struct KeepPlan {
  struct Move {
    TokenIndex id = 0;
    int run = 0;
  };
  std::vector<TokenIndex> drop;
  std::vector<Move> moves;  // to the end of another run of a higher number, as its newest
  // For reports only: the tokens held once each row of the pass was inserted and pruned, one number per row. May be
  // left empty where nothing is dropped before the last row.
  std::vector<std::int64_t> held;

  void clear() {
    drop.clear();
    moves.clear();
    held.clear();
  }
  bool empty() const { return drop.empty() && moves.empty(); }
};

class LaneGroup {
 public:
  enum class Dropping { kRanges, kPlans };

  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxColumnEntries = 4;

  struct Frame {
    Position origin = 0;
    Position rotation = 0;
    int run = 0;
  };
  struct Entry {
    SlotMask live = 0;
    int frame = 0;
  };
  struct Column {
    std::uint64_t ordinal = 0;  // of this column in its run, from 0
    TokenIndex first = 0;       // id in slot 0
    Position base = 0;          // compact positions: slot s is stored rotated by base + s + its frame's rotation
    int used = 0;               // slots written
    int entry_count = 0;
    std::array<Entry, kMaxColumnEntries> entries;  // by ascending frame
    Column* next = nullptr;
    std::span<const PageId> pages;             // [lanes], in the same allocation
    const std::uint32_t* id_offset = nullptr;  // [slots], there too: ids relative to `first`; nullptr: consecutive

    TokenIndex id(int slot) const {
      return first + (id_offset != nullptr ? static_cast<TokenIndex>(id_offset[slot]) : slot);
    }
    // The slots whose tokens have ids in [begin, end); ids ascend with slots.
    SlotMask slots_of(TokenIndex begin, TokenIndex end) const;
  };

  // Slots to be moved, all by one shift of their rotation, to consecutive slots from to_slot on. `from` and `to` may be
  // the same column; then to_slot is at or before the first slot moved.
  struct SlotCopy {
    const Column* from = nullptr;
    SlotMask slots = 0;
    const Column* to = nullptr;
    int to_slot = 0;
    Position shift = 0;
  };
  // Moves keys and values of all lanes, copy after copy. Empty where pages have no memory behind them.
  using SlotMover = std::function<void(std::span<const SlotCopy>)>;

  // What a group does with the tokens it holds.
  struct Layout {
    Dropping dropping = Dropping::kRanges;
    bool original_positions = false;           // REQUIRES: kPlans, and no other run
    std::vector<std::int64_t> run_capacities;  // tokens that runs 1, 2, ... hold. REQUIRES: kPlans if not empty
  };

  // The pool and its budget outlive the group.
  LaneGroup(int lanes, PagePool* pool, MemoryBudget* budget, const Layout& layout);
  LaneGroup(LaneGroup&& other) noexcept;
  LaneGroup& operator=(LaneGroup&& other) noexcept;
  LaneGroup(const LaneGroup&) = delete;
  LaneGroup& operator=(const LaneGroup&) = delete;
  ~LaneGroup();

  int lanes() const { return lanes_; }
  const MemoryBudget& budget() const { return *budget_; }
  TokenIndex next_id() const { return next_id_; }  // tokens seen so far
  std::int64_t length() const { return length_; }  // tokens retained
  int columns() const { return columns_; }
  bool original_positions() const { return original_; }
  std::int64_t dead_slots() const;  // written slots that hold no retained token
  int runs() const { return static_cast<int>(runs_.size()); }
  const Column* first_column(int run = 0) const { return runs_[static_cast<std::size_t>(run)].head; }
  std::span<const Frame> frames() const { return {frames_.data(), static_cast<std::size_t>(frame_count_)}; }
  const Frame& newest_frame() const { return frames_[static_cast<std::size_t>(frame_count_) - 1]; }

  // Bytes charged for the tables: per column, on top of its pages.
  std::uint64_t column_bytes() const { return column_bytes(lanes_, pool_->shape().slots, dropping_); }
  static std::uint64_t column_bytes(int lanes, int slots, Dropping dropping) {
    return sizeof(Column) + static_cast<std::uint64_t>(lanes) * sizeof(PageId) +
           (dropping == Dropping::kPlans ? static_cast<std::uint64_t>(slots) * sizeof(std::uint32_t) : 0);
  }
  std::uint64_t table_bytes() const { return static_cast<std::uint64_t>(columns_) * column_bytes(); }

  // What append would take. Const: a plan changes nothing.
  struct AppendPlan {
    int columns = 0;          // new ones
    int spares = 0;           // of these, kept ready for tokens that move between runs after the pass
    std::uint64_t pages = 0;  // to allocate, copies of a shared open column included
    std::uint64_t bytes = 0;  // pages and tables together
  };
  AppendPlan plan_append(int tokens, bool own_pages = false) const;

  // Makes room for `tokens` tokens behind the newest, with ids next_id() on. Succeeds whole or leaves no trace.
  // Errors: kResourceExhausted when the budget does not hold the plan.
  Status append(int tokens);

  std::int64_t retained_in(IndexRange range) const;

  // Drops the retained tokens among `range` and moves those behind it up, in the way given; with kRotate the caller
  // rotates the keys of columns_behind(range.end) by -retained_in(range), after unshare_behind(range.end). Columns
  // without live slots return their pages at once. Errors, leaving no trace: kUnsupported when the holes would split
  // the table into more frames or entries than it has room for (it is then due for compaction).
  Status drop(IndexRange range, Realign realign);

  // Gives the group its own copy of every column that holds live tokens >= id. Errors: kResourceExhausted.
  Status unshare_behind(TokenIndex id);

  // Executes a plan. Columns without live slots return their pages at once; when more than a quarter of the written
  // slots is dead, or the holes split the table into more entries than two per column, the table is compacted.
  // REQUIRES: Dropping::kPlans; no page is shared (unshare_behind(0)).
  void apply(const KeepPlan& plan, const SlotMover& mover);

  // Moves all tokens together, into one frame. REQUIRES: as apply, and a single run.
  void compact(const SlotMover& mover);

  // From original to compact positions, for good. REQUIRES: as compact.
  void make_positions_compact(const SlotMover& mover);

  // The live slots of a column that hold tokens >= id.
  static SlotMask live_behind(const Column& column, TokenIndex id);
  static SlotMask live_slots(const Column& column);
  // What the key in a slot is stored rotated by. REQUIRES: the slot belongs to `frame`.
  Position stored_rotation(const Column& column, int slot, const Frame& frame) const {
    return original_ ? column.id(slot) : column.base + slot + frame.rotation;
  }

  // A group with the same content that shares all pages. Errors: kResourceExhausted (its tables are charged).
  Result<LaneGroup> fork() const;

  // KVASIR_CHECKs the table and adds each page's appearances to `references` ([pool capacity]).
  void check_invariants(std::span<std::uint32_t> references) const;

 private:
  // Columns by age.
  struct Run {
    Column* head = nullptr;
    Column* tail = nullptr;
    std::int64_t capacity = 0;  // of runs 1, 2, ...
    int columns = 0;
    std::uint64_t next_ordinal = 0;
  };
  struct Live {
    Column* column = nullptr;
    SlotMask slots = 0;
  };
  struct Place {
    Column* column = nullptr;
    int slot = 0;
  };

  Column* make_column();
  void destroy_column(Column* column);
  PageId* mutable_pages(Column* column) const;
  std::uint32_t* mutable_offsets(Column* column) const;
  bool is_shared(const Column& column) const;
  void copy_pages(Column* column, std::span<const PageId> fresh);
  void link(Run& run, Column* column);
  int spares_needed(int tokens) const;
  void remove_empty_columns();
  void remove_empty_frames();

  // Of apply: see lane_group_plans.cc.
  void release_leaving(Run& run, std::vector<Live>& live);
  void receive_moves(int run, std::span<const KeepPlan::Move> moves, const SlotMover& mover);
  Place locate(TokenIndex id, int runs) const;
  bool rebuild_frames();
  bool place_in_frames(int run, TokenIndex begin, TokenIndex end, Position& position);
  bool compaction_due() const;
  void gather_live();
  void compact_live(bool original, const SlotMover& mover);

  int lanes_;
  PagePool* pool_;
  MemoryBudget* budget_;
  Dropping dropping_ = Dropping::kRanges;
  bool original_ = false;
  std::vector<Run> runs_;
  Column* spare_ = nullptr;  // columns without tokens, for moves
  int columns_ = 0;          // spare ones included
  int spares_ = 0;
  int frame_count_ = 1;
  std::array<Frame, kMaxFrames> frames_;
  TokenIndex next_id_ = 0;
  std::int64_t length_ = 0;

  // Scratch of apply, kept so that decoding allocates nothing.
  std::vector<std::vector<Live>> live_;  // [runs]
  std::vector<TokenIndex> leaving_;
  std::vector<TokenIndex> ids_;
  std::vector<SlotCopy> copies_;
};

}  // namespace kvasir
