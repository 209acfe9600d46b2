// Random choices of one item. They are the same on every machine.
// Thread-safety: Draws is a value; the functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/splitmix.h"

namespace kvasir::generated {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed) {}

  // The draws of part `part` of something with this seed: line 7 of a haystack is the same however many follow it.
  static Draws of_part(std::uint64_t seed, std::int64_t part);

  std::uint64_t next() { return random_.next(); }
  std::int64_t below(std::int64_t count) { return random_.below(count); }  // REQUIRES: count > 0
  std::int64_t between(std::int64_t first, std::int64_t last) { return first + below(last - first + 1); }

  std::string_view pick(std::span<const std::string_view> from) {  // REQUIRES: not empty
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>* items) {
    for (std::size_t i = items->size(); i > 1; --i)
      std::swap((*items)[i - 1], (*items)[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
  }

  std::string number(int digits);                                    // the first digit is not 0
  std::string digits(int count);                                     // any digits
  std::string letters(int count, char first);                        // of 26 from `first`
  std::string uuid();                                                // version 4
  std::string word_pair();                                           // "amber-lantern"
  std::vector<std::int64_t> distinct(std::int64_t of, std::size_t);  // numbers below `of`. REQUIRES: that many

 private:
  SplitMix random_;
};

// Words that differ by their index, in an order that a seed chooses: first adjective-noun pairs, and once these are
// used up, triples with two adjectives.
class WordSequence {
 public:
  explicit WordSequence(Draws* draws);
  std::string at(std::int64_t index) const;  // REQUIRES: 0 <= index < 2^25

 private:
  // index -> (multiplier * index + offset) % size visits each number below `size` once.
  struct Permutation {
    std::int64_t size = 1;
    std::int64_t multiplier = 1;
    std::int64_t offset = 0;
    std::int64_t at(std::int64_t index) const { return (multiplier * index + offset) % size; }
  };
  static Permutation permutation(Draws* draws, std::int64_t size);

  Permutation pairs_;
  Permutation triples_;
};

}  // namespace kvasir::generated
