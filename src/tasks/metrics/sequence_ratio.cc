#include "tasks/metrics/sequence_ratio.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tasks/metrics/python_text.h"

namespace kvasir::metrics {
namespace {

class BlockMatcher {
 public:
  BlockMatcher(std::string_view a, std::string_view b, std::int64_t steps)
      : a_(code_points(a)), b_(code_points(b)), steps_(steps), run_(b_.size() + 1, 0), next_run_(b_.size() + 1, 0) {
    index_characters();
  }

  double ratio() {
    if (a_.empty() && b_.empty()) return 1;
    std::size_t matched = 0;
    std::vector<Range> pending = {{0, a_.size(), 0, b_.size()}};
    while (!pending.empty()) {
      const Range range = pending.back();
      pending.pop_back();
      const Block block = longest(range);
      if (block.size == 0) continue;
      matched += block.size;
      const Range before = {range.a_begin, block.a, range.b_begin, block.b};
      const Range after = {block.a + block.size, range.a_end, block.b + block.size, range.b_end};
      for (const Range& side : {before, after}) {
        if (side.a_begin < side.a_end && side.b_begin < side.b_end) pending.push_back(side);
      }
    }
    return 2.0 * static_cast<double>(matched) / static_cast<double>(a_.size() + b_.size());
  }

 private:
  struct Range {
    std::size_t a_begin, a_end, b_begin, b_end;
  };
  struct Block {
    std::size_t a, b, size;
  };
  struct Places {
    std::size_t begin, end;  // of places_
  };

  // Finds for each character of `a` its places in `b`; none for a popular one.
  void index_characters() {
    std::vector<std::pair<char32_t, std::size_t>> order;
    for (std::size_t j = 0; j < b_.size(); ++j) order.emplace_back(b_[j], j);
    std::sort(order.begin(), order.end());
    for (const auto& [code, place] : order) places_.push_back(place);
    const std::size_t most = b_.size() >= 200 ? b_.size() / 100 + 1 : b_.size();
    for (const char32_t code : a_) {
      const auto [begin, end] = std::equal_range(order.begin(), order.end(), std::pair{code, std::size_t{0}},
                                                 [](const auto& x, const auto& y) { return x.first < y.first; });
      const auto size = static_cast<std::size_t>(end - begin);
      const auto from = static_cast<std::size_t>(begin - order.begin());
      of_a_.push_back({from, size > most ? from : from + size});
    }
  }

  // Returns the longest block of characters that are not popular, the first of those in `a`, then in `b`, extended by
  // equal characters on both sides. Size 0 if there is none, or no step is left.
  Block longest(const Range& range) {
    Block best = {range.a_begin, range.b_begin, 0};
    Places before = {0, 0};
    for (std::size_t i = range.a_begin; i < range.a_end; ++i) {
      const auto at = [&](std::size_t index) { return places_.begin() + static_cast<std::ptrdiff_t>(index); };
      const auto first = std::lower_bound(at(of_a_[i].begin), at(of_a_[i].end), range.b_begin);
      const auto last = std::lower_bound(first, at(of_a_[i].end), range.b_end);
      steps_ -= 1 + (last - first);
      if (steps_ < 0) {
        best.size = 0;
        break;
      }
      for (auto place = first; place != last; ++place) {
        const std::size_t size = next_run_[*place + 1] = run_[*place] + 1;
        if (size > best.size) best = {i + 1 - size, *place + 1 - size, size};
      }
      clear(&run_, before);
      before = {static_cast<std::size_t>(first - places_.begin()), static_cast<std::size_t>(last - places_.begin())};
      run_.swap(next_run_);
    }
    clear(&run_, before);
    if (steps_ < 0) return best;
    while (best.a > range.a_begin && best.b > range.b_begin && a_[best.a - 1] == b_[best.b - 1]) {
      best = {best.a - 1, best.b - 1, best.size + 1};
    }
    while (best.a + best.size < range.a_end && best.b + best.size < range.b_end &&
           a_[best.a + best.size] == b_[best.b + best.size]) {
      ++best.size;
    }
    return best;
  }

  void clear(std::vector<std::size_t>* runs, Places places) {
    for (std::size_t k = places.begin; k < places.end; ++k) (*runs)[places_[k] + 1] = 0;
  }

  std::u32string a_;
  std::u32string b_;
  std::int64_t steps_;
  std::vector<std::size_t> places_;  // in `b`, by character and then ascending
  std::vector<Places> of_a_;         // for each character of `a`
  std::vector<std::size_t> run_;     // [1 + place in b]: length of the run of equal characters that ends there
  std::vector<std::size_t> next_run_;
};

}  // namespace

double sequence_ratio(std::string_view a, std::string_view b, std::int64_t steps) {
  return BlockMatcher(a, b, steps).ratio();
}

}  // namespace kvasir::metrics
