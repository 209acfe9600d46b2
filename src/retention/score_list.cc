#include "retention/score_list.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
void erase_range(std::vector<T>& values, std::size_t first, std::size_t last) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(first), values.begin() + static_cast<std::ptrdiff_t>(last));
}

// Adds room for the unused elements in front.
constexpr std::size_t with_front(std::size_t limit, std::size_t front) {
  return limit > kNoLimit - front ? kNoLimit : limit + front;
}

// Frees the memory, which clear does not.
template <class T>
void release(std::vector<T>& values) {
  std::vector<T>().swap(values);
}

}  // namespace

std::int64_t place_of_lowest(std::span<const double> scores) {
  // Finds the lowest score by blocks, then its place in that block alone. Independent lanes let the compiler use
  // vectors. A comparison with NaN is false.
  constexpr std::size_t kBlock = 512;
  std::array<double, 8> lanes;
  double lowest = kInfinity;
  std::size_t block = 0;
  std::size_t begin = 0;
  for (; begin + kBlock <= scores.size(); begin += kBlock) {
    lanes.fill(kInfinity);
    for (std::size_t i = begin; i < begin + kBlock; i += lanes.size())
      for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        lanes[lane] = scores[i + lane] < lanes[lane] ? scores[i + lane] : lanes[lane];
    const double of_block = *std::min_element(lanes.begin(), lanes.end());
    if (of_block < lowest) block = begin;
    lowest = std::min(lowest, of_block);
  }
  for (; begin < scores.size(); ++begin) {
    if (scores[begin] < lowest) block = begin;
    lowest = scores[begin] < lowest ? scores[begin] : lowest;
  }
  const auto found = std::find(scores.begin() + static_cast<std::ptrdiff_t>(block), scores.end(), lowest);
  return found != scores.end() ? found - scores.begin() : 0;
}

ScoreList::Lowest::Lowest(std::span<const double> scores, std::int64_t count) {
  KVASIR_CHECK(count >= 0 && static_cast<std::size_t>(count) <= scores.size());
  threshold_ = -kInfinity;
  if (count == 0) return;
  std::vector<double> keys(scores.size());
  std::transform(scores.begin(), scores.end(), keys.begin(), key_of);
  const auto last = keys.begin() + (count - 1);
  std::nth_element(keys.begin(), last, keys.end());
  threshold_ = *last;
  // nth_element leaves nothing above the threshold before it.
  ties_ = 1 + std::count(keys.begin(), last, threshold_);
}

double ScoreList::Lowest::key_of(double score) {
  return score == score ? score : kInfinity;
}

void ScoreList::enter(const PolicyChunk& chunk, bool track_places, std::size_t limit) {
  if (next_ == chunk.end()) return;
  KVASIR_CHECK(next_ == chunk.first && size_ == all_ &&
               all_ == std::ssize(tokens_) - static_cast<std::int64_t>(front_));
  if (chunk.rows > 1 || front_ == kMostFront) close_front();
  const std::size_t size = front_ + static_cast<std::size_t>(all_ + chunk.rows);
  limit = with_front(limit, kMostFront);
  grow_to(tokens_, size, limit);
  for (TokenIndex token = chunk.first; token < chunk.end(); ++token) tokens_.push_back(token);
  for (std::vector<double>& values : values_) {
    grow_to(values, size, limit);
    values.resize(size);
  }
  if (chunk.rows > 1) held_.reserve(static_cast<std::size_t>(chunk.rows));
  if (track_places && chunk.rows > 1) {
    places_.reserve(size);
    places_.resize(size);
    std::iota(places_.begin(), places_.end(), 0);
  }
  all_ += chunk.rows;
  next_ = chunk.end();
}

void ScoreList::close_front() {
  erase_range(tokens_, 0, front_);
  for (std::vector<double>& values : values_) erase_range(values, 0, front_);
  front_ = 0;
}

void ScoreList::move(std::size_t from, std::size_t to) {
  tokens_[front_ + to] = tokens_[front_ + from];
  for (std::vector<double>& values : values_) values[front_ + to] = values[front_ + from];
  if (!places_.empty()) places_[to] = places_[from];
}

// Removes the tokens at [to, size()), which are as many as `dropped`.
void ScoreList::close_gap(std::size_t to, std::span<const TokenIndex> dropped) {
  const std::size_t from = to + dropped.size();
  KVASIR_CHECK(static_cast<std::int64_t>(from) == size_);
  if (dropped.empty()) return;
  const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(front_);
  const auto tail =
      std::copy(first + static_cast<std::ptrdiff_t>(from), tokens_.end(), first + static_cast<std::ptrdiff_t>(to));
  std::ranges::copy(dropped, tail);
  for (std::vector<double>& values : values_) erase_range(values, front_ + to, front_ + from);
  if (!places_.empty()) erase_range(places_, to, from);
  size_ -= std::ssize(dropped);
  all_ -= std::ssize(dropped);
}

void ScoreList::drop(std::int64_t place) {
  KVASIR_CHECK(place >= 0 && place < size_);
  const bool room = front_ < kMostFront && places_.empty() && tokens_.size() < tokens_.capacity();
  if (!room || place > all_ / 2) return drop_range(place, place + 1);
  const auto begin = static_cast<std::ptrdiff_t>(front_), end = begin + static_cast<std::ptrdiff_t>(place);
  tokens_.push_back(tokens_[static_cast<std::size_t>(end)]);
  std::copy_backward(tokens_.begin() + begin, tokens_.begin() + end, tokens_.begin() + end + 1);
  for (std::vector<double>& values : values_)
    std::copy_backward(values.begin() + begin, values.begin() + end, values.begin() + end + 1);
  ++front_;
  --size_;
  --all_;
}

void ScoreList::drop_range(std::int64_t first, std::int64_t last) {
  KVASIR_CHECK(first >= 0 && first <= last && last <= size_);
  const std::size_t to = front_ + static_cast<std::size_t>(first), from = front_ + static_cast<std::size_t>(last);
  std::rotate(tokens_.begin() + static_cast<std::ptrdiff_t>(to), tokens_.begin() + static_cast<std::ptrdiff_t>(from),
              tokens_.end());
  for (std::vector<double>& values : values_) erase_range(values, to, from);
  if (!places_.empty()) erase_range(places_, static_cast<std::size_t>(first), static_cast<std::size_t>(last));
  size_ -= last - first;
  all_ -= last - first;
}

void ScoreList::drop_lowest(std::int64_t count, std::int64_t first, std::int64_t last, std::span<const double> scores) {
  count = std::min(count, last - first);
  if (count <= 0) return;
  KVASIR_CHECK(first >= 0 && last <= size_ && static_cast<std::size_t>(last) <= scores.size());
  const auto among = scores.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
  if (count == 1) return drop(first + place_of_lowest(among));
  // The scores may be values of this list: each is read before a token moves to its place.
  Lowest lowest(among, count);
  drop_if([&](std::int64_t i) { return i >= first && i < last && lowest(scores[static_cast<std::size_t>(i)]); });
}

void ScoreList::forget(std::span<const IndexRange> ranges) {
  const std::size_t listed = tokens_.size() - front_ - static_cast<std::size_t>(all_);
  auto next = ranges.begin();
  drop_if([&](std::int64_t i) {
    const TokenIndex token = tokens()[static_cast<std::size_t>(i)];
    while (next != ranges.end() && next->end <= token) ++next;
    return next != ranges.end() && next->begin <= token;
  });
  tokens_.resize(front_ + static_cast<std::size_t>(all_) + listed);
}

void ScoreList::hand_over(KeepPlan& plan) {
  const auto dropped = tokens_.begin() + static_cast<std::ptrdiff_t>(front_) + all_;
  std::sort(dropped, tokens_.end());
  for (auto token = dropped; token != tokens_.end(); ++token) plan.add_drop({*token, *token + 1});
  tokens_.erase(dropped, tokens_.end());
  plan.held.insert(plan.held.end(), held_.begin(), held_.end());
  release(held_);
  if (size_ == all_) release(places_);
  // After a long prompt much shorter arrays may do.
  constexpr std::size_t kMostSpare = 4;
  const std::size_t entered = front_ + static_cast<std::size_t>(all_);
  if (tokens_.capacity() > kMostSpare * (entered + kMostFront)) shrink(entered + growth_step(entered));
}

void ScoreList::shrink(std::size_t capacity) {
  const auto refit = [&](auto& values) {
    std::remove_reference_t<decltype(values)> smaller;
    smaller.reserve(capacity);
    smaller.assign(values.begin(), values.end());
    values.swap(smaller);
  };
  refit(tokens_);
  for (std::vector<double>& values : values_) refit(values);
}

void add_ranges(std::span<const TokenIndex> tokens, std::vector<IndexRange>& ranges) {
  for (const TokenIndex token : tokens) {
    if (!ranges.empty() && ranges.back().end == token)
      ++ranges.back().end;
    else
      ranges.push_back({token, token + 1});
  }
}

void ScoreList::save(ByteWriter& out) const {
  KVASIR_CHECK(size_ == all_ && all_ == std::ssize(tokens_) - static_cast<std::int64_t>(front_) && held_.empty());
  out.put_span(tokens());
  for (int i = 0; i < values_per_token(); ++i) out.put_values(values(i));
}

bool ScoreList::restore(ByteReader& in, TokenIndex next, std::size_t limit) {
  std::uint64_t count = 0;
  if (!in.get_count(count, limit, sizeof(TokenIndex) + values_.size() * sizeof(double))) return false;
  const auto size = static_cast<std::size_t>(count);
  front_ = 0;
  limit = with_front(limit, kMostFront);
  grow_to(tokens_, size, limit);
  tokens_.resize(size);
  if (!in.get_values(std::span<TokenIndex>(tokens_))) return false;
  for (std::vector<double>& values : values_) {
    grow_to(values, size, limit);
    values.resize(size);
    if (!in.get_values(std::span<double>(values))) return false;
  }
  TokenIndex least = 0;
  for (const TokenIndex token : tokens_) {
    if (token < least || token >= next) return false;
    least = token + 1;
  }
  release(places_);
  release(held_);
  size_ = all_ = static_cast<std::int64_t>(size);
  next_ = next;
  return true;
}

std::uint64_t ScoreList::bytes() const {
  std::uint64_t bytes = tokens_.capacity() * sizeof(TokenIndex) + values_.capacity() * sizeof(std::vector<double>) +
                        places_.capacity() * sizeof(std::int32_t) + held_.capacity() * sizeof(std::int64_t);
  for (const std::vector<double>& values : values_) bytes += values.capacity() * sizeof(double);
  return bytes;
}

std::uint64_t ScoreList::most_bytes(int values_per_token, std::size_t tokens, std::size_t limit, int rows,
                                    bool tracks_places) {
  const auto count = static_cast<std::uint64_t>(values_per_token);
  const std::uint64_t most = most_capacity(tokens + kMostFront, with_front(limit, kMostFront));
  std::uint64_t bytes = most * (sizeof(TokenIndex) + count * sizeof(double)) + count * sizeof(std::vector<double>);
  if (rows > 1) bytes += static_cast<std::uint64_t>(rows) * sizeof(std::int64_t);
  if (rows > 1 && tracks_places) bytes += tokens * sizeof(std::int32_t);
  return bytes;
}

}  // namespace kvasir
