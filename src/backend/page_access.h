// Interfaces through which attention gets its pages. A source fetches pages that are not in memory while others are
// computed; a selector may skip pages. A backend without either reads all pages directly.
// Thread-safety: called by one thread, between the parallel regions of a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/batch.h"

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

class EntrySelector {
 public:
  virtual ~EntrySelector() = default;
  // Clears the elements of `read` whose entries a lane does not read in this layer. read: [entries of all frames in
  // order], all true. Sums are taken as if the other entries had no live slots;
  // listeners are told that their tokens have weight zero.
  virtual void select(int layer, const BatchTable& table, int lane, std::span<bool> read) = 0;
};

}  // namespace kvasir
