// Merges adjacent symbols, the cheapest pair first, leftmost first among equals, until no pair merges: the loop that
// SPM and BPE share. Time: O(n log n) for n symbols. Memory: linear, kept for the next run.
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir {

struct MergeSymbol {
  std::uint32_t begin;  // bytes of the run that it covers
  std::uint32_t size;
  std::int32_t value;  // chosen by the caller
};

// Cost: an arithmetic type; the lowest is merged first.
template <class Cost>
class PairMerger {
 public:
  struct Union {
    Cost cost;
    std::int32_t value;
  };

  void clear() { symbols_.clear(); }

  // Adds a symbol on the right. REQUIRES: size > 0.
  void push(std::uint32_t size, std::int32_t value) {
    const auto index = static_cast<std::int32_t>(symbols_.size());
    std::uint32_t begin = 0;
    if (!symbols_.empty()) {
      begin = symbols_.back().symbol.begin + symbols_.back().symbol.size;
      symbols_.back().next = index;
    }
    symbols_.push_back({{begin, size, value}, index - 1, kEnd});
  }

  // `find(left, right)` returns the merge of two adjacent symbols; nullopt if they do not merge.
  template <class Find>
  void merge(const Find& find) {
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) propose(static_cast<std::int32_t>(i), find);
    while (!heap_.empty()) {
      const Proposal best = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), comes_later);
      heap_.pop_back();
      Node& left = at(best.left);
      Node& right = at(best.right);
      if (left.symbol.size == 0 || right.symbol.size == 0 || left.symbol.size + right.symbol.size != best.size)
        continue;
      left.symbol.size = best.size;
      left.symbol.value = best.value;
      left.next = right.next;
      right.symbol.size = 0;
      if (left.next != kEnd) at(left.next).previous = best.left;
      if (left.previous != kEnd) propose(left.previous, find);
      propose(best.left, find);
    }
  }

  // Calls visit(symbol) for the remaining symbols, from left to right.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::int32_t i = symbols_.empty() ? kEnd : 0; i != kEnd; i = symbols_[static_cast<std::size_t>(i)].next) {
      visit(symbols_[static_cast<std::size_t>(i)].symbol);
    }
  }

 private:
  static constexpr std::int32_t kEnd = -1;

  struct Node {
    MergeSymbol symbol;  // size 0: merged into its left neighbour
    std::int32_t previous;
    std::int32_t next;
  };
  struct Proposal {
    Cost cost;
    std::int32_t left;
    std::int32_t right;
    std::uint32_t size;  // of both together when queued; if it has changed since, the entry is stale
    std::int32_t value;
  };

  static bool comes_later(const Proposal& a, const Proposal& b) {
    return a.cost > b.cost || (a.cost == b.cost && a.left > b.left);
  }

  Node& at(std::int32_t index) { return symbols_[static_cast<std::size_t>(index)]; }

  template <class Find>
  void propose(std::int32_t left, const Find& find) {
    const Node& first = at(left);
    if (first.next == kEnd) return;
    const Node& second = at(first.next);
    const std::optional<Union> merged = find(first.symbol, second.symbol);
    if (!merged) return;
    heap_.push_back({merged->cost, left, first.next, first.symbol.size + second.symbol.size, merged->value});
    std::push_heap(heap_.begin(), heap_.end(), comes_later);
  }

  std::vector<Node> symbols_;
  std::vector<Proposal> heap_;
};

}  // namespace kvasir
