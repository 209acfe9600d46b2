// The table of lanes that agree on what they keep: columns of pages, entries with live masks, frames with origins.
//
// A column is one page of each lane of the group, filled with consecutive tokens. An entry is the slots of a column
// that are live and belong to one frame; a column may have several, with disjoint masks (sinks and window in page 0,
// either side of a hole). A frame is a run of entries whose keys are rotated relative to one origin. Masks and origins
// belong to the group, never to the page: pages are shared between groups that were forked.
//
// Positions are compact: the retained tokens occupy 0 ... length-1 in order of id. The position of token t in frame f
// is t + f.rotation + f.origin, and its key is stored rotated by t + f.rotation. Moving a frame to other positions
// changes its origin alone (Realign::kFrames); rotating its keys instead changes its rotation alone (Realign::kRotate).
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kv/page_pool.h"

namespace kvasir {

using TokenId = std::int64_t;   // index of a token in its sequence, from 0
using Position = std::int64_t;  // rotary position

struct IdRange {
  TokenId begin = 0;
  TokenId end = 0;  // exclusive
  bool empty() const { return end <= begin; }
};

// How the tokens behind a hole move up to close it.
enum class Realign {
  kFrames,  // the origin of their frame changes; no key is touched
  kRotate,  // their keys are rotated by the shift and stored again, as StreamingLLM was published
};

class LaneGroup {
 public:
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxColumnEntries = 4;

  struct Frame {
    Position origin = 0;
    Position rotation = 0;
  };
  struct Entry {
    SlotMask live = 0;
    int frame = 0;
  };
  struct Column {
    std::uint64_t ordinal = 0;  // of this column in its group, from 0
    TokenId first = 0;          // id in slot 0; slot s holds token first + s
    int used = 0;               // slots written
    int entry_count = 0;
    std::array<Entry, kMaxColumnEntries> entries;  // by ascending frame
    Column* next = nullptr;
    std::span<const PageId> pages;  // [lanes], in the same allocation
  };

  // The pool and its budget outlive the group.
  LaneGroup(int lanes, PagePool* pool, MemoryBudget* budget);
  LaneGroup(LaneGroup&& other) noexcept;
  LaneGroup& operator=(LaneGroup&& other) noexcept;
  LaneGroup(const LaneGroup&) = delete;
  LaneGroup& operator=(const LaneGroup&) = delete;
  ~LaneGroup();

  int lanes() const { return lanes_; }
  TokenId next_id() const { return next_id_; }     // tokens seen so far
  std::int64_t length() const { return length_; }  // tokens retained
  int columns() const { return columns_; }
  const Column* first_column() const { return head_; }
  std::span<const Frame> frames() const { return {frames_.data(), static_cast<std::size_t>(frame_count_)}; }
  const Frame& newest_frame() const { return frames_[static_cast<std::size_t>(frame_count_) - 1]; }

  // Bytes charged for the tables: per column, on top of its pages.
  std::uint64_t column_bytes() const { return sizeof(Column) + static_cast<std::uint64_t>(lanes_) * sizeof(PageId); }
  std::uint64_t table_bytes() const { return static_cast<std::uint64_t>(columns_) * column_bytes(); }

  // What append would take. Const: a plan changes nothing.
  struct AppendPlan {
    int columns = 0;          // new ones
    std::uint64_t pages = 0;  // to allocate, copies of a shared open column included
    std::uint64_t bytes = 0;  // pages and tables together
  };
  AppendPlan plan_append(int tokens) const;

  // Makes room for `tokens` tokens behind the newest, with ids next_id() on. Succeeds whole or leaves no trace.
  // Errors: kResourceExhausted when the budget does not hold the plan.
  Status append(int tokens);

  std::int64_t retained_in(IdRange range) const;

  // Drops the retained tokens among `range` and moves those behind it up, in the way given; with kRotate the caller
  // rotates the keys of columns_behind(range.end) by -retained_in(range), after unshare_behind(range.end). Columns
  // without live slots return their pages at once. Errors, leaving no trace: kUnsupported when the holes would split
  // the table into more frames or entries than it has room for (it is then due for compaction).
  Status drop(IdRange range, Realign realign);

  // Gives the group its own copy of every column that holds live tokens >= id. Errors: kResourceExhausted.
  Status unshare_behind(TokenId id);

  // The live slots of a column that hold tokens >= id.
  static SlotMask live_behind(const Column& column, TokenId id);

  // A group with the same content that shares all pages. Errors: kResourceExhausted (its tables are charged).
  Result<LaneGroup> fork() const;

  // KVASIR_CHECKs the table and adds each page's appearances to `references` ([pool capacity]).
  void check_invariants(std::span<std::uint32_t> references) const;

 private:
  Column* make_column();
  void destroy_column(Column* column);
  PageId* mutable_pages(Column* column) const;
  bool is_shared(const Column& column) const;
  void copy_pages(Column* column, std::span<const PageId> fresh);
  Column* tail() const { return tail_; }
  void remove_empty_columns();
  void remove_empty_frames();

  int lanes_;
  PagePool* pool_;
  MemoryBudget* budget_;
  Column* head_ = nullptr;
  Column* tail_ = nullptr;
  int columns_ = 0;
  int frame_count_ = 1;
  std::array<Frame, kMaxFrames> frames_;
  TokenId next_id_ = 0;
  std::int64_t length_ = 0;
  std::uint64_t next_ordinal_ = 0;
};

}  // namespace kvasir
