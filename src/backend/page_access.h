// Interfaces through which attention reads other entries than those of the page tables: a selector leaves tokens
// unread; offloaded pages add those that the tables do not hold. Without either, a backend reads all entries of the
// tables.
#pragma once

#include <cstdint>
#include <span>

#include "backend/batch.h"
#include "backend/page_store.h"
#include "backend/segment_scores.h"

namespace kvasir {

// Tells selectors and offloaded pages about one row of one lane. Valid during the call.
struct LaneRow {
  int layer = 0;
  int head = 0;  // KV head
  int row = 0;   // of the sequence's rows in this pass
  const BatchTable* table = nullptr;
  int lane = 0;                      // in the table
  const PageStore* store = nullptr;  // keys of earlier tokens, and of the pass itself, are in their pages already
  int group = 1;                     // query heads that share the lane
  int head_dim = 0;
  // The row's queries, [group][head_dim], as attention multiplies them with keys of the table's first frame: rotated,
  // scaled, not yet transformed by the pages' Hadamard matrix. Those of the next frame are `frame_stride` floats
  // behind.
  const float* queries = nullptr;
  std::size_t frame_stride = 0;
  ScoreSegments score_segments = nullptr;  // for selectors that score segments

  std::span<const float> queries_of(std::size_t frame) const {
    return {queries + frame * frame_stride, static_cast<std::size_t>(group) * static_cast<std::size_t>(head_dim)};
  }
  PageId page(std::uint32_t column) const { return table->page(column, lane); }
};

// Chooses which of its visible tokens a row reads. Belongs to one sequence (BatchSequence::selector).
// The choice must depend on the text alone, not on how rows are divided into passes nor on the order of lanes.
// Thread-safety: select is called from several threads at once, for different lanes; the rows of a lane come in order.
class EntrySelector {
 public:
  virtual ~EntrySelector() = default;
  // Returns whether select is called for the rows of this pass in a layer. If not, they read all that they see.
  virtual bool selects(int layer) const = 0;
  // Clears the bits of slots that the row does not read. read: [entries of all frames, in order], all ones on input;
  // bits of slots that the row does not see, or that are not live, are ignored. Sums are taken as if cleared slots were
  // not live: entries keep their place in the order of summation, and the page of an entry without any set bit is not
  // read. Listeners get weight zero for unread tokens.
  virtual void select(const LaneRow& row, std::span<SlotMask> read) = 0;
};

inline constexpr int kMostRecalled = 8;  // pages of one lane

// A page outside a sequence's page tables, and its slots that hold tokens.
struct RecalledPage {
  PageId page{};
  SlotMask live = 0;
};

// Pages of one sequence that its page tables do not hold (BatchSequence::offloaded). In each layer that the policy
// governs, a pass calls in this order:
//   fetch(layer)           before rows attend: the entries BatchTable::offloaded are in memory when it returns
// and for the sequence's last row, if recalls():
//   choose(row, highest)   for every lane, once the row has attended to all that it reads of its table
//   fetch_chosen(layer)    the pages chosen are in memory when it returns
//   chosen(head)           for every lane; the row attends to them in this order, as one partial behind all others
// Listeners are told the row's attention without the pages chosen.
// Thread-safety: choose and chosen are called from several threads at once, for different lanes; the others by one
// thread, between parallel regions. fetch and fetch_chosen may wait.
class OffloadedPages {
 public:
  virtual ~OffloadedPages() = default;
  virtual void fetch(int layer) { static_cast<void>(layer); }
  virtual bool recalls() const { return false; }
  // Chooses pages for a row. row.queries_of(0) has its queries for the table's last frame, without a Hadamard
  // transform. highest: [group], the highest score of each query head so far. The choice must depend on the text alone.
  virtual void choose(const LaneRow& row, std::span<const float> highest) {
    static_cast<void>(row), static_cast<void>(highest);
  }
  virtual void fetch_chosen(int layer) { static_cast<void>(layer); }
  // Returns the pages chosen for a KV head. Their keys are rotated like those of the table's last frame, and
  // transformed by the cache's Hadamard matrices.
  virtual std::span<const RecalledPage> chosen(int head) const {
    static_cast<void>(head);
    return {};
  }
};

}  // namespace kvasir
