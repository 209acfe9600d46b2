#include "tasks/metrics/lcs.h"

#include <algorithm>

namespace kvasir::metrics {

// Computes the rows by Crochemore's recurrence: row' = (row + (row & mask)) | (row & ~mask).
void LcsAligner::fill_rows(TokenSpan x, TokenSpan y, std::size_t words) {
  rows_.resize(x.size() * words);
  if (words == 1) {
    std::uint64_t row = ~std::uint64_t{0};
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::uint64_t mask = 0;
      for (std::size_t j = 0; j < y.size(); ++j) mask |= std::uint64_t{x[i] == y[j]} << j;
      row = (row + (row & mask)) | (row & ~mask);
      rows_[i] = row;
    }
    return;
  }
  places_.clear();
  for (std::size_t j = 0; j < y.size(); ++j) places_.emplace_back(y[j], j);
  std::sort(places_.begin(), places_.end());
  mask_.assign(words, 0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto first = std::lower_bound(places_.begin(), places_.end(), std::pair{x[i], std::size_t{0}});
    const auto mark = [&](bool set) {
      for (auto place = first; place != places_.end() && place->first == x[i]; ++place) {
        const std::uint64_t bit = std::uint64_t{1} << place->second % 64;
        mask_[place->second / 64] = set ? mask_[place->second / 64] | bit : 0;
      }
    };
    mark(true);
    std::uint64_t carry = 0;
    for (std::size_t word = 0; word < words; ++word) {
      const std::uint64_t row = i == 0 ? ~std::uint64_t{0} : rows_[(i - 1) * words + word];
      const std::uint64_t common = row & mask_[word];
      const std::uint64_t partial = row + common;
      const std::uint64_t sum = partial + carry;
      carry = std::uint64_t{partial < row} | std::uint64_t{sum < partial};
      rows_[i * words + word] = sum | (row & ~mask_[word]);
    }
    mark(false);
  }
}

std::span<const LcsAligner::Pair> LcsAligner::align(TokenSpan x, TokenSpan y) {
  pairs_.clear();
  if (x.empty() || y.empty()) return pairs_;
  const std::size_t words = (y.size() + 63) / 64;
  fill_rows(x, y, words);
  for (std::size_t i = x.size(), j = y.size(); i > 0 && j > 0;) {
    if (x[i - 1] == y[j - 1]) {
      pairs_.push_back({--i, --j});
    } else if ((rows_[(i - 1) * words + (j - 1) / 64] >> (j - 1) % 64 & 1) == 0) {
      --i;
    } else {
      --j;
    }
  }
  return pairs_;
}

}  // namespace kvasir::metrics
