// What a lane group's table says, read token by token.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kv/kv_cache.h"

namespace kvasir::test {

struct LiveToken {
  TokenIndex id = 0;
  Position position = 0;
  int frame = 0;
  int slot = 0;
  const LaneGroup::Column* column = nullptr;
};

inline std::vector<LiveToken> live_tokens(const LaneGroup& group) {
  std::vector<LiveToken> tokens;
  for (int run = 0; run < group.runs(); ++run)
    for (const LaneGroup::Column* column = group.first_column(run); column != nullptr; column = column->next)
      for (int slot = 0; slot < 64; ++slot)
        for (int e = 0; e < column->entry_count; ++e) {
          const LaneGroup::Entry& entry = column->entries[static_cast<std::size_t>(e)];
          if ((entry.live >> slot & 1) == 0) continue;
          const LaneGroup::Frame& frame = group.frames()[static_cast<std::size_t>(entry.frame)];
          const Position position = group.stored_rotation(*column, slot, frame) + frame.origin;
          tokens.push_back({column->id(slot), position, entry.frame, slot, column});
        }
  std::stable_sort(tokens.begin(), tokens.end(), [](const LiveToken& a, const LiveToken& b) { return a.id < b.id; });
  return tokens;
}

inline std::vector<TokenIndex> retained_ids(const LaneGroup& group) {
  std::vector<TokenIndex> ids;
  for (const LiveToken& token : live_tokens(group)) ids.push_back(token.id);
  return ids;
}

// Everything that an operation could leave a trace in, as text.
inline std::string dump(const LaneGroup& group) {
  std::string text = fmt::format("next {} length {} columns {}\n", group.next_id(), group.length(), group.columns());
  for (const LaneGroup::Frame& frame : group.frames())
    text += fmt::format("frame {} {}\n", frame.origin, frame.rotation);
  for (int run = 0; run < group.runs(); ++run)
    for (const LaneGroup::Column* column = group.first_column(run); column != nullptr; column = column->next) {
      text += fmt::format("run {} column {} base {} first {} used {}:", run, column->ordinal, column->base,
                          column->first, column->used);
      for (int e = 0; e < column->entry_count; ++e)
        text += fmt::format(" {:x}/{}", column->entries[static_cast<std::size_t>(e)].live,
                            column->entries[static_cast<std::size_t>(e)].frame);
      for (const PageId page : column->pages) text += fmt::format(" p{}", static_cast<std::uint32_t>(page));
      for (int slot = 0; column->id_offset != nullptr && slot < column->used; ++slot)
        text += fmt::format(" {}", column->id(slot));
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
