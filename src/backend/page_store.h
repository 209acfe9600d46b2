// The bytes of pages. Page tables refer to pages and slots by number; only the store knows where the bytes are and how
// a page is laid out.
//
// Thread-safety: one caller at a time. Every call is finished when it returns.
#pragma once

#include <cstdint>
#include <span>

#include "backend/page_format.h"
#include "kvasir/status.h"

namespace kvasir {

// Slots of one page column that move, all by one shift of their rotation, to consecutive slots of another from
// `to_slot` on. Source and destination may be the same pages; then to_slot is at or before the first slot moved.
struct SlotMove {
  const PageId* from = nullptr;  // [lanes]
  SlotMask slots = 0;
  const PageId* to = nullptr;  // [lanes]
  int to_slot = 0;
  std::int64_t shift = 0;  // positions by which the keys are rotated
};

// Slots of one page column whose keys are rotated in place.
struct SlotRotation {
  const PageId* pages = nullptr;  // [lanes]
  SlotMask slots = 0;
};

class PageStore {
 public:
  virtual ~PageStore() = default;

  // Makes pages [0, count) usable; their bytes are zero, and resident once written. Called once, before all else.
  // Errors: kResourceExhausted.
  virtual Status reserve(std::uint64_t count) = 0;

  // Makes all bytes of the pages zero.
  virtual void clear(std::span<const PageId> pages) = 0;
  // Copies whole pages, from[i] to to[i].
  virtual void copy(std::span<const PageId> from, std::span<const PageId> to) = 0;
  // Executes moves in order, for all lanes.
  virtual void move(int lanes, std::span<const SlotMove> moves) = 0;
  virtual void rotate(int lanes, std::span<const SlotRotation> rotations, std::int64_t shift) = 0;

  // A page's bytes in the store's own layout, for files: out.size() and in.size() are the format's page bytes.
  virtual void read(PageId page, std::span<std::byte> out) const = 0;
  virtual void write(PageId page, std::span<const std::byte> in) = 0;
};

}  // namespace kvasir
