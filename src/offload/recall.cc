#include "offload/recall.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr float kLeastAbove = -6.907755279F;  // -ln 1000

}  // namespace

Recall::Recall(PagePool* pool, std::span<const DemotedPages> tables, int layers, int kv_heads, int most)
    : pool_(pool),
      tables_(tables),
      layers_(layers),
      most_(most),
      pages_(pool),
      charge_(&pool->budget()),
      kv_heads_(kv_heads) {
  KVASIR_CHECK(most > 0 && most <= kMostRecalled);
}

std::uint64_t Recall::bytes_for(const DemotedPages::Layout& table, int lanes, int kv_heads, int most) {
  const std::uint64_t pages =
      table.file != nullptr ? static_cast<std::uint64_t>(lanes) * static_cast<std::uint64_t>(most) : 0;
  return static_cast<std::uint64_t>(kv_heads) * sizeof(Head) +
         pages * (table.format.bytes() + PagePool::kPageOverhead + sizeof(PageId) + sizeof(std::int64_t));
}

Status Recall::reserve() {
  if (!heads_.empty()) return {};
  const DemotedPages::Layout& layout = tables_.front().layout();
  const int lanes = layers_ * kv_heads_;
  const std::uint64_t all = bytes_for(layout, lanes, kv_heads_, most_);
  if (all > pool_->budget().available()) return kv_memory_full(pool_->budget(), all);
  if (layout.file != nullptr) {
    const auto pages = static_cast<std::size_t>(lanes) * static_cast<std::size_t>(most_);
    pages_.reserve(pages);
    KVASIR_CHECK(pages_.try_allocate(pages, layout.classes.sealed));
    page_bytes_ = pages * pool_->page_cost(layout.classes.sealed);
    columns_.assign(pages, -1);
  }
  heads_.resize(static_cast<std::size_t>(kv_heads_));
  KVASIR_CHECK(charge_.try_resize(all - page_bytes_));
  return {};
}

void Recall::begin_pass(TokenIndex row) {
  KVASIR_CHECK(!heads_.empty());
  row_ = row;
  status_ = {};
}

int Recall::table_of(int layer, int head) const {
  const int tables = static_cast<int>(tables_.size());
  if (tables == 1 && layers_ * kv_heads_ == tables_.front().layout().lanes) return 0;
  const int per_layer = tables / layers_;
  return layer * per_layer + (per_layer > 1 ? head : 0);
}

int Recall::lane_of(int layer, int head) const {
  const int lanes = tables_.front().layout().lanes;
  return lanes == layers_ * kv_heads_ ? layer * kv_heads_ + head : lanes == kv_heads_ ? head : 0;
}

float Recall::bound(const float* q, const float* bounds, int dim) {
  constexpr int kSums = 16;
  const float* low = bounds;
  const float* high = bounds + dim;
  float sums[kSums] = {};
  int d = 0;
  for (; d + kSums <= dim; d += kSums)
    for (int i = 0; i < kSums; ++i) sums[i] += std::max(q[d + i] * low[d + i], q[d + i] * high[d + i]);
  for (; d < dim; ++d) sums[d % kSums] += std::max(q[d] * low[d], q[d] * high[d]);
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void Recall::choose(const LaneRow& row, std::span<const float> highest) {
  Head& head = heads_[static_cast<std::size_t>(row.head)];
  const int lane = lane_of(row.layer, row.head);
  const DemotedPages& demoted = tables_[static_cast<std::size_t>(table_of(row.layer, row.head))];
  const int dim = row.head_dim;
  // Demoted keys are rotated by their indices; so must the query be.
  KVASIR_CHECK(row.lane == lane && row.table->query_position(row.table->frames.size() - 1, row.row) == row_);
  struct Ranked {
    float above = 0;
    std::int64_t column = 0;
  };
  std::array<Ranked, kMostRecalled> best;
  int count = 0;
  const std::span<const float> queries = row.queries_of(0);
  // From the youngest on, so that among equals it stays in front.
  for (std::int64_t column = demoted.columns() - 1; column >= 0; --column) {
    const float* bounds = demoted.bounds(column, lane);
    float above = -std::numeric_limits<float>::infinity();
    for (int segment = 0; segment < demoted.segments(column); ++segment, bounds += std::ptrdiff_t{2} * dim)
      for (int g = 0; g < row.group; ++g) {
        const float of_head = bound(queries.data() + static_cast<std::ptrdiff_t>(g) * dim, bounds, dim) -
                              highest[static_cast<std::size_t>(g)];
        above = std::max(above, of_head);
      }
    if (!(above > kLeastAbove)) continue;
    int at = count;
    while (at > 0 && best[static_cast<std::size_t>(at) - 1].above < above) --at;
    if (at == most_) continue;
    count = std::min(count + 1, most_);
    std::move_backward(best.begin() + at, best.begin() + count - 1, best.begin() + count);
    best[static_cast<std::size_t>(at)] = {above, column};
  }
  const auto by_column = [](const Ranked& a, const Ranked& b) { return a.column < b.column; };
  for (auto next = best.begin(); next != best.begin() + count; ++next)
    std::rotate(std::upper_bound(best.begin(), next, *next, by_column), next, next + 1);
  head.count = count;
  head.fetches = 0;
  head.fresh = true;
  const auto is_chosen = [&](std::int64_t column) {
    return std::any_of(best.begin(), best.begin() + count, [&](const Ranked& r) { return r.column == column; });
  };
  const std::size_t first = columns_.empty() ? 0 : first_slot(row.layer, row.head);
  for (int i = 0; i < count; ++i) {
    const std::int64_t column = best[static_cast<std::size_t>(i)].column;
    RecalledPage& page = head.pages[i];
    page.live = demoted.live(column);
    if (demoted.in_memory(column)) {
      page.page = demoted.page(column, lane);
      continue;
    }
    const auto slots = std::span(columns_).subspan(first, static_cast<std::size_t>(most_));
    auto slot = std::ranges::find(slots, column);
    if (slot == slots.end()) {
      // There are as many pages as can be chosen, so one of them is not chosen now.
      slot = std::ranges::find_if(slots, [&](std::int64_t held) { return held < 0 || !is_chosen(held); });
      KVASIR_CHECK(slot != slots.end());
      *slot = column;
      head.fetch[head.fetches++] = {column, static_cast<int>(slot - slots.begin())};
    }
    page.page = pages_.ids()[first + static_cast<std::size_t>(slot - slots.begin())];
  }
}

void Recall::fetch_chosen(int layer) {
  struct Wanted {
    int head = 0;
    const DemotedPages::Column* column = nullptr;
    std::size_t place = 0;  // in pages_
    std::shared_ptr<SpillReading> reading;
    bool asked = false;
  };
  std::vector<Wanted> wanted;
  for (int h = 0; h < kv_heads_; ++h) {
    Head& head = heads_[static_cast<std::size_t>(h)];
    if (!std::exchange(head.fresh, false)) continue;
    counts_.recalled += head.count;
    const DemotedPages& demoted = tables_[static_cast<std::size_t>(table_of(layer, h))];
    for (int f = 0; f < head.fetches; ++f)
      wanted.push_back({h, &demoted.encoded(head.fetch[f].column),
                        first_slot(layer, h) + static_cast<std::size_t>(head.fetch[f].slot), nullptr, false});
  }
  if (wanted.empty()) return;
  const auto began = std::chrono::steady_clock::now();
  const auto give_up = [&](const Wanted& what, const char* failed, const Status& why) {
    if (status_.ok()) status_ = why.with_message(failed + why.message());
    // Its content is undefined.
    columns_[what.place] = -1;
    heads_[static_cast<std::size_t>(what.head)].count = 0;
  };
  for (std::size_t left = wanted.size(); left > 0;) {
    for (Wanted& what : wanted) {
      if (what.column == nullptr) continue;
      const DemotedPages::Column& column = *what.column;
      const auto lane = static_cast<std::size_t>(lane_of(layer, what.head));
      if (!what.asked && !column.parts->status().ok()) {
        give_up(what, "what is demoted cannot be written to a file: ", column.parts->status());
      } else if (!what.asked && column.parts->written()) {
        if (what.reading == nullptr) what.reading = std::make_shared<SpillReading>(column.file);
        what.asked = column.file->read(column.parts, lane, what.reading);
        continue;
      } else if (!what.asked) {
        continue;
      } else if (const auto part = what.reading->take()) {
        pool_->store()->write(pages_.ids()[what.place], part->bytes);
        ++counts_.fetched;
      } else if (!what.reading->status().ok()) {
        give_up(what, "what was demoted to a file cannot be read back: ", what.reading->status());
      } else {
        continue;
      }
      what.column = nullptr;
      what.reading.reset();
      --left;
    }
    if (left == 0) break;
    const auto waiting = std::ranges::find_if(wanted, [](const Wanted& what) { return what.column != nullptr; });
    waiting->column->file->poll(std::chrono::milliseconds(100));
  }
  counts_.seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace kvasir
