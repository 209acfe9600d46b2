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

// The lanes of page columns, and how the keys of each are rotated.
struct ColumnLanes {
  int count = 0;
  std::span<const std::uint8_t> rotations;  // [count], indices in BackendShape::rotations; empty: PageFormat::rotation

  int rotation(int lane, const PageFormat& format) const {
    return rotations.empty() ? format.rotation : rotations[static_cast<std::size_t>(lane)];
  }
};

// Moves slots of one page column to consecutive slots of another from `to_slot` on, and rotates all of their keys by
// `shift`. Source and destination may be the same pages if to_slot is at or before the first slot moved. The source may
// be encoded.
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
  SlotMask live = 0;  // all that take part in scales, where the pages are encoded
};

// A page column that is encoded.
struct PageSeal {
  const PageId* from = nullptr;  // [lanes]; in the open form of the other's format
  const PageId* to = nullptr;    // [lanes]
  SlotMask live = 0;             // slots that take part in scales
};

class PageStore {
 public:
  virtual ~PageStore() = default;

  // Makes pages [0, count) of a class usable, which have this format from now on; their bytes are zero, and resident
  // once written. Called once for a class, before all else about it. All classes have equally many slots.
  // Errors: kResourceExhausted.
  virtual Status reserve(PageClass of, const PageFormat& format, std::uint64_t count) = 0;

  // Gives the memory of pages [first, first + count) of a class back to the system; they stay usable, and their bytes
  // are zero.
  virtual void give_back(PageClass of, std::uint64_t first, std::uint64_t count) = 0;

  // Makes all bytes of the pages zero.
  virtual void clear(std::span<const PageId> pages) = 0;
  // Copies whole pages, from[i] to to[i], of one class.
  virtual void copy(std::span<const PageId> from, std::span<const PageId> to) = 0;
  // Executes moves in order, for all lanes. REQUIRES: no destination is encoded.
  virtual void move(ColumnLanes lanes, std::span<const SlotMove> moves) = 0;
  // Writes pages anew. Moves to one column follow each other, and fill its slots in order from 0 on; its other slots
  // are zero. A column that is written may also be read, but by no later moves except those that directly follow
  // another move from it. Encoded destinations are encoded, with the filled slots live.
  virtual void repack(ColumnLanes lanes, std::span<const SlotMove> moves) = 0;
  // Encodes columns. REQUIRES: the destination is encoded.
  virtual void seal(int lanes, std::span<const PageSeal> seals) = 0;
  // Encoded pages are decoded, rotated and encoded again.
  virtual void rotate(ColumnLanes lanes, std::span<const SlotRotation> rotations, std::int64_t shift) = 0;

  // Writes a page's keys as attention multiplies them with queries that are not transformed by a Hadamard matrix:
  // decoded, and that matrix undone; [slots][head_dim]. May be called from several threads at once.
  virtual void read_keys(PageId page, float* keys) const = 0;
  // Writes a page's values as attention sums them, likewise.
  virtual void read_values(PageId page, float* values) const = 0;

  // Rows: the key and the value of one token, [key][value], elements as the page's format has them. The three may be
  // called from several threads at once, for different pages or rows. REQUIRES: the format is not encoded.
  // Copies rows out of, or into, slots [first, first + count) of a page; [count][row].
  virtual void read_rows(PageId page, int first, int count, std::byte* out) const = 0;
  virtual void write_rows(PageId page, int first, int count, const std::byte* in) = 0;
  // Writes row number `row` of a page that holds rows one behind the other. Only BatchTable::offloaded_rows may refer
  // to such a page.
  virtual void put_row(PageId page, int row, const std::byte* in) = 0;

  // A page's bytes in the store's own layout, for files: out.size() and in.size() are the bytes of its format.
  virtual void read(PageId page, std::span<std::byte> out) const = 0;
  virtual void write(PageId page, std::span<const std::byte> in) = 0;
};

}  // namespace kvasir
