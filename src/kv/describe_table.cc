#include "kv/describe_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

struct Interval {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  bool empty() const { return begin >= end; }
};

class Description {
 public:
  Description(const PageTable& table, std::span<const IndexRange> hidden, Position window, BatchTable* out,
              const std::vector<IndexRange>* read)
      : table_(table),
        columns_(table.columns()),
        hidden_(hidden),
        window_(window),
        out_(*out),
        read_(read),
        rows_(static_cast<int>(hidden.size())),
        first_row_(table.next_index() - rows_) {}

  void make() {
    out_.rows = rows_;
    out_.lanes = table_.pages().lanes();
    out_.pages = table_.pages().all();
    out_.frames.clear();
    out_.blocks.clear();
    out_.hidden.clear();
    out_.masks.clear();
    out_.retained_masks.clear();
    out_.seals.clear();
    out_.format = table_.pages().format();
    out_.biases = {};
    out_.offloaded = 0;
    out_.offloaded_pages = {};
    out_.offloaded_rows = out_.offloaded_first = {};
    out_.frames.reserve(table_.frames().size());
    for (const PageTable::Frame& frame : table_.frames()) out_.frames.push_back({table_.entries_of(frame), 0});
    find_slots();
    find_seals();
    find_positions();
    for (const IndexRange& range : hidden_) {
      if (range.empty()) continue;
      ends_.begin = hides_ ? std::min(ends_.begin, range.end) : range.end;
      ends_.end = std::max(ends_.end, range.end);
      hides_ = true;
    }
    for (std::size_t f = 0; f < out_.frames.size(); ++f) add_blocks(f);
  }

 private:
  const PageTable::Frame& frame(std::size_t f) const { return table_.frames()[f]; }
  Position rotation(std::size_t f, const PageEntry& e, int slot) const {
    return table_.tokens().stored_rotation(e.column, slot, frame(f));
  }

  // The newest tokens fill the last slots of the last columns.
  void find_slots() {
    out_.slots.reserve(hidden_.size());  // exact size: resize alone might double it
    out_.slots.resize(hidden_.size());
    int left = rows_;
    const auto entries = table_.entries_of(table_.frames().back());
    for (std::size_t e = entries.size(); e > 0 && left > 0; --e) {
      const std::uint32_t column = entries[e - 1].column;
      for (int slot = columns_[column].used - 1; slot >= 0 && left > 0; --slot)
        out_.slots[static_cast<std::size_t>(--left)] = {column, slot};
    }
    KVASIR_CHECK(left == 0);
  }

  void find_seals() {
    const auto lanes = static_cast<std::size_t>(table_.pages().lanes());
    out_.seals.reserve(table_.seals().all().size());
    for (const PassSeals::Seal& seal : table_.seals().all()) {
      SealedColumn sealed;
      sealed.column = seal.column;
      sealed.first_row = static_cast<int>(std::max<TokenIndex>(seal.first_reader - first_row_, 0));
      if (seal.open >= 0)
        sealed.open = table_.seals().open_pages().subspan(static_cast<std::size_t>(seal.open) * lanes, lanes).data();
      // Without the tokens hidden from the first row that reads the encoded pages.
      const IndexRange hide = hidden_[static_cast<std::size_t>(sealed.first_row)];
      sealed.live = columns_[seal.column].live & ~columns_.slots_of(seal.column, hide.begin, hide.end);
      out_.seals.push_back(sealed);
    }
  }

  void find_positions() {
    const std::size_t frames = out_.frames.size();
    const PageTable::Frame& newest = table_.frames().back();
    out_.key_positions.reserve(hidden_.size());
    out_.key_positions.resize(hidden_.size());
    out_.query_positions.reserve(frames * hidden_.size());
    out_.query_positions.resize(frames * hidden_.size());
    for (int r = 0; r < rows_; ++r) {
      const auto row = static_cast<std::size_t>(r);
      const IndexRange hide = hidden_[row];
      KVASIR_CHECK(hide.empty() || hide.end <= first_row_ + r);
      std::int64_t visible = table_.length() - rows_ + r + 1;
      std::size_t frames_before = 0;  // frames with tokens before the hidden range
      if (!hide.empty()) {
        visible -= table_.tokens().retained_in(hide);
        for (std::size_t f = 0; f < frames; ++f)
          if (table_.frames()[f].tokens > 0 && table_.tokens().first_token(f) < hide.begin) frames_before = f + 1;
        KVASIR_CHECK(frames_before < frames || frames_before == 0);
      }
      const WriteSlot& place = out_.slots[row];
      const Position own = table_.tokens().stored_rotation(place.column, place.slot, newest);
      if (r == 0) out_.retained_before = visible - 1;
      out_.key_positions[row] = own;
      // A frame behind the hidden range moves up together with the query; one before it does not.
      for (std::size_t f = 0; f < frames; ++f)
        out_.query_positions[f * hidden_.size() + row] =
            (f < frames_before ? visible - 1 : own + newest.origin) - frame(f).origin;
    }
  }

  // Entries of a frame that hold tokens of `range`; for an empty range, an entry with tokens on both sides of it.
  Interval holding(std::size_t f, IndexRange range) const {
    const auto entries = out_.frames[f].entries;
    const auto begin =
        std::ranges::partition_point(entries, [&](const auto& e) { return columns_.last_live(e) < range.begin; });
    const auto end =
        std::ranges::partition_point(entries, [&](const auto& e) { return columns_.first_live(e) < range.end; });
    return {static_cast<std::uint32_t>(begin - entries.begin()), static_cast<std::uint32_t>(end - entries.begin())};
  }

  // Entries at the edge of the window: partly visible to some row, but not wholly within every row's window.
  Interval window_edge(std::size_t f) {
    const auto entries = out_.frames[f].entries;
    const auto first = out_.query_positions.begin() + static_cast<std::ptrdiff_t>(f * hidden_.size());
    const auto [least, most] = std::minmax_element(first, first + rows_);
    const auto begin = std::ranges::partition_point(entries, [&, low = *least](const PageEntry& e) {
      return low - rotation(f, e, static_cast<int>(std::bit_width(e.live)) - 1) >= window_;
    });
    const auto end = std::ranges::partition_point(entries, [&, high = *most](const PageEntry& e) {
      return high - rotation(f, e, std::countr_zero(e.live)) >= window_;
    });
    const Interval edge{static_cast<std::uint32_t>(begin - entries.begin()),
                        static_cast<std::uint32_t>(end - entries.begin())};
    out_.frames[f].visible_from = edge.begin;
    return edge;
  }

  void add_blocks(std::size_t f) {
    Interval parts[3];
    if (rows_ > 1 && f + 1 == out_.frames.size()) parts[0] = holding(f, {first_row_ + 1, table_.next_index()});
    if (hides_) {
      parts[1] = holding(f, ends_);
      hide_before(f, parts[1].begin);
    }
    if (window_ > 0) parts[2] = window_edge(f);
    if (read_ != nullptr) parts[0] = {0, static_cast<std::uint32_t>(out_.frames[f].entries.size())};
    std::ranges::sort(parts, {}, &Interval::begin);
    Interval block;
    for (const Interval& part : parts) {
      if (part.empty()) continue;
      if (!block.empty() && part.begin > block.end) add_block(f, std::exchange(block, {}));
      block = block.empty() ? part : Interval{block.begin, std::max(block.end, part.end)};
    }
    if (!block.empty()) add_block(f, block);
  }

  // The slots of an entry whose tokens are to be read.
  SlotMask slots_read(const PageEntry& e) const {
    SlotMask slots = 0;
    const TokenIndex last = columns_.last_live(e);
    for (auto range = std::ranges::upper_bound(*read_, columns_.first_live(e), {}, &IndexRange::end);
         range != read_->end() && range->begin <= last; ++range)
      slots |= columns_.slots_of(e.column, range->begin, range->end);
    return slots;
  }

  // Hides the entries before `end` from the rows whose hidden range covers them. Every hidden range of the frame
  // reaches at least to `end`, and begins where a frame begins, so that no entry before `end` is hidden in part.
  void hide_before(std::size_t f, std::uint32_t end) {
    TokenIndex range_begin = -1;
    std::uint32_t begin = 0;
    for (int r = 0; r < rows_; ++r) {
      const IndexRange hide = hidden_[static_cast<std::size_t>(r)];
      if (hide.empty()) continue;
      if (std::exchange(range_begin, hide.begin) != hide.begin) begin = holding(f, {hide.begin, hide.begin}).begin;
      if (begin >= end) continue;
      if (HiddenBlock* last = out_.hidden.empty() ? nullptr : &out_.hidden.back();
          last != nullptr && last->frame == f && last->begin == begin && last->end_row == r)
        ++last->end_row;
      else
        out_.hidden.push_back({static_cast<std::uint32_t>(f), begin, end, r, r + 1});
    }
  }

  void add_block(std::size_t f, Interval block) {
    const auto entries = out_.frames[f].entries;
    out_.blocks.reserve(out_.blocks.size() + 1);
    out_.blocks.push_back({static_cast<std::uint32_t>(f), block.begin, block.end, out_.masks.size()});
    // Exact size: a batch has many tables.
    const std::size_t masks = out_.masks.size() + static_cast<std::size_t>(rows_) * (block.end - block.begin);
    out_.masks.reserve(masks);
    const bool narrows = window_ > 0 || read_ != nullptr;
    if (narrows) out_.retained_masks.reserve(masks);
    for (int r = 0; r < rows_; ++r) {
      const TokenIndex own = first_row_ + r;
      const IndexRange hide = hidden_[static_cast<std::size_t>(r)];
      const Position query = window_ > 0 ? out_.query_position(f, r) : 0;
      for (std::uint32_t i = block.begin; i < block.end; ++i) {
        const PageEntry& e = entries[i];
        SlotMask mask = e.live;
        if (columns_.last_live(e) > own) mask &= columns_.slots_of(e.column, 0, own + 1);
        if (!hide.empty()) mask &= ~columns_.slots_of(e.column, hide.begin, hide.end);
        if (narrows) out_.retained_masks.push_back(mask);
        if (read_ != nullptr) mask &= slots_read(e);
        if (window_ > 0 && mask != 0 && query - rotation(f, e, std::countr_zero(e.live)) >= window_)
          for (SlotMask left = mask; left != 0; left &= left - 1)
            if (query - rotation(f, e, std::countr_zero(left)) >= window_) mask &= ~(left & -left);
        out_.masks.push_back(mask);
      }
    }
  }

  const PageTable& table_;
  const TableColumns& columns_;
  std::span<const IndexRange> hidden_;
  Position window_;
  BatchTable& out_;
  const std::vector<IndexRange>* read_;  // null: all
  int rows_;
  TokenIndex first_row_;
  bool hides_ = false;  // anything from any row
  IndexRange ends_;     // from the least end of a hidden range to the greatest
};

}  // namespace

void describe_table(const PageTable& table, std::span<const IndexRange> hidden, Position window, BatchTable* out,
                    const std::vector<IndexRange>* read) {
  Description(table, hidden, window, out, read).make();
}

}  // namespace kvasir
