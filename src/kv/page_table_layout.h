// How a page table holds its tokens: which may leave, the positions of their keys, and the classes of their pages.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/page_pool.h"

namespace kvasir {

struct PageTableLayout {
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxColumnEntries = 4;
  // The same of lists with one run whose pages are encoded: a hole costs less there than to encode tokens again.
  static constexpr int kMaxEncodedFrames = 64;
  static constexpr int kMaxEncodedColumnEntries = 8;

  bool lists = false;                        // any tokens may leave; otherwise ranges
  bool original_positions = false;           // REQUIRES: lists, and no other run
  std::vector<std::int64_t> run_capacities;  // tokens that runs 1, 2, ... hold. REQUIRES: lists if not empty
  // Ranges: rows attend to keys less than this many positions before them, in every layer; 0: to all.
  Position window = 0;
  // Ranges: first tokens of the text that come nearer to later tokens as what lies behind them is dropped. Their
  // pages are never given back.
  TokenIndex sinks = 0;
  // Of its pages. Different: see Sealing in page_table.h.
  PageClasses classes;
  int recent = 0;

  int runs() const { return 1 + static_cast<int>(run_capacities.size()); }
  bool encoded() const { return classes.sealed != classes.open; }
  // Lists whose compaction leaves most columns as they are.
  bool packs() const { return encoded() && lists && run_capacities.empty(); }
  int most_frames() const { return packs() ? kMaxEncodedFrames : kMaxFrames; }
  int most_column_entries() const { return packs() ? kMaxEncodedColumnEntries : kMaxColumnEntries; }
  // Columns of run 0 that are open at once, where pages are encoded.
  int open_capacity(int slots) const { return encoded() ? recent / slots + 2 : 0; }
  // The token from which on a column of run 0 whose newest token will be `newest` is read encoded.
  TokenIndex first_reader(TokenIndex newest) const { return newest + 1 + recent; }
};

}  // namespace kvasir
