#include "sequence/quest_selector.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace kvasir {
namespace {

// Returns a number in the order of scores: equal for equal scores, the largest for NaN.
std::uint32_t order_of(float score) {
  if (std::isnan(score)) return ~std::uint32_t{0};
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 is 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The segments to read: all of a higher order than `order`, and the youngest `equals` of this one.
struct Threshold {
  std::uint32_t order = 0;
  std::int64_t equals = 0;
};

// Finds the `count`-th largest of the orders that `order(i)` gives for i in [first, end), a digit of 8 bits at a time.
// REQUIRES: 0 < count <= end - first.
template <class Order>
Threshold find_threshold(std::int64_t first, std::int64_t end, std::int64_t count, const Order& order) {
  std::uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::int64_t of_digit[256] = {};
    const std::uint32_t above = shift == 24 ? 0 : ~std::uint32_t{0} << (shift + 8);
    for (std::int64_t i = first; i < end; ++i)
      if (const std::uint32_t o = order(i); (o & above) == prefix) ++of_digit[o >> shift & 0xff];
    int digit = 255;
    for (; of_digit[digit] < count; --digit) count -= of_digit[digit];
    prefix |= static_cast<std::uint32_t>(digit) << shift;
  }
  return {prefix, count};
}

}  // namespace

std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape) {
  const RanksSegments* segments = policy.as<RanksSegments>();
  if (segments == nullptr) return nullptr;
  return std::make_unique<QuestSelector>(segments->segment_budget(), shape);
}

QuestSelector::QuestSelector(const Budget& budget, const KvCacheShape& shape)
    : budget_(budget),
      shape_(shape),
      lanes_(std::max(shape.layers - kWholeLayers, 0) * shape.kv_heads),
      dim_(shape.page.head_dim) {
  KVASIR_CHECK(shape.page.slots % kSegment == 0);
}

std::unique_ptr<SequenceSelector> QuestSelector::clone() const {
  return std::make_unique<QuestSelector>(budget_, shape_);
}

bool QuestSelector::begin_pass(const PolicyChunk& chunk, int first, int rows) {
  if (chunk.prompt) return false;
  next_ = chunk.first + first;
  newest_ = next_ + rows;
  for (int row = 0; row < rows; ++row)
    if (!choice_at(next_ + row + 1).all()) return true;
  return false;
}

QuestSelector::Choice QuestSelector::choice_at(std::int64_t tokens) const {
  Choice choice;
  const std::int64_t hidden = shape_.window > 0 ? std::max<std::int64_t>(tokens - shape_.window, 0) : 0;
  const std::int64_t sealed = sealed_tokens(tokens);
  choice.visible = tokens - hidden;
  choice.end = sealed / kSegment;
  choice.first = std::min(std::max<std::int64_t>(hidden / kSegment, 1), choice.end);
  const std::int64_t always =
      tokens - std::max(sealed, hidden) + (sealed > 0 ? std::max<std::int64_t>(kSegment - hidden, 0) : 0);
  const std::int64_t left = std::max<std::int64_t>(budget_.at(tokens) - always, 0);
  choice.count = std::min(left / kSegment, choice.end - choice.first);
  choice.read = choice.all() ? choice.visible : always + choice.count * kSegment;
  return choice;
}

std::optional<double> QuestSelector::tokens_read() const {
  if (newest_ == 0) return std::nullopt;
  const Choice choice = choice_at(newest_);
  const int whole = std::min(shape_.layers, kWholeLayers);
  return static_cast<double>(whole * choice.visible + (shape_.layers - whole) * choice.read) /
         static_cast<double>(shape_.layers);
}

// Returns the tokens in sealed pages, as the row of a text's newest token finds them.
std::int64_t QuestSelector::sealed_tokens(std::int64_t tokens) const {
  const std::int64_t slots = shape_.page.slots;
  return std::max<std::int64_t>(tokens - 1 - shape_.recent, 0) / slots * slots;
}

std::int64_t QuestSelector::blocks_for(std::int64_t tokens) const {
  return (sealed_tokens(tokens) / kSegment + kBlock - 1) / kBlock;
}

std::uint64_t QuestSelector::bytes_for(std::int64_t tokens) const {
  if (lanes_ == 0 || tokens <= budget_.at(tokens)) return 0;
  const auto lanes = static_cast<std::uint64_t>(lanes_);
  const auto blocks = static_cast<std::uint64_t>(blocks_for(tokens));
  return blocks * (lanes * lane_floats() * sizeof(float) + sizeof(AlignedBuffer<float>)) + lanes * sizeof(std::int64_t);
}

std::uint64_t QuestSelector::bytes() const {
  std::uint64_t sum = blocks_.capacity() * sizeof(AlignedBuffer<float>) + known_.capacity() * sizeof(std::int64_t);
  for (const AlignedBuffer<float>& block : blocks_) sum += block.bytes();
  return sum;
}

void QuestSelector::reserve(std::int64_t tokens) {
  if (bytes_for(tokens) <= bytes()) return;
  known_.resize(static_cast<std::size_t>(lanes_));
  const auto blocks = static_cast<std::size_t>(blocks_for(tokens));
  blocks_.reserve(blocks);
  while (blocks_.size() < blocks) {
    AlignedBuffer<float> block;
    std::fill_n(block.ensure(static_cast<std::size_t>(lanes_) * lane_floats()), block.size(), 0.0F);
    blocks_.push_back(std::move(block));
  }
  KVASIR_CHECK(bytes() == bytes_for(tokens));
}

// Computes the bounds of pages that were sealed since the last row of the lane.
void QuestSelector::note_bounds(const LaneRow& row, int lane, const Choice& choice) {
  const std::int64_t slots = shape_.page.slots;
  std::int64_t& known = known_[static_cast<std::size_t>(lane)];
  known = std::max(known, choice.first * kSegment / slots);  // what the window hides now stays hidden
  const std::span<const PageEntry> entries = row.table->frames.front().entries;
  float keys[kMaxHeadDim * 64];
  for (; known < choice.end * kSegment / slots; ++known) {
    const PageEntry& entry = entries[static_cast<std::size_t>(known) - entries.front().ordinal];
    row.store->read_keys(row.page(entry.column), keys);
    for (std::int64_t c = 0; c < slots / kSegment; ++c) {
      const std::int64_t segment = known * slots / kSegment + c;
      float* to = bounds(segment / kBlock, lane) + segment % kBlock;
      for (int d = 0; d < dim_; ++d, to += std::ptrdiff_t{2} * kBlock) {
        const float* at = keys + c * kSegment * dim_ + d;
        float low = *at, high = *at;
        for (int s = 1; s < kSegment; ++s) {
          const float x = at[static_cast<std::ptrdiff_t>(s) * dim_];
          // A NaN stays, whichever comes first.
          low = x < low || std::isnan(x) ? x : low;
          high = x > high || std::isnan(x) ? x : high;
        }
        to[0] = low;
        to[kBlock] = high;
      }
    }
  }
}

void QuestSelector::score(const LaneRow& row, int lane, const Choice& choice) {
  const std::span<const float> queries = row.queries_of(0);
  for (std::int64_t block = choice.first / kBlock; block * kBlock < choice.end; ++block)
    row.score_segments(bounds(block, lane), queries.data(), row.group, dim_, scores(block, lane));
}

void QuestSelector::select(const LaneRow& row, std::span<SlotMask> read) {
  const Choice choice = choice_at(next_ + row.row + 1);
  if (choice.all()) return;
  KVASIR_CHECK(row.table->frames.size() == 1);
  const int lane = (row.layer - kWholeLayers) * shape_.kv_heads + row.head;
  const auto order = [&](std::int64_t segment) { return order_of(scores(segment / kBlock, lane)[segment % kBlock]); };
  Threshold threshold{~std::uint32_t{0}, 0};
  if (choice.count > 0) {
    note_bounds(row, lane, choice);
    score(row, lane, choice);
    threshold = find_threshold(choice.first, choice.end, choice.count, order);
  }
  const std::int64_t per_page = shape_.page.slots / kSegment;
  const std::span<const PageEntry> entries = row.table->frames.front().entries;
  for (std::int64_t segment = choice.end - 1; segment >= choice.first; --segment) {
    const std::uint32_t own = choice.count > 0 ? order(segment) : 0;
    if (own > threshold.order || (own == threshold.order && threshold.equals-- > 0)) continue;
    const auto slot = static_cast<int>(segment % per_page) * kSegment;
    const std::size_t entry = static_cast<std::size_t>(segment / per_page) - entries.front().ordinal;
    read[entry] &= ~slot_range(slot, slot + kSegment);
  }
}

}  // namespace kvasir
