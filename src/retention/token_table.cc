#include "retention/token_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
void erase_range(std::vector<T>& values, std::size_t first, std::size_t last) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(first), values.begin() + static_cast<std::ptrdiff_t>(last));
}

}  // namespace

std::int64_t index_of_lowest(std::span<const double> scores) {
  // Independent lanes, so that the compiler may use vectors; a comparison with what is not a number is false.
  std::array<double, 8> lanes;
  lanes.fill(kInfinity);
  const std::size_t whole = scores.size() / lanes.size() * lanes.size();
  for (std::size_t i = 0; i < whole; i += lanes.size())
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
      lanes[lane] = scores[i + lane] < lanes[lane] ? scores[i + lane] : lanes[lane];
  double lowest = *std::min_element(lanes.begin(), lanes.end());
  for (std::size_t i = whole; i < scores.size(); ++i) lowest = scores[i] < lowest ? scores[i] : lowest;
  const auto found = std::find(scores.begin(), scores.end(), lowest);
  return found != scores.end() ? found - scores.begin() : 0;
}

TokenTable::Lowest::Lowest(std::span<const double> scores, std::int64_t count, std::vector<double>& scratch) {
  KVASIR_CHECK(count >= 0 && static_cast<std::size_t>(count) <= scores.size());
  threshold_ = -kInfinity;
  if (count == 0) return;
  scratch.resize(scores.size());
  std::transform(scores.begin(), scores.end(), scratch.begin(), key_of);
  const auto last = scratch.begin() + (count - 1);
  std::nth_element(scratch.begin(), last, scratch.end());
  threshold_ = *last;
  // What stands before the threshold is not above it.
  ties_ = 1 + std::count(scratch.begin(), last, threshold_);
}

double TokenTable::Lowest::key_of(double score) {
  return score == score ? score : kInfinity;
}

void TokenTable::enter(const PolicyPass& pass, bool track_places) {
  const TokenIndex end = pass.first + pass.rows;
  if (next_id_ == end) return;
  KVASIR_CHECK(next_id_ == pass.first && size_ == all());
  for (TokenIndex id = pass.first; id < end; ++id) ids_.push_back(id);
  for (std::vector<double>& column : columns_) column.resize(ids_.size());
  places_.clear();
  if (track_places && pass.rows > 1) {
    places_.resize(ids_.size());
    std::iota(places_.begin(), places_.end(), 0);
  }
  next_id_ = end;
}

void TokenTable::move(std::size_t from, std::size_t to) {
  ids_[to] = ids_[from];
  for (std::vector<double>& column : columns_) column[to] = column[from];
  if (!places_.empty()) places_[to] = places_[from];
}

void TokenTable::close_gap(std::size_t to, std::size_t from) {
  if (to == from) return;
  erase_range(ids_, to, from);
  for (std::vector<double>& column : columns_) erase_range(column, to, from);
  if (!places_.empty()) erase_range(places_, to, from);
  size_ -= static_cast<std::int64_t>(from - to);
}

void TokenTable::drop(std::int64_t index) {
  drop_range(index, index + 1);
}

void TokenTable::drop_range(std::int64_t first, std::int64_t last) {
  KVASIR_CHECK(first >= 0 && first <= last && last <= size_);
  dropped_.insert(dropped_.end(), ids_.begin() + first, ids_.begin() + last);
  close_gap(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
}

void TokenTable::drop_lowest(std::int64_t count, std::int64_t first, std::int64_t last,
                             std::span<const double> scores) {
  count = std::min(count, last - first);
  if (count <= 0) return;
  KVASIR_CHECK(first >= 0 && last <= size_ && static_cast<std::size_t>(last) <= scores.size());
  const auto among = scores.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
  if (count == 1) return drop(first + index_of_lowest(among));
  // The scores may be a column of this table: each is read before a token moves to its place.
  Lowest lowest(among, count, scratch_);
  drop_if([&](std::int64_t i) { return i >= first && i < last && lowest(scores[static_cast<std::size_t>(i)]); });
}

void TokenTable::forget(std::span<const TokenIndex> ids) {
  const std::size_t kept = dropped_.size();
  auto next = ids.begin();
  drop_if([&](std::int64_t i) {
    const TokenIndex id = ids_[static_cast<std::size_t>(i)];
    while (next != ids.end() && *next < id) ++next;
    return next != ids.end() && *next == id;
  });
  dropped_.resize(kept);
}

void TokenTable::hand_over(std::vector<TokenIndex>& drop) {
  drop.insert(drop.end(), dropped_.begin(), dropped_.end());
  if (!std::is_sorted(drop.begin(), drop.end())) std::sort(drop.begin(), drop.end());
  dropped_.clear();
}

}  // namespace kvasir
