// The tokens that one table retains, for attention-scored policies: token indices, ascending, with numbers
// (mostly scores), in contiguous arrays. Nothing is allocated once the list has reached its largest size.
//
// The tokens of a chunk enter together and are inserted one at a time: places [0, size()) are retained tokens,
// [size(), all()) have entered but are not inserted yet. A place is an index into these arrays; it changes when a token
// before it is dropped.
//
// Ties: of equal scores the larger index stays. A NaN score counts as the largest.
//
// Thread-safety: none; one object per table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "retention/growth.h"
#include "retention/policy.h"

namespace kvasir {

class ScoreList {
 public:
  explicit ScoreList(int values_per_token = 1) : values_(static_cast<std::size_t>(values_per_token)) {}

  std::int64_t size() const { return size_; }      // tokens retained
  std::int64_t all() const { return all_; }        // tokens retained or waiting to be inserted
  TokenIndex next_token() const { return next_; }  // the index behind the last token that entered
  std::span<const TokenIndex> tokens() const { return {tokens_.data() + front_, static_cast<std::size_t>(all_)}; }
  int values_per_token() const { return static_cast<int>(values_.size()); }
  std::span<double> values(int i = 0) { return std::span(values_[static_cast<std::size_t>(i)]).subspan(front_); }
  std::span<const double> values(int i = 0) const {
    return std::span(values_[static_cast<std::size_t>(i)]).subspan(front_);
  }

  // Lets the chunk's tokens enter, with zeros, unless they have. `track_places`: place_in_chunk will be called.
  // `limit`: the most tokens that the list will ever hold, as far as is known.
  void enter(const PolicyChunk& chunk, bool track_places, std::size_t limit = kNoLimit);
  void insert_next() { ++size_; }

  // Returns the place that the token at `place` had when its chunk began, which is the place of its mass in observe.
  std::int64_t place_in_chunk(std::int64_t place) const {
    return places_.empty() ? place : places_[static_cast<std::size_t>(place)];
  }

  // Drops one retained token.
  void drop(std::int64_t place);
  // Drops the retained tokens at [first, last).
  void drop_range(std::int64_t first, std::int64_t last);

  // Drops each retained token for which gone(place) is true. Calls gone once per token, in ascending order, with the
  // place that the token had before the call.
  template <class Gone>
  void drop_if(Gone&& gone) {
    std::vector<TokenIndex> dropped;
    std::size_t to = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
      if (gone(static_cast<std::int64_t>(i))) {
        dropped.push_back(tokens_[front_ + i]);
      } else {
        if (to != i) move(i, to);
        ++to;
      }
    }
    close_gap(to, dropped);
  }

  // Drops the `count` lowest of `scores` (which has one number for each place) among the places [first, last).
  // REQUIRES: 0 <= first; last <= size() and last <= scores.size().
  void drop_lowest(std::int64_t count, std::int64_t first, std::int64_t last, std::span<const double> scores);

  // Removes retained tokens without listing them as dropped. Tokens that the list does not hold are ignored. Ranges
  // ascend.
  void forget(std::span<const IndexRange> ranges);

  // Adds the tokens dropped since the last call to plan.drop, and the counts noted since then to plan.held. Frees
  // memory if the list has become much shorter than its arrays.
  void hand_over(KeepPlan& plan);

  // Notes how many tokens are retained now, for KeepPlan::held.
  void note_held() { held_.push_back(size_); }

  // REQUIRES: no chunk is under way.
  void save(ByteWriter& out) const;
  // Returns false for bytes that save does not write, or if other than `next` tokens were seen. Any number is a score.
  bool restore(ByteReader& in, TokenIndex next, std::size_t limit = kNoLimit);

  // Bytes allocated now, and the most for up to `tokens` entered tokens in chunks of up to `rows` rows.
  std::uint64_t bytes() const;
  static std::uint64_t most_bytes(int values_per_token, std::size_t tokens, std::size_t limit, int rows,
                                  bool tracks_places);

  // Says whether a score is among the `count` lowest of a list; of equal scores the first ones are. REQUIRES: it is
  // called for all scores of the list, in their order.
  class Lowest {
   public:
    Lowest(std::span<const double> scores, std::int64_t count);
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
    std::int64_t ties_ = 0;  // how many more scores equal to the threshold are among the lowest
  };

 private:
  void move(std::size_t from, std::size_t to);
  void close_gap(std::size_t to, std::span<const TokenIndex> dropped);
  void close_front();
  void shrink(std::size_t capacity);

  // The largest front_.
  static constexpr std::size_t kMostFront = 24;

  // Unused elements at the front of tokens_ and of each array of values. To drop a single token, the shorter side of
  // the array moves: mostly the side before it, since policies mostly keep the newest tokens.
  std::size_t front_ = 0;
  // Places [0, all_), then the tokens dropped since the last hand_over, so that no token needs room twice.
  std::vector<TokenIndex> tokens_;
  std::vector<std::vector<double>> values_;
  std::vector<std::int32_t> places_;  // place_in_chunk of each place; empty: no place changed
  std::vector<std::int64_t> held_;    // counts noted since the last hand_over
  std::int64_t size_ = 0;
  std::int64_t all_ = 0;
  TokenIndex next_ = 0;
};

// Appends ascending tokens to `ranges` as ranges that do not touch.
void add_ranges(std::span<const TokenIndex> tokens, std::vector<IndexRange>& ranges);

// Returns the place of the smallest score; of equal ones the first. Ignores NaNs; 0 if there is nothing else. REQUIRES:
// scores is not empty.
std::int64_t place_of_lowest(std::span<const double> scores);

}  // namespace kvasir
