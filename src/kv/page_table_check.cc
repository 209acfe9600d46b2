// Checks what must hold of a page table at all times.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

class Soundness {
 public:
  explicit Soundness(const TableTokens& tokens)
      : t_(tokens),
        columns_(tokens.columns),
        layout_(tokens.layout()),
        slots_(columns_.slots()),
        entries_of_column_(columns_.handles(), 0),
        live_of_column_(columns_.handles(), 0) {}

  // Whether all of it holds. Called once.
  bool holds() {
    return given_back_is_sound() && entries_are_sound() && columns_are_counted() && columns_are_sound() &&
           frames_are_sound() && tails_are_sound() && positions_are_sound();
  }

 private:
  bool given_back_is_sound() const {
    if (t_.given_back.end < t_.given_back.begin || t_.given_back.begin % slots_ != 0 ||
        t_.given_back.end % slots_ != 0 || t_.given_back.begin < 0 || t_.given_back.end > t_.next_index ||
        ((layout_.lists || t_.given_back.empty()) && t_.given_back.end != 0))
      return false;
    // Neither sinks nor keys that the next token attends to were given back.
    return t_.given_back.empty() ||
           (t_.given_back.begin >= layout_.sinks && t_.given_back.begin - layout_.sinks < slots_ &&
            t_.given_back.end <= t_.next_index - layout_.window + 1);
  }

  // Whether entries lie within their runs and hold as many tokens as their frames say. Collects the tokens.
  bool entries_are_sound() {
    std::int64_t retained = 0;       // tokens of the frames so far
    std::int64_t without_pages = 0;  // of `retained`
    if (t_.frames.empty() || t_.frames.size() > static_cast<std::size_t>(layout_.most_frames()) ||
        t_.frames.back().run != 0)
      return false;
    const std::vector<PageEntry>& entered = t_.runs.front().entries;
    if (t_.entry_first.size() != (t_.original ? entered.size() : 0)) return false;
    for (std::size_t e = 0; e < t_.entry_first.size(); ++e)
      if (t_.entry_first[e] != columns_[entered[e].column].first) return false;
    std::vector<std::uint32_t> reached(t_.runs.size(), 0);  // entries of each run, frame by frame
    for (const TableTokens::Frame& frame : t_.frames) {
      const auto r = static_cast<std::size_t>(frame.run);
      if (frame.begin < reached[r] || frame.end < frame.begin || frame.end > t_.runs[r].entries.size() ||
          (frame.tokens <= 0 && &frame != &t_.frames.back()))
        return false;
      reached[r] = frame.end;
      // Only in a table of ranges can tokens be without pages.
      const IndexRange of_frame = layout_.lists ? IndexRange{} : t_.tokens_of(frame, retained);
      std::int64_t held =
          IndexRange{std::max(of_frame.begin, t_.given_back.begin), std::min(of_frame.end, t_.given_back.end)}.size();
      without_pages += held;
      retained += frame.tokens;
      for (const PageEntry& entry : t_.entries_of(frame)) {
        const TableColumns::Column& column = columns_[entry.column];
        if (entry.live == 0 || (entry.live & ~slot_range(0, column.used)) != 0 ||
            (entry.live & live_of_column_[entry.column]) != 0 || entry.ordinal != column.ordinal)
          return false;
        live_of_column_[entry.column] |= entry.live;
        ++entries_of_column_[entry.column];
        for (SlotMask left = entry.live; left != 0; left &= left - 1, ++held) {
          const int slot = std::countr_zero(left);
          const TokenIndex token = columns_.index(entry.column, slot);
          if (token >= t_.given_back.begin && token < t_.given_back.end) return false;
          tokens_.emplace_back(token, t_.stored_rotation(entry.column, slot, frame) + frame.origin);
          without_pages_before_.push_back(without_pages);
        }
      }
      if (held != frame.tokens || (frame.run != 0 && held > t_.runs[r].capacity)) return false;
      length_ += held;
    }
    return length_ == t_.length && retained == t_.length;
  }

  // Whether columns agree with the entries and with the counts of columns and slots.
  bool columns_are_counted() const {
    // The padding slots of a sealed column have the index of its last token.
    const auto is_padding = [&](std::uint32_t c, int slot) {
      return columns_[c].sealed && layout_.packs() && columns_[c].live >> slot == 0 &&
             columns_.index(c, slot) == columns_.index(c, slot - 1);
    };
    std::vector<bool> spare(columns_.handles(), false);
    for (const std::uint32_t column : columns_.spares()) spare[column] = true;
    int in_runs = 0;
    std::int64_t written = 0;
    for (std::uint32_t c = 0; c < columns_.handles(); ++c) {
      const TableColumns::Column& column = columns_[c];
      if (spare[c] && column.used != 0) return false;
      if (column.used == 0) continue;  // a free handle or a spare column
      ++in_runs;
      if (column.live != live_of_column_[c] || column.entries != entries_of_column_[c] || column.used < 0 ||
          column.used > slots_ || column.entries > layout_.most_column_entries() ||
          (column.entries == 0 && (layout_.lists || c != t_.runs.front().tail)) ||
          (column.sealed && (!layout_.encoded() || column.used != slots_)))
        return false;
      for (int s = 1; s < column.used; ++s)
        if (!(columns_.index(c, s) > columns_.index(c, s - 1)) && !is_padding(c, s)) return false;
      written += column.used;
    }
    int of_runs = 0;
    for (const TableTokens::Run& run : t_.runs) of_runs += run.columns;
    return in_runs + std::ssize(columns_.spares()) == columns_.count() && in_runs == of_runs && written == t_.written;
  }

  // Whether the columns of each run are numbered as append and moves number them, and hold the tokens of their numbers.
  // REQUIRES: entries lie within their runs, and refer to columns.
  bool columns_are_sound() const {
    std::vector<std::size_t> run_of(columns_.handles(), t_.runs.size());
    for (std::size_t r = 0; r < t_.runs.size(); ++r) {
      std::uint32_t previous = TableTokens::kNone;
      for (const TableTokens::Frame& frame : t_.frames) {
        if (frame.run != static_cast<int>(r)) continue;
        std::uint32_t previous_of_frame = TableTokens::kNone;
        for (const PageEntry& entry : t_.entries_of(frame)) {
          const std::uint32_t c = entry.column;
          const TableColumns::Column& column = columns_[c];
          if (column.ordinal >= t_.runs[r].next_ordinal || (run_of[c] != t_.runs.size() && run_of[c] != r))
            return false;
          run_of[c] = r;
          if (c == previous_of_frame || (t_.original && column.entries != 1)) return false;
          if (previous != TableTokens::kNone && c != previous) {
            // Ordinals and indices ascend. A ring may lack the ordinal of a column that became empty.
            const TableColumns::Column& before = columns_[previous];
            if (before.ordinal >= column.ordinal || columns_.last_index(previous) >= column.first) return false;
            if (r > 0 && (before.base >= column.base || (column.base - before.base) % slots_ != 0)) return false;
          }
          previous = previous_of_frame = c;
        }
      }
      // Every index is that of a token seen.
      if (previous != TableTokens::kNone && columns_.last_index(previous) >= t_.next_index) return false;
    }
    if (layout_.lists) return true;
    // Ranges: column i begins with token i * slots.
    const std::uint64_t next = t_.runs.front().next_ordinal;
    if (next != static_cast<std::uint64_t>((t_.next_index + slots_ - 1) / slots_)) return false;
    const auto is_column = [&](std::uint32_t c) {
      const TableColumns::Column& column = columns_[c];
      return column.ordinal < next && column.first == static_cast<TokenIndex>(column.ordinal) * slots_ &&
             column.base == column.first && column.used == std::min<TokenIndex>(slots_, t_.next_index - column.first);
    };
    for (const TableTokens::Frame& frame : t_.frames)
      for (const PageEntry& entry : t_.entries_of(frame))
        if (!is_column(entry.column) ||
            (entry.column != t_.runs.front().tail && columns_[entry.column].ordinal + 1 == next))
          return false;
    const std::uint32_t tail = t_.runs.front().tail;
    if (tail == TableTokens::kNone) return t_.next_index % slots_ == 0;
    return is_column(tail) && columns_[tail].ordinal + 1 == next &&
           (columns_[tail].entries > 0 || columns_[tail].used < slots_);
  }

  // Whether the frames are exactly those that the holes make. REQUIRES: as columns_are_sound.
  bool frames_are_sound() const {
    if (t_.original && !(t_.frames.size() == 1 && t_.frames.front().origin == 0)) return false;
    std::int64_t before = 0;
    TokenIndex end = -1;  // of the frame before
    for (std::size_t f = 0; f < t_.frames.size(); ++f) {
      const TableTokens::Frame& frame = t_.frames[f];
      if (layout_.lists) {
        if (frame.rotation != 0) return false;
        if (t_.runs.size() == 1 && f > 0 && t_.frames[f - 1].run == frame.run &&
            t_.frames[f - 1].origin == frame.origin)
          return false;
        continue;
      }
      // A hole lies between two frames.
      const IndexRange tokens = t_.tokens_of(frame, before);
      before += frame.tokens;
      if (tokens.begin <= end || tokens.begin < 0 || tokens.end > t_.next_index) return false;
      end = tokens.end;
      for (const PageEntry& entry : t_.entries_of(frame))
        if (columns_.first_live(entry) < tokens.begin || columns_.last_live(entry) >= tokens.end) return false;
    }
    // The next token is written behind the newest one, at the next position.
    if (!layout_.lists || t_.original || t_.runs.front().tail == TableTokens::kNone) return true;
    const TableColumns::Column& tail = columns_[t_.runs.front().tail];
    if (tail.sealed) return true;  // the next token begins a column
    return tail.base + tail.used + t_.frames.back().origin == t_.length;
  }

  bool tails_are_sound() const {
    for (std::size_t r = 0; r < t_.runs.size(); ++r) {
      const std::uint32_t tail = t_.runs[r].tail;
      if (layout_.lists && tail != t_.newest_column(r)) return false;
      if (!layout_.lists && t_.room(r) > 0 && columns_[tail].first + columns_[tail].used != t_.next_index) return false;
    }
    return true;
  }

  bool positions_are_sound() const {
    // Compact: a token's position is the number of retained tokens before it. Original: its index.
    if (!std::ranges::is_sorted(tokens_)) return false;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      // A frame may begin with sinks and go on behind tokens without pages.
      const std::int64_t missing = tokens_[i].first < t_.given_back.begin ? 0 : without_pages_before_[i];
      if (tokens_[i].second != (t_.original ? tokens_[i].first : static_cast<Position>(i) + missing)) return false;
    }
    return layout_.lists || t_.next_index + t_.frames.back().rotation + t_.frames.back().origin == t_.length;
  }

  const TableTokens& t_;
  const TableColumns& columns_;
  const PageTableLayout& layout_;
  int slots_;
  // Collected from the entries.
  std::vector<std::int32_t> entries_of_column_;
  std::vector<SlotMask> live_of_column_;
  std::vector<std::pair<TokenIndex, Position>> tokens_;  // index, position
  std::vector<std::int64_t> without_pages_before_;       // [tokens]
  std::int64_t length_ = 0;
};

}  // namespace

bool TableTokens::is_sound() const {
  return Soundness(*this).holds();
}

void PageTable::check_invariants(PageCounts& references) const {
  KVASIR_CHECK(tokens_.is_sound());
  const std::uint64_t allocated = sizeof(PageTable) + tokens_.allocated_bytes() + seals_.allocated_bytes();
  KVASIR_CHECK(bytes() == (columns().capacity() > 0 ? allocated : 0));
  const PagePool& pool = pages().pool();
  std::vector<std::uint32_t> held = columns().in_order();
  held.insert(held.end(), columns().spares().begin(), columns().spares().end());
  std::uint64_t shared = 0;
  for (const std::uint32_t c : held) {
    shared += pages().is_shared(c) ? 1 : 0;
    for (const PageId page : pages().of(c)) {
      ++references[page];
      KVASIR_CHECK(page_class(page) == pages().class_of(columns()[c].sealed));
      KVASIR_CHECK(pool.references(page) == pool.references(pages().of(c).front()));
    }
  }
  KVASIR_CHECK(shared == pages().shared());
}

}  // namespace kvasir
