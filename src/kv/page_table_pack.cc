// Compaction of lists whose pages are encoded. To encode a token again costs quality, so columns without enough dead
// slots or holes stay as they are, and the others are packed in groups of neighbours.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// A sealed column is packed if it has this many dead slots of 64, or its live ones form this many series of consecutive
// tokens. Levels are tried in turn. Then an eighth, a quarter or half of the columns are packed besides, where most
// frames begin; and then all columns from the first hole on.
struct PackLevel {
  int dead;
  int series;
};
constexpr PackLevel kLevels[] = {{32, 6}, {24, 5}, {16, 4}, {8, 3}};
constexpr int kWindows = static_cast<int>(std::size(kLevels));
constexpr int kAll = kWindows + 3;

// What becomes of a column.
enum : char { kStays, kBeginsGroup, kInGroup, kReleased };

}  // namespace

// Works on the columns that the pool's scratch has, oldest first. Every group is decoded once and its columns are
// written as wholes; the last one is padded with dead slots. A group with open columns reaches to the newest token and
// leaves an open column.
class PageTable::Packer {
 public:
  // `original`: the table has original positions afterwards.
  Packer(PageTable& table, bool original, int most_frames)
      : table_(table),
        scratch_(table.pool_->scratch()),
        order_(scratch_.columns),
        fate_(scratch_.fates),
        starts_(scratch_.starts),
        slots_(static_cast<int>(table.slots_)),
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
    // Closes the gaps between ordinals: entries whose ordinals are near are summed together.
    for (std::size_t i = 0; i < kept; ++i) table_.column_[order_[i]].ordinal = i;
    table_.runs_.front().next_ordinal = kept;
    table_.tail_.front() = order_.empty() ? kNone : order_.back();
    table_.original_ = original_;
    table_.entry_first_.clear();
    if (!original_) {
      KVASIR_CHECK(table_.rebuild_frames());
      return;
    }
    table_.runs_.front().entries.clear();
    table_.frames_.assign(1, {0, 0, table_.length_, 0, 0, 0});
    for (const std::uint32_t c : order_) {
      Column& column = table_.column_[c];
      column.entries = 0;
      table_.push_entry(table_.frames_.front(), {column.live, column.ordinal, c});
    }
  }

 private:
  // Calls visit(slot, count, rotation of the first) for the live slots of a column, in series whose keys are stored
  // rotated consecutively.
  template <class Visit>
  void for_each_series(std::uint32_t c, const Visit& visit) const {
    for (SlotMask left = table_.column_[c].live; left != 0;) {
      const int slot = std::countr_zero(left);
      int count = std::countr_one(left >> slot);
      if (table_.original_ && !original_)
        for (int next = 1; next < count; ++next)
          if (table_.index(c, slot + next) != table_.index(c, slot) + next) count = next;
      visit(slot, count, table_.original_ ? table_.index(c, slot) : table_.column_[c].base + slot);
      left &= ~slot_range(slot, slot + count);
    }
  }
  // With original positions, holes cost nothing.
  int series(std::uint32_t c) const {
    int count = 0;
    for_each_series(c, [&](int, int, Position) { ++count; });
    return original_ ? 1 : count;
  }
  int dead(std::uint32_t c) const { return table_.column_[c].used - std::popcount(table_.column_[c].live); }
  // Whether the column cannot stay: its keys are not rotated by their slots, or it would need too many entries.
  bool must_go(std::uint32_t c) const {
    if (original_) return false;
    int count = 0;
    bool scattered = false;
    Position base = 0;
    for_each_series(c, [&](int slot, int, Position rotation) {
      if (count++ == 0) base = rotation - slot;
      scattered = scattered || rotation - slot != base;
    });
    return scattered || count > table_.most_column_entries();
  }

  // The frames that begin in each column, not counting the first of all.
  void count_starts() {
    starts_.assign(order_.size(), 0);
    Position expected = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      bool first = i == 0;
      for_each_series(order_[i], [&](int, int count, Position rotation) {
        starts_[i] += !first && !original_ && rotation != expected;
        first = false;
        expected = rotation + count;
      });
    }
  }

  // Makes those of so many sealed columns side by side a group in which most frames begin.
  void mark_densest(std::size_t columns) {
    std::size_t sealed = 0;
    while (sealed < order_.size() && table_.column_[order_[sealed]].sealed) ++sealed;
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
      const bool many = dead(c) * 64 >= std::max(least.dead * slots_, 64) || series(c) >= least.series;
      const bool follows_open = i > 0 && !table_.column_[order_[i - 1]].sealed;
      if (level == kAll) {
        on = on || many || starts_[i] > 0 || must_go(c);
      } else if (table_.column_[c].sealed) {
        on = many || must_go(c);
      } else {
        // All columns behind an open one are open too. They are packed by themselves, which encodes nothing.
        on = (on && follows_open) || many || must_go(c);
      }
      const bool joins = level == kAll || table_.column_[c].sealed || follows_open;
      if (on) fate_[i] = i > 0 && fate_[i - 1] != kStays && joins ? kInGroup : kBeginsGroup;
    }
    if (level == kAll) return;
    // A group that would fill as many columns as it has is none: columns with many holes are packed alone.
    for (std::size_t begin = 0; begin < order_.size();) {
      const std::size_t end = group_end(begin);
      int live = 0;
      for (std::size_t i = begin; i < end; ++i) live += std::popcount(table_.column_[order_[i]].live);
      const bool sealed = table_.column_[order_[end - 1]].sealed;
      if (fate_[begin] != kStays && sealed && static_cast<std::size_t>((live + slots_ - 1) / slots_) == end - begin)
        for (std::size_t i = begin; i < end; ++i)
          fate_[i] = series(order_[i]) >= least.series || must_go(order_[i]) ? kBeginsGroup : kStays;
      begin = end;
    }
    if (level >= kWindows) mark_densest(((order_.size() - 1) >> (kAll - level)) + 1);
  }

  // Whether few slots would be dead, and few frames there.
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
        for_each_series(order_[i], [&](int, int count, Position rotation) {
          if (live == 0) first = rotation;
          live += count;
          if (fate_[begin] == kStays) place(rotation, count);
        });
      if (fate_[begin] == kStays) {
        written += table_.column_[order_[begin]].used;
      } else {
        place(first, live);
        written += table_.column_[order_[end - 1]].sealed ? (live + slots_ - 1) / slots_ * slots_ : live;
      }
      begin = end;
    }
    return (written - table_.length_) * 16 <= written * 3 && (original_ || frames <= most_frames_);
  }

  // A column that stays. Where positions come to be compact, its keys are rotated by indices, which are consecutive.
  void keep(std::uint32_t c) {
    Column& column = table_.column_[c];
    const int slot = std::countr_zero(column.live);
    if (table_.original_ && !original_) column.base = table_.index(c, slot) - slot;
  }

  void pack(std::size_t begin, std::size_t end) {
    const auto slots = static_cast<std::size_t>(slots_);
    scratch_.indices.clear();
    scratch_.encodings.clear();
    scratch_.moves.clear();
    Position rotation = 0;  // of the first token
    std::size_t first_changed = end - begin;
    // Calls visit(from, slot, position in the group, count, shift) for series that stay together.
    const auto for_each_part = [&](const auto& visit) {
      std::size_t position = 0;
      for (std::size_t i = begin; i < end; ++i)
        for_each_series(order_[i], [&](int slot, int count, Position at) {
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
    };
    for_each_part([&](std::size_t i, int slot, std::size_t position, int count, Position shift) {
      for (int s = slot; s < slot + count; ++s) {
        scratch_.indices.push_back(table_.index(order_[i], s));
        scratch_.encodings.push_back(table_.encodings(order_[i])[s]);
      }
      const bool stays =
          begin + position / slots == i && position % slots == static_cast<std::size_t>(slot) && shift == 0;
      if (!stays) first_changed = std::min(first_changed, position / slots);
    });
    const std::size_t tokens = scratch_.indices.size();
    const std::size_t kept = (tokens + slots - 1) / slots;
    // Columns [first_opened, end_opened) of the group were sealed and come to be open.
    std::size_t first_opened = kept;
    std::size_t end_opened = kept;
    const bool is_open = !table_.column_[order_[end - 1]].sealed;
    for (std::size_t i = kept; is_open && i > 0; --i) {
      const TokenIndex newest = scratch_.indices[std::min(i * slots, tokens) - 1];
      if (i * slots <= tokens && table_.first_reader(newest) <= table_.next_index_) break;
      first_opened = i - 1;
      if (!table_.column_[order_[begin + i - 1]].sealed) end_opened = i - 1;
    }
    first_opened = std::min(first_opened, end_opened);
    const std::size_t opened = end_opened - first_opened;
    if (opened > 0) first_changed = std::min(first_changed, first_opened);
    const auto lanes = static_cast<std::size_t>(table_.lanes_);
    PageRefs fresh(table_.pool_);
    // The pages of the open column that is given back, if there is no other to open.
    const bool takes_tail = opened == 1 && table_.layout_.recent == 0;
    const std::uint32_t last = order_[end - 1];
    if (takes_tail) {
      table_.own_column(last);
    } else if (opened > 0) {
      KVASIR_CHECK(fresh.try_allocate(opened * lanes, table_.layout_.classes.open));
    }
    std::size_t owned = end;
    for_each_part([&](std::size_t i, int slot, std::size_t position, int count, Position shift) {
      const std::size_t to = position / slots;
      if (to < first_changed) return;
      const bool is_opened = to >= first_opened && to < end_opened;
      if (!is_opened && std::exchange(owned, to) != to) table_.own_column(order_[begin + to]);
      const PageId* pages = !is_opened   ? table_.pages_of(order_[begin + to]).data()
                            : takes_tail ? table_.pages_of(last).data()
                                         : fresh.ids().data() + (to - first_opened) * lanes;
      scratch_.moves.push_back({table_.pages_of(order_[i]).data(), slot_range(slot, slot + count), pages,
                                static_cast<int>(position % slots), shift});
      table_.slots_moved_ += static_cast<std::uint64_t>(count);
    });
    if (table_.pool_->store() != nullptr && !scratch_.moves.empty())
      table_.pool_->store()->repack(table_.lanes_, scratch_.moves);
    for (std::size_t i = first_opened; i < end_opened; ++i) {
      const std::uint32_t c = order_[begin + i];
      table_.column_[c].sealed = false;
      if (takes_tail) {
        table_.pages_.exchange(table_.first_page(c), table_.first_page(last), lanes);
        table_.column_[last].sealed = true;
      } else {
        table_.pages_.take(table_.first_page(c), fresh, (i - first_opened) * lanes, lanes);
      }
    }
    finish(begin, end, first_changed, original_ ? 0 : rotation);
  }

  // Columns of the group from `changed` on have new tokens.
  void finish(std::size_t begin, std::size_t end, std::size_t changed, Position rotation) {
    const auto slots = static_cast<std::size_t>(slots_);
    const std::size_t tokens = scratch_.indices.size();
    for (std::size_t i = 0; begin + i < end; ++i) {
      const std::uint32_t c = order_[begin + i];
      Column& column = table_.column_[c];
      const std::size_t first = i * slots;
      if (first >= tokens) {
        table_.written_ -= column.used;
        --table_.runs_.front().columns;
        table_.release_column(c);
        fate_[begin + i] = kReleased;
        continue;
      }
      if (i < changed) {
        keep(c);
        continue;
      }
      const std::size_t count = std::min(tokens - first, slots);
      table_.written_ -= column.used;
      column.first = scratch_.indices[first];
      column.base = rotation + static_cast<Position>(first);
      column.used = static_cast<std::int32_t>(column.sealed ? slots : count);
      column.live = slot_range(0, static_cast<int>(count));
      table_.written_ += column.used;
      for (std::size_t s = 0; s < static_cast<std::size_t>(column.used); ++s) {
        const std::size_t token = first + std::min(s, count - 1);  // what pads the column has the last one's index
        table_.offset(c)[s] = static_cast<std::uint32_t>(scratch_.indices[token] - column.first);
        table_.encodings(c)[s] = s < count ? scratch_.encodings[token] : 0;
      }
      if (column.sealed) table_.count_encodings(c, column.live);
    }
  }

  PageTable& table_;
  TableScratch& scratch_;
  std::vector<std::uint32_t>& order_;
  std::vector<char>& fate_;
  std::vector<int>& starts_;
  int slots_;
  bool original_;
  int most_frames_;
};

void PageTable::pack_columns(bool original, int most_frames) {
  Packer(*this, original, most_frames).run();
}

}  // namespace kvasir
