// What one table holds, as attention-scored policies keep it: the ids of the retained tokens, ascending, and columns of
// numbers beside them (scores, mostly). All passes are over contiguous arrays; nothing is allocated once the table has
// reached its size.
//
// The tokens of a pass enter together and are inserted one at a time: [0, size()) are retained, [size(), all()) have
// entered, but wait for their turn. Indices are places in these arrays; they move when a token is dropped.
//
// Ties: of equal scores the larger id stays. A score that is not a number counts as the largest.
//
// Thread-safety: none; one object per table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/policy.h"

namespace kvasir {

class TokenTable {
 public:
  explicit TokenTable(int columns = 1) : columns_(static_cast<std::size_t>(columns)) {}

  std::int64_t size() const { return size_; }                                  // tokens retained
  std::int64_t all() const { return static_cast<std::int64_t>(ids_.size()); }  // and those that wait
  TokenIndex next_id() const { return next_id_; }                              // behind the last token that entered
  std::span<const TokenIndex> ids() const { return ids_; }
  int columns() const { return static_cast<int>(columns_.size()); }
  std::span<double> values(int column = 0) { return columns_[static_cast<std::size_t>(column)]; }
  std::span<const double> values(int column = 0) const { return columns_[static_cast<std::size_t>(column)]; }

  // The tokens of the pass enter, with zeros in all columns; nothing if they have. `track_places`: place_in_pass will
  // be asked for.
  void enter(const PolicyPass& pass, bool track_places);
  void insert_next() { ++size_; }

  // Where the token at `index` stood when its pass began: the index of its mass in what observe is given.
  std::int64_t place_in_pass(std::int64_t index) const {
    return places_.empty() ? index : places_[static_cast<std::size_t>(index)];
  }

  // Drops one retained token.
  void drop(std::int64_t index);
  // Drops the retained tokens at [first, last).
  void drop_range(std::int64_t first, std::int64_t last);

  // Drops each retained token for which gone(index) is true. It is asked once for each, in ascending order, before any
  // index moves.
  template <class Gone>
  void drop_if(Gone&& gone) {
    std::size_t to = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
      if (gone(static_cast<std::int64_t>(i))) {
        dropped_.push_back(ids_[i]);
      } else {
        if (to != i) move(i, to);
        ++to;
      }
    }
    close_gap(to, static_cast<std::size_t>(size_));
  }

  // Drops the `count` lowest of `scores` (which has one number for each index) among the indices [first, last).
  // REQUIRES: 0 <= first; last <= size() and last <= scores.size().
  void drop_lowest(std::int64_t count, std::int64_t first, std::int64_t last, std::span<const double> scores);

  // Takes tokens out without listing them as dropped; those the table does not hold are passed over. ids ascend.
  void forget(std::span<const TokenIndex> ids);

  // Appends what was dropped since the last call to `drop`, in ascending order.
  void hand_over(std::vector<TokenIndex>& drop);

  // Writes down how many tokens are retained now, for KeepPlan::held.
  void note_held() { held_.push_back(size_); }
  // What was written down since the last call.
  void hand_over_held(std::vector<std::int64_t>& held) {
    held.assign(held_.begin(), held_.end());
    held_.clear();
  }

  // For the `count` lowest of a list of scores: asked in ascending order of index, says whether a score is one of them.
  // Of equal scores the first ones are.
  class Lowest {
   public:
    // `scratch` is overwritten.
    Lowest(std::span<const double> scores, std::int64_t count, std::vector<double>& scratch);
    bool operator()(double score) {
      const double key = key_of(score);
      if (key < threshold_) return true;
      if (key > threshold_ || ties_ == 0) return false;
      --ties_;
      return true;
    }

   private:
    static double key_of(double score);
    double threshold_;
    std::int64_t ties_ = 0;  // scores equal to the threshold that are still to be counted in
  };

  // Numbers for one decision, kept only for their memory.
  std::vector<double>& scratch() { return scratch_; }

 private:
  void move(std::size_t from, std::size_t to);
  void close_gap(std::size_t to, std::size_t from);

  std::vector<TokenIndex> ids_;
  std::vector<std::vector<double>> columns_;
  std::vector<std::int32_t> places_;  // empty: every token stands where it stood
  std::vector<TokenIndex> dropped_;   // since the last hand_over
  std::vector<std::int64_t> held_;    // since the last hand_over_held
  std::vector<double> scratch_;
  std::int64_t size_ = 0;
  TokenIndex next_id_ = 0;
};

// The index of the smallest of the scores; of equal ones the first. Those that are not numbers are passed over; 0 if
// there is no other. REQUIRES: scores is not empty.
std::int64_t index_of_lowest(std::span<const double> scores);

}  // namespace kvasir
