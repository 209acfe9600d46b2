// Compaction of lists of one run. Where pages are encoded, encoding a token again costs quality. So columns with few
// dead slots and holes stay as they are; the others are packed in groups of neighbours.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// A sealed column is packed if it has this many dead slots of 64, or its live slots form this many series of
// consecutive tokens. The levels are tried in turn. The next three levels also pack an eighth, a quarter or half of the
// columns, where most frames begin. The last level packs all columns from the first hole on.
struct PackLevel {
  int dead;
  int series;
};
constexpr PackLevel kLevels[] = {{32, 6}, {24, 5}, {16, 4}, {8, 3}};
constexpr int kWindows = static_cast<int>(std::size(kLevels));
constexpr int kAll = kWindows + 3;

// What becomes of a column.
enum : char { kStays, kBeginsGroup, kInGroup, kReleased };

// The live slots of columns, in series of slots whose keys have consecutive stored rotations.
class SlotSeries {
 public:
  // `original`: the tokens have original positions afterwards.
  SlotSeries(const TableTokens& tokens, const std::vector<std::uint32_t>& order, bool original)
      : tokens_(tokens), order_(order), original_(original) {}

  // Calls visit(slot, count, rotation of the first) for each series of a column.
  template <class Visit>
  void for_each(std::uint32_t c, const Visit& visit) const {
    const TableColumns& columns = tokens_.columns;
    for (SlotMask left = columns[c].live; left != 0;) {
      const int slot = std::countr_zero(left);
      int count = std::countr_one(left >> slot);
      if (tokens_.original && !original_)
        for (int next = 1; next < count; ++next)
          if (columns.index(c, slot + next) != columns.index(c, slot) + next) count = next;
      visit(slot, count, tokens_.original ? columns.index(c, slot) : columns[c].base + slot);
      left &= ~slot_range(slot, slot + count);
    }
  }

  // Moves the slots of order[begin] to order[end - 1] together: calls visit(i, slot, position, count, shift) for each
  // part of a series that one column receives. `position` counts slots from order[begin] on. Returns the stored
  // rotation of the first key.
  template <class Visit>
  Position for_each_part(std::size_t begin, std::size_t end, const Visit& visit) const {
    const auto slots = static_cast<std::size_t>(tokens_.columns.slots());
    Position rotation = 0;  // of the first
    std::size_t position = 0;
    for (std::size_t i = begin; i < end; ++i)
      for_each(order_[i], [&](int slot, int count, Position at) {
        if (position == 0) rotation = at;
        while (count > 0) {
          const int part = std::min(count, static_cast<int>(slots - position % slots));
          visit(i, slot, position, part, original_ ? 0 : rotation + static_cast<Position>(position) - at);
          position += static_cast<std::size_t>(part);
          slot += part;
          at += part;
          count -= part;
        }
      });
    return rotation;
  }

 private:
  const TableTokens& tokens_;
  const std::vector<std::uint32_t>& order_;
  bool original_;
};

// Packs the columns in the pool's scratch, which are oldest first. Every group is decoded once and its columns are
// written as wholes; the last column is padded with dead slots. A group with open columns extends to the newest token
// and ends with an open column.
class Packer {
 public:
  // `original`: the table has original positions afterwards.
  Packer(TableTokens& tokens, bool original, int most_frames)
      : tokens_(tokens),
        columns_(tokens.columns),
        scratch_(columns_.pages().pool().scratch()),
        order_(scratch_.columns),
        fate_(scratch_.fates),
        starts_(scratch_.starts),
        series_(tokens, order_, original),
        slots_(columns_.slots()),
        original_(original),
        most_frames_(most_frames) {}

  void run() {
    count_starts();
    for (int level = 0;; ++level) {
      mark(level);
      if (level == kAll || is_good()) break;
    }
    for (std::size_t begin = 0; begin < order_.size();) {
      const std::size_t end = group_end(begin);
      if (fate_[begin] == kStays) {
        keep(order_[begin]);
      } else {
        pack(begin, end);
      }
      begin = end;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (fate_[i] != kReleased) order_[kept++] = order_[i];
    order_.resize(kept);
    // Closes the gaps between ordinals: attention sums entries with near ordinals together.
    for (std::size_t i = 0; i < kept; ++i) columns_[order_[i]].ordinal = i;
    tokens_.runs.front().next_ordinal = kept;
    tokens_.runs.front().tail = order_.empty() ? TableTokens::kNone : order_.back();
    tokens_.original = original_;
    if (original_) {
      tokens_.lay_out_whole(order_, 0);
    } else {
      KVASIR_CHECK(tokens_.lay_out(order_));
    }
  }

 private:
  // With original positions, holes cost nothing.
  int count_series(std::uint32_t c) const {
    int count = 0;
    series_.for_each(c, [&](int, int, Position) { ++count; });
    return original_ ? 1 : count;
  }
  int dead(std::uint32_t c) const { return columns_[c].used - std::popcount(columns_[c].live); }
  // Whether the column cannot stay: its keys' rotations do not follow its slots, or it would need too many entries.
  bool must_go(std::uint32_t c) const {
    if (original_) return false;
    int count = 0;
    bool scattered = false;
    Position base = 0;
    series_.for_each(c, [&](int slot, int, Position rotation) {
      if (count++ == 0) base = rotation - slot;
      scattered = scattered || rotation - slot != base;
    });
    return scattered || count > columns_.layout().most_column_entries();
  }

  // Counts the frames that begin in each column, except the very first frame.
  void count_starts() {
    starts_.assign(order_.size(), 0);
    Position expected = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      bool first = i == 0;
      series_.for_each(order_[i], [&](int, int count, Position rotation) {
        starts_[i] += !first && !original_ && rotation != expected;
        first = false;
        expected = rotation + count;
      });
    }
  }

  // Makes a group of `columns` adjacent sealed columns: those in which most frames begin.
  void mark_densest(std::size_t columns) {
    std::size_t sealed = 0;
    while (sealed < order_.size() && columns_[order_[sealed]].sealed) ++sealed;
    columns = std::min(columns, sealed);
    if (columns == 0) return;
    int inside = 0, most = -1;
    std::size_t best = 0;
    for (std::size_t i = 0; i < sealed; ++i) {
      inside += starts_[i] - (i >= columns ? starts_[i - columns] : 0);
      if (i + 1 >= columns && inside > most) {
        most = inside;
        best = i + 1 - columns;
      }
    }
    for (std::size_t i = best; i < best + columns; ++i) fate_[i] = i == best ? kBeginsGroup : kInGroup;
    if (const std::size_t next = best + columns; next < fate_.size() && fate_[next] == kInGroup)
      fate_[next] = kBeginsGroup;
  }

  std::size_t group_end(std::size_t begin) const {
    std::size_t end = begin + 1;
    if (fate_[begin] != kStays)
      while (end < fate_.size() && fate_[end] == kInGroup) ++end;
    return end;
  }

  void mark(int level) {
    const PackLevel least = level == kAll ? PackLevel{0, 2} : kLevels[std::min(level, kWindows - 1)];
    fate_.assign(order_.size(), kStays);
    bool on = false;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const std::uint32_t c = order_[i];
      const bool many = dead(c) * 64 >= std::max(least.dead * slots_, 64) || count_series(c) >= least.series;
      const bool follows_open = i > 0 && !columns_[order_[i - 1]].sealed;
      if (level == kAll) {
        on = on || many || starts_[i] > 0 || must_go(c);
      } else if (columns_[c].sealed) {
        on = many || must_go(c);
      } else {
        // All columns behind an open one are open too. They form a group of their own, so packing encodes nothing.
        on = (on && follows_open) || many || must_go(c);
      }
      const bool joins = level == kAll || columns_[c].sealed || follows_open;
      if (on) fate_[i] = i > 0 && fate_[i - 1] != kStays && joins ? kInGroup : kBeginsGroup;
    }
    if (level == kAll) return;
    // A group that would free no column is dissolved: only its columns with many holes are packed, each alone.
    for (std::size_t begin = 0; begin < order_.size();) {
      const std::size_t end = group_end(begin);
      int live = 0;
      for (std::size_t i = begin; i < end; ++i) live += std::popcount(columns_[order_[i]].live);
      const bool sealed = columns_[order_[end - 1]].sealed;
      if (fate_[begin] != kStays && sealed && static_cast<std::size_t>((live + slots_ - 1) / slots_) == end - begin)
        for (std::size_t i = begin; i < end; ++i)
          fate_[i] = count_series(order_[i]) >= least.series || must_go(order_[i]) ? kBeginsGroup : kStays;
      begin = end;
    }
    if (level >= kWindows) mark_densest(((order_.size() - 1) >> (kAll - level)) + 1);
  }

  // Whether the marked groups would leave few dead slots and few frames.
  bool is_good() const {
    std::int64_t written = 0;
    int frames = 0;
    Position position = 0;
    Position origin = 0;
    const auto place = [&](Position rotation, std::int64_t count) {
      if (frames == 0 || position - rotation != origin) ++frames;
      origin = position - rotation;
      position += count;
    };
    for (std::size_t begin = 0; begin < order_.size();) {
      const std::size_t end = group_end(begin);
      Position first = 0;
      std::int64_t live = 0;
      for (std::size_t i = begin; i < end; ++i)
        series_.for_each(order_[i], [&](int, int count, Position rotation) {
          if (live == 0) first = rotation;
          live += count;
          if (fate_[begin] == kStays) place(rotation, count);
        });
      if (fate_[begin] == kStays) {
        written += columns_[order_[begin]].used;
      } else {
        place(first, live);
        written += columns_[order_[end - 1]].sealed ? (live + slots_ - 1) / slots_ * slots_ : live;
      }
      begin = end;
    }
    return (written - tokens_.length) * 16 <= written * 3 && (original_ || frames <= most_frames_);
  }

  // Keeps a column. If original positions become compact, its keys stay rotated by their consecutive indices.
  void keep(std::uint32_t c) {
    TableColumns::Column& column = columns_[c];
    const int slot = std::countr_zero(column.live);
    if (tokens_.original && !original_) column.base = columns_.index(c, slot) - slot;
  }

  void pack(std::size_t begin, std::size_t end) {
    const auto slots = static_cast<std::size_t>(slots_);
    scratch_.indices.clear();
    scratch_.encodings.clear();
    scratch_.moves.clear();
    std::size_t first_changed = end - begin;
    const auto note = [&](std::size_t i, int slot, std::size_t position, int count, Position shift) {
      for (int s = slot; s < slot + count; ++s) {
        scratch_.indices.push_back(columns_.index(order_[i], s));
        scratch_.encodings.push_back(columns_.encodings(order_[i])[static_cast<std::size_t>(s)]);
      }
      const bool stays =
          begin + position / slots == i && position % slots == static_cast<std::size_t>(slot) && shift == 0;
      if (!stays) first_changed = std::min(first_changed, position / slots);
    };
    const Position rotation = series_.for_each_part(begin, end, note);
    const std::size_t tokens = scratch_.indices.size();
    const std::size_t kept = (tokens + slots - 1) / slots;
    // Columns [first_opened, end_opened) of the group were sealed and become open.
    std::size_t first_opened = kept;
    std::size_t end_opened = kept;
    const bool is_open = !columns_[order_[end - 1]].sealed;
    for (std::size_t i = kept; is_open && i > 0; --i) {
      const TokenIndex newest = scratch_.indices[std::min(i * slots, tokens) - 1];
      if (i * slots <= tokens && columns_.layout().first_reader(newest) <= tokens_.next_index) break;
      first_opened = i - 1;
      if (!columns_[order_[begin + i - 1]].sealed) end_opened = i - 1;
    }
    first_opened = std::min(first_opened, end_opened);
    const std::size_t opened = end_opened - first_opened;
    if (opened > 0) first_changed = std::min(first_changed, first_opened);
    FreshPages fresh = columns_.pages().fresh();
    // A single column to open takes over the pages of the open column that is given back.
    const bool takes_tail = opened == 1 && columns_.layout().recent == 0;
    const std::uint32_t last = order_[end - 1];
    if (takes_tail) {
      columns_.own(last);
    } else if (opened > 0) {
      KVASIR_CHECK(fresh.try_allocate(opened, 0));
    }
    std::size_t owned = end;
    series_.for_each_part(begin, end, [&](std::size_t i, int slot, std::size_t position, int count, Position shift) {
      const std::size_t to = position / slots;
      if (to < first_changed) return;
      const bool is_opened = to >= first_opened && to < end_opened;
      if (!is_opened && std::exchange(owned, to) != to) columns_.own(order_[begin + to]);
      const PageId* pages = !is_opened   ? columns_.pages().of(order_[begin + to]).data()
                            : takes_tail ? columns_.pages().of(last).data()
                                         : fresh.next(false, to - first_opened).data();
      scratch_.moves.push_back({columns_.pages().of(order_[i]).data(), slot_range(slot, slot + count), pages,
                                static_cast<int>(position % slots), shift});
    });
    columns_.pages().move(scratch_.moves, true);
    for (std::size_t i = first_opened; i < end_opened; ++i) {
      if (takes_tail) {
        columns_.exchange_pages(order_[begin + i], last);
      } else {
        columns_.replace_pages(order_[begin + i], fresh, false);
      }
    }
    finish(begin, end, first_changed, original_ ? 0 : rotation);
  }

  // Updates the columns of the group. Those from `changed` on have new tokens.
  void finish(std::size_t begin, std::size_t end, std::size_t changed, Position rotation) {
    const auto slots = static_cast<std::size_t>(slots_);
    const std::size_t tokens = scratch_.indices.size();
    for (std::size_t i = 0; begin + i < end; ++i) {
      const std::uint32_t c = order_[begin + i];
      TableColumns::Column& column = columns_[c];
      const std::size_t first = i * slots;
      if (first >= tokens) {
        tokens_.written -= column.used;
        --tokens_.runs.front().columns;
        columns_.release(c);
        fate_[begin + i] = kReleased;
        continue;
      }
      if (i < changed) {
        keep(c);
        continue;
      }
      const std::size_t count = std::min(tokens - first, slots);
      tokens_.written -= column.used;
      column.first = scratch_.indices[first];
      column.base = rotation + static_cast<Position>(first);
      column.used = static_cast<std::int32_t>(column.sealed ? slots : count);
      column.live = slot_range(0, static_cast<int>(count));
      tokens_.written += column.used;
      for (std::size_t s = 0; s < static_cast<std::size_t>(column.used); ++s) {
        const std::size_t token = first + std::min(s, count - 1);  // padding slots have the last token's index
        columns_.offsets(c)[s] = static_cast<std::uint32_t>(scratch_.indices[token] - column.first);
        columns_.encodings(c)[s] = s < count ? scratch_.encodings[token] : 0;
      }
      if (column.sealed) columns_.count_encodings(c, column.live);
    }
  }

  TableTokens& tokens_;
  TableColumns& columns_;
  TableScratch& scratch_;
  std::vector<std::uint32_t>& order_;
  std::vector<char>& fate_;
  std::vector<int>& starts_;
  SlotSeries series_;
  int slots_;
  bool original_;
  int most_frames_;
};

// Moves the live slots to the front of the columns in the scratch, in place: every slot moves towards the front or
// stays. With compact positions the keys become rotated by their new position plus one offset, that of the oldest
// token. So keys in front of the first hole do not change; keys behind it are copied anyway. Long-lived tokens in front
// are thus not rotated again and again, with a rounding of 16-bit keys each time.
class Compactor {
 public:
  // `original`: the table has original positions afterwards.
  Compactor(TableTokens& tokens, bool original)
      : tokens_(tokens),
        columns_(tokens.columns),
        scratch_(columns_.pages().pool().scratch()),
        order_(scratch_.columns),
        series_(tokens, order_, original),
        original_(original) {}

  void run() {
    const Position offset = move_slots();
    tokens_.original = original_;
    TableTokens::Run& run = tokens_.runs.front();
    run.columns = 0;
    run.next_ordinal = 0;
    run.tail = TableTokens::kNone;
    tokens_.written = 0;
    const std::span<const TokenIndex> indices = scratch_.indices;
    std::size_t kept = 0;
    for (const std::uint32_t c : order_) {
      const std::size_t first = kept * static_cast<std::size_t>(columns_.slots());
      if (first >= indices.size()) {
        columns_.release(c);
        continue;
      }
      ++kept;
      tokens_.start_column(c, 0, indices[first], offset + static_cast<Position>(first));
      TableColumns::Column& column = columns_[c];
      column.used = static_cast<std::int32_t>(std::min(indices.size() - first, std::size_t(columns_.slots())));
      column.live = slot_range(0, column.used);
      std::ranges::transform(indices.subspan(first, static_cast<std::size_t>(column.used)), columns_.offsets(c).begin(),
                             [&](TokenIndex token) { return static_cast<std::uint32_t>(token - column.first); });
      tokens_.written += column.used;
    }
    order_.resize(kept);
    tokens_.lay_out_whole(order_, -offset);
  }

 private:
  // Returns the offset, and leaves the indices of the tokens in the scratch.
  Position move_slots() {
    scratch_.indices.clear();
    scratch_.moves.clear();
    const auto slots = static_cast<std::size_t>(columns_.slots());
    std::size_t owned = order_.size();
    const Position first = series_.for_each_part(
        0, order_.size(), [&](std::size_t i, int slot, std::size_t position, int count, Position shift) {
          const std::uint32_t from = order_[i];
          for (int s = slot; s < slot + count; ++s) scratch_.indices.push_back(columns_.index(from, s));
          const std::size_t to = position / slots;
          const auto to_slot = static_cast<int>(position % slots);
          if (to == i && to_slot == slot && shift == 0) return;
          if (std::exchange(owned, to) != to) columns_.own(order_[to]);
          const ColumnPages& pages = columns_.pages();
          add_move(scratch_.moves, {pages.of(from).data(), slot_range(slot, slot + count), pages.of(order_[to]).data(),
                                    to_slot, shift});
        });
    columns_.pages().move(scratch_.moves);
    return original_ ? 0 : first;
  }

  TableTokens& tokens_;
  TableColumns& columns_;
  TableScratch& scratch_;
  std::vector<std::uint32_t>& order_;
  SlotSeries series_;
  bool original_;
};

}  // namespace

void PageTable::pack(bool original, int most_frames) {
  if (layout().packs()) {
    Packer(tokens_, original, most_frames).run();
  } else {
    Compactor(tokens_, original).run();
  }
}

}  // namespace kvasir
