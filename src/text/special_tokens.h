// Finds the tokens that are recognised whole in a text: control, unknown and user-defined tokens.
//
// Overlaps are resolved by priority: longer tokens first, over the whole text, then lower ids; each from left to right.
// A match lies within one part of the text and does not overlap an earlier match.
// Thread-safety: immutable after construction. Refers to the vocabulary, which must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir {

class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  struct Place {
    std::size_t begin = 0;
    TokenId token = 0;
  };
  // Returns the matches in one part of a text, from left to right. Control and unknown tokens match only with
  // `parse_special`, as do the user-defined ones of `reserved`. Time: one pass over the text, plus, for each stretch of
  // overlapping candidates, one pass per distinct token length in it.
  std::vector<Place> find(std::string_view text, bool parse_special, std::span<const TokenId> reserved) const;

 private:
  struct Query {
    std::string_view text;
    bool parse_special;
    std::span<const TokenId> reserved;
  };

  std::size_t match(std::string_view text, std::vector<std::size_t>* lengths) const;
  TokenId token_of(std::string_view piece, const Query& query) const;
  void settle(const Query& query, std::size_t begin, std::size_t end, const std::vector<std::size_t>& lengths,
              std::vector<Place>* places) const;

  const Vocabulary* vocabulary_;
  std::vector<std::string_view> pieces_;                             // distinct, in order
  std::vector<std::vector<TokenId>> tokens_;                         // of each piece, lowest id first
  std::array<std::pair<std::size_t, std::size_t>, 256> by_first_{};  // ranges of pieces_
};

}  // namespace kvasir
