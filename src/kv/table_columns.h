// The columns of a page table by handle: their pages, the tokens in their slots, and which handles are free.
//
// Thread-safety: none; const members may be called from many threads while nothing is changed.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "kv/column_pages.h"
#include "kv/keep_plan.h"

namespace kvasir {

// How a table holds its tokens: which tokens may leave, the positions of their keys, and the classes of their pages.
struct PageTableLayout {
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxColumnEntries = 4;
  // The bounds for lists with one run and encoded pages, where a hole costs less than encoding tokens again.
  static constexpr int kMaxEncodedFrames = 64;
  static constexpr int kMaxEncodedColumnEntries = 8;

  bool lists = false;                        // any tokens may leave; false: ranges
  bool original_positions = false;           // REQUIRES: lists, and no other run
  std::vector<std::int64_t> run_capacities;  // tokens that runs 1, 2, ... hold. REQUIRES: lists if not empty
  // Ranges: a row attends to keys less than this many positions before it, in every layer; 0: to all keys.
  Position window = 0;
  // Ranges: number of first tokens that come nearer to later tokens as tokens between them are dropped. Their pages are
  // never given back.
  TokenIndex sinks = 0;
  // Classes of the table's pages. page_table.h (Sealing) says what open and sealed pages of different classes mean.
  PageClasses classes;
  int recent = 0;
  // [lanes]: ColumnLanes::rotations. Must outlive the table.
  std::span<const std::uint8_t> rotations;

  int runs() const { return 1 + static_cast<int>(run_capacities.size()); }
  bool encoded() const { return classes.sealed != classes.open; }
  // Whether compaction leaves most columns as they are (page_table_pack.cc).
  bool packs() const { return encoded() && lists && run_capacities.empty(); }
  int most_frames() const { return packs() ? kMaxEncodedFrames : kMaxFrames; }
  int most_column_entries() const { return packs() ? kMaxEncodedColumnEntries : kMaxColumnEntries; }
  // The most columns of run 0 that are open at once, where pages are encoded; otherwise 0.
  int open_capacity(int slots) const { return encoded() ? recent / slots + 2 : 0; }
  // The first token that reads the encoded pages of a column of run 0 whose newest token is `newest`.
  TokenIndex first_reader(TokenIndex newest) const { return newest + 1 + recent; }
};

class TableColumns {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;  // no column

  struct Column {
    SlotMask live = 0;          // slots that hold retained tokens
    std::uint64_t ordinal = 0;  // of this column in its run, from 0
    TokenIndex first = 0;       // index of the token in slot 0
    Position base = 0;          // compact positions: slot s is stored rotated by base + s + its frame's rotation
    std::int32_t used = 0;      // slots written; 0: the handle is free, or the column is a spare
    std::int16_t entries = 0;   // entries that refer to the column
    bool sealed = false;        // its pages are encoded
  };

  // The pool and its budget outlive the columns.
  TableColumns(int lanes, PagePool* pool, const PageTableLayout& layout)
      : layout_(layout),
        slots_(static_cast<std::size_t>(pool->format().slots)),
        pages_({lanes, layout.rotations}, pool, layout.classes) {}

  const PageTableLayout& layout() const { return layout_; }
  int slots() const { return static_cast<int>(slots_); }
  int count() const { return count_; }  // columns that hold pages, spare ones included
  Column& operator[](std::uint32_t column) { return columns_[column]; }
  const Column& operator[](std::uint32_t column) const { return columns_[column]; }
  // Columns that hold tokens, oldest first.
  std::vector<std::uint32_t> in_order() const;
  std::uint32_t handles() const { return static_cast<std::uint32_t>(columns_.size()); }  // every handle is below this

  TokenIndex index(std::uint32_t column, int slot) const {
    const auto at = static_cast<std::size_t>(slot);
    return columns_[column].first + static_cast<TokenIndex>(layout_.lists ? offsets_[column * slots_ + at] : at);
  }
  // The index of the token in the last slot written.
  TokenIndex last_index(std::uint32_t column) const { return index(column, columns_[column].used - 1); }
  TokenIndex first_live(const PageEntry& entry) const { return index(entry.column, std::countr_zero(entry.live)); }
  TokenIndex last_live(const PageEntry& entry) const {
    return index(entry.column, static_cast<int>(std::bit_width(entry.live)) - 1);
  }
  // The slots of a column whose tokens have indices in [begin, end); indices ascend with slots.
  SlotMask slots_of(std::uint32_t column, TokenIndex begin, TokenIndex end) const;
  // For each written slot, its token's index relative to the column's first. REQUIRES: lists.
  std::span<std::uint32_t> offsets(std::uint32_t column) {
    return {offsets_.data() + column * slots_, static_cast<std::size_t>(columns_[column].used)};
  }
  std::span<const std::uint32_t> offsets(std::uint32_t column) const {
    return {offsets_.data() + column * slots_, static_cast<std::size_t>(columns_[column].used)};
  }
  // [slots]: how often each slot's token was encoded, up to 255: when its page was sealed, and each time it was packed,
  // moved to another run or rotated. REQUIRES: the format is encoded.
  std::span<std::uint8_t> encodings(std::uint32_t column) { return {encodings_.data() + column * slots_, slots_}; }
  std::span<const std::uint8_t> encodings(std::uint32_t column) const {
    return {encodings_.data() + column * slots_, slots_};
  }
  // Counts one more encoding of these slots.
  void count_encodings(std::uint32_t column, SlotMask slots);
  struct Encodings {
    std::uint64_t tokens = 0;  // retained tokens that were encoded
    std::uint64_t sum = 0;     // of the encodings of these tokens
    int most = 0;              // the largest number for one token, at most 255
    // Total of repeated encodings in one lane, those of dropped tokens included.
    std::uint64_t again = 0;
    double mean() const { return tokens > 0 ? static_cast<double>(sum) / static_cast<double>(tokens) : 0; }
  };
  Encodings all_encodings() const;

  ColumnPages& pages() { return pages_; }
  const ColumnPages& pages() const { return pages_; }
  // Gives the column its own copy of shared pages (ColumnPages::own).
  void own(std::uint32_t column) { pages_.own(column, columns_[column].sealed); }
  // Replaces the column's pages by the next fresh ones.
  void replace_pages(std::uint32_t column, FreshPages& fresh, bool sealed) {
    pages_.take(column, fresh, sealed);
    columns_[column].sealed = sealed;
  }
  // Exchanges the pages of two columns, and whether they are sealed.
  void exchange_pages(std::uint32_t a, std::uint32_t b);

  // Returns a column without tokens, with the next fresh pages. REQUIRES: room in the arrays (checked).
  std::uint32_t take(FreshPages& fresh, bool sealed);
  void release(std::uint32_t column);  // REQUIRES: no entry refers to the column
  // Columns without tokens, kept for tokens that move between runs.
  std::span<const std::uint32_t> spares() const { return spares_; }
  void add_spare(FreshPages& fresh, bool sealed) { spares_.push_back(take(fresh, sealed)); }
  // Takes a spare column, or allocates one from pages that a run has just given back.
  std::uint32_t take_spare(bool sealed);

  // Refers to the same pages as `other`, except its spare columns. REQUIRES: no columns are held; room in the arrays.
  void share(const TableColumns& other);

  // Grows the arrays. capacity() grows last, so that it stays as it was if an allocation throws.
  void reserve(std::int64_t columns);
  std::int64_t capacity() const { return static_cast<std::int64_t>(columns_.capacity()); }
  std::uint64_t allocated_bytes() const;

 private:
  PageTableLayout layout_;
  std::size_t slots_;
  ColumnPages pages_;
  std::vector<Column> columns_;          // by handle
  std::vector<std::uint32_t> offsets_;   // lists: [column][slot]
  std::vector<std::uint8_t> encodings_;  // encoded pages: [column][slot]
  std::vector<std::uint32_t> free_;      // handles without pages
  std::vector<std::uint32_t> spares_;
  int count_ = 0;
  std::uint64_t encoded_again_ = 0;
};

// The columns that the current pass seals, and their open pages. Rows before a column's first reader still read its
// open pages (Sealing in page_table.h).
class PassSeals {
 public:
  struct Seal {
    std::uint32_t column = 0;
    TokenIndex first_reader = 0;  // the first token that reads the encoded pages
    int open = -1;                // place of the open pages in open_pages(); -1: the column is new
  };

  explicit PassSeals(PagePool* pool) : open_pages_(pool) {}

  std::span<const Seal> all() const { return seals_; }                      // in order of token
  std::span<const PageId> open_pages() const { return open_pages_.ids(); }  // [Seal::open][lane]
  int kept_columns() const { return kept_; }                                // columns whose open pages are kept

  void reserve(int seals) { seals_.reserve(static_cast<std::size_t>(seals)); }
  // Adds a column whose pages are encoded from the start.
  void add(std::uint32_t column, TokenIndex first_reader) { seals_.push_back({column, first_reader, -1}); }
  // Adds an open column, and replaces its pages by the next fresh encoded ones.
  void add(std::uint32_t column, TokenIndex first_reader, TableColumns& columns, FreshPages& fresh) {
    const auto lanes = static_cast<std::size_t>(columns.pages().lanes());
    columns.pages().hand_over(column, open_pages_, static_cast<std::size_t>(kept_) * lanes);
    columns.replace_pages(column, fresh, true);
    seals_.push_back({column, first_reader, kept_++});
  }
  // Ends the pass: gives the open pages back.
  void clear() {
    seals_.clear();
    open_pages_.reset(0, open_pages_.size());
    kept_ = 0;
  }

  // `pages`: columns * lanes.
  void reserve_pages(std::size_t pages) { open_pages_.reserve(pages); }
  std::uint64_t allocated_bytes() const { return open_pages_.capacity() * sizeof(PageId); }

 private:
  std::vector<Seal> seals_;
  PageRefs open_pages_;
  int kept_ = 0;
};

}  // namespace kvasir
