#include "offload/follower_sets.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

void FollowerSet::reserve(std::int64_t most) {
  const auto count = static_cast<std::size_t>(most);
  for (std::vector<std::uint32_t>* list : {&tokens_, &rows_, &free_, &next_tokens_, &next_rows_}) {
    *list = {};
    list->reserve(count);
  }
  for (std::size_t row = count; row > 0; --row) free_.push_back(static_cast<std::uint32_t>(row - 1));
}

void FollowerSet::clear() {
  for (std::vector<std::uint32_t>* list : {&tokens_, &rows_, &free_, &next_tokens_, &next_rows_}) *list = {};
}

void FollowerSet::copy(const FollowerSet& other, std::int64_t most) {
  reserve(most);
  tokens_.assign(other.tokens_.begin(), other.tokens_.end());
  rows_.assign(other.rows_.begin(), other.rows_.end());
  free_.assign(other.free_.begin(), other.free_.end());
}

void FollowerSet::change(std::span<const IndexRange> ranges, TokenIndex end, std::vector<Missing>* missing) {
  next_tokens_.clear();
  next_rows_.clear();
  constexpr std::uint32_t kNoRow = 0xffffffff;
  std::size_t held = 0;
  const auto leave_before = [&](std::uint64_t token) {
    for (; held < tokens_.size() && tokens_[held] < token; ++held) free_.push_back(rows_[held]);
  };
  for (const IndexRange& range : ranges)
    for (TokenIndex id = range.begin; id < std::min(range.end, end); ++id) {
      const auto token = static_cast<std::uint32_t>(id);
      leave_before(token);
      KVASIR_CHECK(next_tokens_.size() < next_tokens_.capacity());
      next_tokens_.push_back(token);
      const bool is_held = held < tokens_.size() && tokens_[held] == token;
      next_rows_.push_back(is_held ? rows_[held++] : kNoRow);
    }
  leave_before(~std::uint64_t{0});
  for (std::size_t i = 0; i < next_tokens_.size(); ++i) {
    if (next_rows_[i] != kNoRow) continue;
    KVASIR_CHECK(!free_.empty());
    next_rows_[i] = free_.back();
    free_.pop_back();
    missing->push_back({next_tokens_[i], next_rows_[i]});
  }
  tokens_.swap(next_tokens_);
  rows_.swap(next_rows_);
}

void FollowerSet::add_entries(int slots, std::vector<PageEntry>* entries, std::vector<std::uint32_t>* first) const {
  const auto per_page = static_cast<std::uint32_t>(slots);
  for (std::size_t i = 0; i < tokens_.size();) {
    PageEntry entry;
    entry.ordinal = tokens_[i] / per_page;
    first->push_back(static_cast<std::uint32_t>(i));
    for (; i < tokens_.size() && tokens_[i] / per_page == entry.ordinal; ++i)
      entry.live |= SlotMask{1} << (tokens_[i] % per_page);
    entries->push_back(entry);
  }
}

}  // namespace kvasir
