// Page tables of several runs: tokens leave, or move from one run to another, a ring of its own columns.
#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvasir {
namespace {

// One change of a table of several runs.
class RunChange {
 public:
  explicit RunChange(TableTokens& tokens)
      : tokens_(tokens), columns_(tokens.columns), scratch_(columns_.pages().pool().scratch()) {}

  // Goes from the last run to the first: tokens that a run hands on are copied before its columns are given back.
  void apply(const KeepPlan& plan) {
    std::vector<IndexRange>& leaving = scratch_.ranges;
    leaving.assign(plan.drop.begin(), plan.drop.end());
    for (const KeepPlan::Move& move : plan.moves) leaving.push_back({move.index, move.index + 1});
    std::ranges::sort(leaving, {}, &IndexRange::begin);
    const std::int64_t length = tokens_.length;
    std::int64_t moved = 0;
    for (int r = columns_.layout().runs() - 1; r >= 0; --r) {
      for (std::size_t f = 0; f < tokens_.frames.size(); ++f) {
        if (tokens_.frames[f].run != r) continue;
        for (const IndexRange& range : leaving) {
          const std::size_t before = tokens_.frames.size();
          tokens_.drop_from_frame(f, range, tokens_.tokens_of(tokens_.frames[f], 0));
          // Later ranges lie behind the hole.
          f += tokens_.frames.size() - before;
        }
      }
      tokens_.set_tail(static_cast<std::size_t>(r), tokens_.newest_column(static_cast<std::size_t>(r)));
      if (r > 0) {
        const std::int64_t held = tokens_.length;
        receive_moves(r, plan.moves);
        moved += tokens_.length - held;
      }
    }
    KVASIR_CHECK(moved == static_cast<std::int64_t>(plan.moves.size()) && tokens_.length <= length);
    order_frames();
  }

 private:
  struct Place {
    std::uint32_t column = 0;
    int slot = 0;
  };

  Place locate(TokenIndex token, int runs) const {
    for (const TableTokens::Frame& frame : tokens_.frames) {
      if (frame.run >= runs) continue;
      const std::uint32_t found = tokens_.find_entry(frame, token);
      if (found == frame.end) continue;
      const PageEntry& entry = tokens_.runs[static_cast<std::size_t>(frame.run)].entries[found];
      if (const SlotMask slot = entry.live & columns_.slots_of(entry.column, token, token + 1); slot != 0)
        return {entry.column, std::countr_zero(slot)};
    }
    KVASIR_CHECK(false);
    return {};
  }

  // Returns a column with open pages for a ring, and seals the ring's newest column, `full`.
  std::uint32_t next_ring_column(std::uint32_t full) {
    if (!columns_.layout().encoded() || full == TableTokens::kNone || columns_[full].sealed)
      return columns_.take_spare(false);
    const std::uint32_t next = columns_.take_spare(true);
    const ColumnPages& pages = columns_.pages();
    const PageSeal seal{pages.of(full).data(), pages.of(next).data(), columns_[full].live};
    if (PageStore* store = pages.pool().store(); store != nullptr) store->seal(pages.lanes(), std::span(&seal, 1));
    columns_.exchange_pages(full, next);
    columns_.count_encodings(full, columns_[full].live);
    columns_.own(next);
    return next;
  }

  void receive_moves(int number, std::span<const KeepPlan::Move> plan) {
    TableTokens::Run& run = tokens_.runs[static_cast<std::size_t>(number)];
    std::vector<SlotMove>& moves = scratch_.moves;
    moves.clear();
    auto frame = std::ranges::find(tokens_.frames, number, &TableTokens::Frame::run);
    for (const KeepPlan::Move& move : plan) {
      if (move.run != number) continue;
      if (frame == tokens_.frames.end()) {
        KVASIR_CHECK(tokens_.frames.size() < static_cast<std::size_t>(PageTableLayout::kMaxFrames));
        tokens_.frames.push_back({0, 0, 0, number, 0, 0});  // order_frames gives it its place
        frame = std::prev(tokens_.frames.end());
      }
      if (tokens_.room(static_cast<std::size_t>(number)) == 0) {
        // The full column is written before it is sealed.
        columns_.pages().move(moves);
        moves.clear();
        const Position base = run.tail != TableTokens::kNone ? columns_[run.tail].base + columns_.slots() : 0;
        tokens_.start_column(next_ring_column(run.tail), number, move.index, base);
      }
      const std::uint32_t tail = run.tail;
      columns_.own(tail);
      const Place from = locate(move.index, number);
      TableColumns::Column& to = columns_[tail];
      const auto slot = static_cast<std::size_t>(to.used++);
      columns_.offsets(tail)[slot] = static_cast<std::uint32_t>(move.index - to.first);
      if (columns_.layout().encoded())
        columns_.encodings(tail)[slot] = columns_.encodings(from.column)[static_cast<std::size_t>(from.slot)];
      if (frame->begin == frame->end || run.entries[frame->end - 1].column != tail)
        tokens_.push_entry(*frame, {0, to.ordinal, tail});
      run.entries[frame->end - 1].live |= SlotMask{1} << slot;
      to.live |= SlotMask{1} << slot;
      ++frame->tokens;
      ++tokens_.length;
      ++tokens_.written;
      const Position shift = to.base + static_cast<Position>(slot) - (columns_[from.column].base + from.slot);
      add_move(moves, {columns_.pages().of(from.column).data(), SlotMask{1} << from.slot,
                       columns_.pages().of(tail).data(), static_cast<int>(slot), shift});
    }
    columns_.pages().move(moves);
  }

  // Orders the frames: tokens of run 0 that never leave it, the other runs from the last to the first, the rest of run
  // 0. Their positions are consecutive.
  void order_frames() {
    std::erase_if(tokens_.frames, [](const TableTokens::Frame& frame) { return frame.begin == frame.end; });
    TokenIndex oldest = std::numeric_limits<TokenIndex>::max();  // of the tokens that were handed on
    for (const TableTokens::Frame& frame : tokens_.frames)
      if (frame.run > 0) oldest = std::min(oldest, columns_.first_live(tokens_.entries_of(frame).front()));
    const auto place = [&](const TableTokens::Frame& frame) {
      if (frame.run > 0) return columns_.layout().runs() - frame.run;
      return columns_.first_live(tokens_.entries_of(frame).front()) < oldest ? 0 : columns_.layout().runs();
    };
    std::ranges::stable_sort(tokens_.frames, {}, place);
    Position position = 0;
    for (TableTokens::Frame& frame : tokens_.frames) {
      const PageEntry& first = tokens_.entries_of(frame).front();
      frame.origin = position - (columns_[first.column].base + std::countr_zero(first.live));
      position += frame.tokens;
    }
    if (!tokens_.frames.empty() && tokens_.frames.back().run == 0) {
      // No frame is added: without tokens in other runs, all frames are of run 0 and before `oldest`.
      return;
    }
    // Later tokens need a frame of run 0.
    KVASIR_CHECK(tokens_.frames.size() < static_cast<std::size_t>(PageTableLayout::kMaxFrames));
    const std::uint32_t tail = tokens_.runs.front().tail;
    const auto end = static_cast<std::uint32_t>(tokens_.runs.front().entries.size());
    const Position origin =
        tail != TableTokens::kNone ? tokens_.length - (columns_[tail].base + columns_[tail].used) : 0;
    tokens_.frames.push_back({origin, 0, 0, 0, end, end});
  }

  TableTokens& tokens_;
  TableColumns& columns_;
  TableScratch& scratch_;
};

}  // namespace

void PageTable::apply_runs(const KeepPlan& plan) {
  RunChange(tokens_).apply(plan);
}

}  // namespace kvasir
