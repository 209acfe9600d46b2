// What a page table says, read token by token.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "kv/kv_cache.h"

namespace kvasir::test {

struct LiveToken {
  TokenIndex id = 0;
  Position position = 0;
  int frame = 0;
  int slot = 0;
  std::uint32_t column = 0;
};

inline std::vector<LiveToken> live_tokens(const PageTable& table) {
  std::vector<LiveToken> tokens;
  for (std::size_t f = 0; f < table.frames().size(); ++f) {
    const PageTable::Frame& frame = table.frames()[f];
    for (const PageEntry& entry : table.entries_of(frame))
      for (int slot = 0; slot < 64; ++slot)
        if ((entry.live >> slot & 1) != 0)
          tokens.push_back({table.columns().index(entry.column, slot),
                            table.tokens().stored_rotation(entry.column, slot, frame) + frame.origin,
                            static_cast<int>(f), slot, entry.column});
  }
  std::stable_sort(tokens.begin(), tokens.end(), [](const LiveToken& a, const LiveToken& b) { return a.id < b.id; });
  return tokens;
}

inline std::vector<TokenIndex> retained_ids(const PageTable& table) {
  std::vector<TokenIndex> ids;
  for (const LiveToken& token : live_tokens(table)) ids.push_back(token.id);
  return ids;
}

// The columns of a run that entries refer to, oldest first.
inline std::vector<std::uint32_t> columns_of(const PageTable& table, int run = 0) {
  std::vector<std::uint32_t> columns;
  for (const PageTable::Frame& frame : table.frames())
    for (const PageEntry& entry : table.entries_of(frame))
      if (frame.run == run && (columns.empty() || columns.back() != entry.column)) columns.push_back(entry.column);
  return columns;
}

// Everything that an operation could leave a trace in, as text.
inline std::string dump(const PageTable& table) {
  std::string text = fmt::format("next {} length {} columns {} dead {}\n", table.next_index(), table.length(),
                                 table.columns().count(), table.tokens().dead_slots());
  for (const PageTable::Frame& frame : table.frames()) {
    text += fmt::format("frame {} {} run {} tokens {}:", frame.origin, frame.rotation, frame.run, frame.tokens);
    for (const PageEntry& entry : table.entries_of(frame)) {
      const PageTable::Column& column = table.columns()[entry.column];
      text += fmt::format(" [{} {:x} base {} first {} used {}", entry.ordinal, entry.live, column.base, column.first,
                          column.used);
      for (const PageId page : table.pages().of(entry.column))
        text += fmt::format(" p{}", static_cast<std::uint32_t>(page));
      for (int slot = 0; table.layout().lists && slot < column.used; ++slot)
        text += fmt::format(" {}", table.columns().index(entry.column, slot));
      text += ']';
    }
    text += '\n';
  }
  return text;
}

inline std::string dump(const PagePool& pool, const MemoryBudget& budget) {
  std::string text =
      fmt::format("used {} peak {} pages {} peak {}:", budget.used(), budget.peak(), pool.in_use(), pool.peak());
  for (std::uint64_t page = 0; page < pool.capacity(); ++page)
    text += fmt::format(" {}", pool.references(static_cast<PageId>(page)));
  return text;
}

}  // namespace kvasir::test
