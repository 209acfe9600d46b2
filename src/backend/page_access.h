// Interfaces through which attention gets its pages. A source fetches pages that are not in memory while others are
// computed; a selector leaves tokens unread; a recall adds pages that no table has. A backend without any of them reads
// all pages of the tables directly, and nothing else.
// Thread-safety: sources and leases are called by one thread, between the parallel regions of a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/batch.h"
#include "backend/chunk_scores.h"
#include "backend/page_store.h"

namespace kvasir {

// The pages of one layer, resident until the lease is given back by destroying it.
class PageLease {
 public:
  virtual ~PageLease() = default;
  // Whether a page may be read before wait() has returned.
  virtual bool resident(PageId page) const = 0;
  // Returns when all pages of the layer are resident.
  virtual void wait() = 0;
};

class PageSource {
 public:
  virtual ~PageSource() = default;
  // Called once the batch's keys and values were stored in the layer: pages that they go to are resident beforehand.
  // Null: all pages of the layer are resident.
  virtual std::unique_ptr<PageLease> lease(int layer, const Batch& batch) = 0;
};

// What a selector is told of one row of one lane. Valid during the call.
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
  ScoreChunks score_chunks = nullptr;  // for selectors that score chunks

  std::span<const float> queries_of(std::size_t frame) const {
    return {queries + frame * frame_stride, static_cast<std::size_t>(group) * static_cast<std::size_t>(head_dim)};
  }
  PageId page(std::uint32_t column) const {
    return table->pages[std::size_t{column} * static_cast<std::size_t>(table->lanes) + static_cast<std::size_t>(lane)];
  }
};

// Chooses which of the tokens that a row sees it reads. It belongs to one sequence (BatchSequence::selector).
// Thread-safety: select is called from several threads at once, for different lanes; the rows of a lane come in order.
// What it answers must depend on the text alone, never on passes or on the order of lanes.
class EntrySelector {
 public:
  virtual ~EntrySelector() = default;
  // Whether the rows of the pass at hand choose in this layer. Otherwise they read all that they see.
  virtual bool selects(int layer) const = 0;
  // Whether select reads pages (PageStore::read_keys): all pages of the layer are resident then, which costs the time
  // that they are waited for.
  virtual bool reads_pages() const { return false; }
  // Clears the slots that a row does not read. read: [entries of all frames in order], all ones; bits of slots that the
  // row does not see, or that are not live, mean nothing. Sums are taken as if the other slots were not live: entries
  // keep their places in the order of summation, and those without a slot to read cost no access to their pages.
  // Listeners are told that tokens left unread have weight zero.
  virtual void select(const LaneRow& row, std::span<SlotMask> read) = 0;
};

// Brings tokens that the tables of one sequence have apart (BatchTable::apart) into memory, layer by layer. It belongs
// to the sequence (BatchSequence::fetch). Thread-safety: called by one thread, between parallel regions.
class LayerFetch {
 public:
  virtual ~LayerFetch() = default;
  // Called before the rows of the pass attend in a layer, and after they have in the layers before it. May wait; what
  // lies apart in the layer is in memory when it returns.
  virtual void fetch(int layer) = 0;
};

inline constexpr int kMostRecalled = 8;  // pages of one lane

// A page outside a sequence's page tables, and its slots that hold tokens.
struct RecalledPage {
  PageId page{};
  SlotMask live = 0;
};

// Pages that the last row of a sequence's rows attends to besides those of its page tables. They hold keys rotated as
// those of the table's last frame, and have the cache's Hadamard matrices. It belongs to one sequence
// (BatchSequence::recall). In each layer, in this order:
//   choose(row, highest)   for every lane, once the row has attended to all that it reads of its table
//   fetch(layer)           may wait; the pages chosen are in memory when it returns
//   chosen(head)           for every lane; they are attended in this order, as one partial behind all others
// Listeners are told the row's attention without them.
// Thread-safety: choose and chosen are called from several threads at once, for different lanes; fetch by one thread,
// between parallel regions.
class RecallSource {
 public:
  virtual ~RecallSource() = default;
  // `row`: its queries are those of the table's last frame alone, and not transformed by a Hadamard matrix; queries_of
  // (0) has them. highest: [group], the highest score of each query head so far. What is chosen depends on the text
  // alone.
  virtual void choose(const LaneRow& row, std::span<const float> highest) = 0;
  virtual void fetch(int layer) = 0;
  virtual std::span<const RecalledPage> chosen(int head) const = 0;
};

}  // namespace kvasir
