#include "kv/attention_view.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvasir {

void AttentionView::build(const LaneGroup& group, std::span<const IdRange> hidden) {
  rows = static_cast<int>(hidden.size());
  frames = static_cast<int>(group.frames().size());
  columns.clear();
  partials.clear();
  slots.assign(hidden.size(), {});
  key_positions.resize(hidden.size());
  const TokenId first_row = group.next_id() - rows;

  std::vector<LaneGroup::Entry> live;
  std::uint64_t partial_group = 0;
  for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next) {
    for (int e = 0; e < column->entry_count; ++e) {
      const LaneGroup::Entry& entry = column->entries[static_cast<std::size_t>(e)];
      const std::uint64_t own_group = column->ordinal / kPartialEntries;
      if (partials.empty() || partials.back().frame != entry.frame || partial_group != own_group)
        partials.push_back({entry.frame, static_cast<int>(columns.size()), 0});
      partial_group = own_group;
      columns.push_back(column);
      live.push_back(entry);
      partials.back().end = static_cast<int>(columns.size());
    }
    for (TokenId id = std::max(first_row, column->first); id < column->first + column->used; ++id)
      slots[static_cast<std::size_t>(id - first_row)] = {column, static_cast<int>(id - column->first)};
  }

  masks.assign(hidden.size() * columns.size(), 0);
  query_positions.assign(static_cast<std::size_t>(frames) * hidden.size(), 0);
  const LaneGroup::Frame& newest = group.newest_frame();
  for (int r = 0; r < rows; ++r) {
    const TokenId id = first_row + r;
    const IdRange hide = hidden[static_cast<std::size_t>(r)];
    KVASIR_CHECK(hide.empty() || hide.end <= id);
    SlotMask* row = masks.data() + static_cast<std::size_t>(r) * columns.size();
    std::int64_t visible = 0;
    int frames_before = 0;  // frames with tokens before the hidden range
    for (std::size_t e = 0; e < columns.size(); ++e) {
      const LaneGroup::Column& column = *columns[e];
      const auto slot_of = [&](TokenId token) {
        return static_cast<int>(std::clamp<TokenId>(token - column.first, 0, column.used));
      };
      SlotMask mask = live[e].live & slot_range(0, slot_of(id + 1));
      if (!hide.empty()) {
        mask &= ~slot_range(slot_of(hide.begin), slot_of(hide.end));
        if ((mask & slot_range(0, slot_of(hide.begin))) != 0) frames_before = live[e].frame + 1;
      }
      row[e] = mask;
      visible += std::popcount(mask);
    }
    KVASIR_CHECK(frames_before < frames || frames_before == 0);
    const Position own = id + newest.rotation;  // what the row's own key is rotated by
    key_positions[static_cast<std::size_t>(r)] = own;
    for (int f = 0; f < frames; ++f) {
      // A frame behind the hidden range moves up together with the query; one before it does not.
      const LaneGroup::Frame& frame = group.frames()[static_cast<std::size_t>(f)];
      const Position position = f < frames_before ? visible - 1 : own + newest.origin;
      query_positions[static_cast<std::size_t>(f) * hidden.size() + static_cast<std::size_t>(r)] =
          position - frame.origin;
    }
  }
}

}  // namespace kvasir
