#include "kv/attention_view.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace kvasir {

void AttentionView::build(const LaneGroup& group, std::span<const IndexRange> hidden, Position window) {
  rows = static_cast<int>(hidden.size());
  retained_before = 0;
  frames = static_cast<int>(group.frames().size());
  columns.clear();
  partials.clear();
  slots.assign(hidden.size(), {});
  key_positions.resize(hidden.size());
  const TokenIndex first_row = group.next_id() - rows;

  std::vector<LaneGroup::Entry> live;
  std::uint64_t partial_group = 0;
  const auto add = [&](const LaneGroup::Column* column, const LaneGroup::Entry& entry) {
    const std::uint64_t own_group = column->ordinal / kPartialEntries;
    if (partials.empty() || partials.back().frame != entry.frame || partial_group != own_group)
      partials.push_back({entry.frame, static_cast<int>(columns.size()), 0});
    partial_group = own_group;
    columns.push_back(column);
    live.push_back(entry);
    partials.back().end = static_cast<int>(columns.size());
  };
  if (group.runs() == 1) {
    for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next)
      for (int e = 0; e < column->entry_count; ++e) add(column, column->entries[static_cast<std::size_t>(e)]);
  } else {
    // Frames are in order of id, runs are not.
    for (int f = 0; f < frames; ++f)
      for (const LaneGroup::Column* column = group.first_column(group.frames()[static_cast<std::size_t>(f)].run);
           column != nullptr; column = column->next)
        for (int e = 0; e < column->entry_count; ++e)
          if (column->entries[static_cast<std::size_t>(e)].frame == f)
            add(column, column->entries[static_cast<std::size_t>(e)]);
  }
  for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next) {
    // The newest tokens fill the last slots of the last columns.
    for (int slot = column->used - 1; slot >= 0 && column->id(slot) >= first_row; --slot)
      slots[static_cast<std::size_t>(column->id(slot) - first_row)] = {column, slot};
  }

  masks.assign(hidden.size() * columns.size(), 0);
  query_positions.assign(static_cast<std::size_t>(frames) * hidden.size(), 0);
  const LaneGroup::Frame& newest = group.newest_frame();
  for (int r = 0; r < rows; ++r) {
    const TokenIndex id = first_row + r;
    const IndexRange hide = hidden[static_cast<std::size_t>(r)];
    KVASIR_CHECK(hide.empty() || hide.end <= id);
    SlotMask* row = masks.data() + static_cast<std::size_t>(r) * columns.size();
    std::int64_t visible = 0;
    int frames_before = 0;  // frames with tokens before the hidden range
    for (std::size_t e = 0; e < columns.size(); ++e) {
      const LaneGroup::Column& column = *columns[e];
      SlotMask mask = live[e].live;
      if (column.id(column.used - 1) > id) mask &= column.slots_of(0, id + 1);
      if (!hide.empty()) {
        mask &= ~column.slots_of(hide.begin, hide.end);
        if ((mask & column.slots_of(0, hide.begin)) != 0) frames_before = live[e].frame + 1;
      }
      row[e] = mask;
      visible += std::popcount(mask);
    }
    KVASIR_CHECK(frames_before < frames || frames_before == 0);
    const RowSlot& place = slots[static_cast<std::size_t>(r)];
    const Position own = group.stored_rotation(*place.column, place.slot, newest);
    if (r == 0) retained_before = visible - 1;
    key_positions[static_cast<std::size_t>(r)] = own;
    for (int f = 0; f < frames; ++f) {
      // A frame behind the hidden range moves up together with the query; one before it does not.
      const LaneGroup::Frame& frame = group.frames()[static_cast<std::size_t>(f)];
      const Position position = f < frames_before ? visible - 1 : own + newest.origin;
      query_positions[static_cast<std::size_t>(f) * hidden.size() + static_cast<std::size_t>(r)] =
          position - frame.origin;
    }
  }
  unwindowed_masks.clear();
  if (window > 0) apply_window(group, live, window);
}

void AttentionView::apply_window(const LaneGroup& group, std::span<const LaneGroup::Entry> entries, Position window) {
  unwindowed_masks = masks;
  for (std::size_t e = 0; e < columns.size(); ++e) {
    const int frame = entries[e].frame;
    Position rotations[64];
    Position first = std::numeric_limits<Position>::max();
    Position last = std::numeric_limits<Position>::min();
    for (SlotMask left = entries[e].live; left != 0; left &= left - 1) {
      const int slot = std::countr_zero(left);
      rotations[slot] = group.stored_rotation(*columns[e], slot, group.frames()[static_cast<std::size_t>(frame)]);
      first = std::min(first, rotations[slot]);
      last = std::max(last, rotations[slot]);
    }
    for (int r = 0; r < rows; ++r) {
      SlotMask& mask = masks[static_cast<std::size_t>(r) * columns.size() + e];
      if (mask == 0 || query_position(frame, r) - first < window) continue;
      if (query_position(frame, r) - last >= window) {
        mask = 0;
        continue;
      }
      for (SlotMask left = mask; left != 0; left &= left - 1)
        if (query_position(frame, r) - rotations[std::countr_zero(left)] >= window) mask &= ~(left & -left);
    }
  }
}

}  // namespace kvasir
