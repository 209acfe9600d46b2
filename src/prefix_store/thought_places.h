// Remembers before which places of texts answers had thoughts, to say why a conversation that goes on without them
// finds no more in the prefix cache. Texts are compared by hash: an answer's report depends on it, not its tokens.
// Thread-safety: none; as the prefix cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_set>

#include "prefix/prefix_tree.h"

namespace kvasir {

class ThoughtPlaces {
 public:
  static constexpr std::size_t kMost = 4096;  // that are remembered

  // Remembers that thoughts followed these tokens.
  void remember(const PrefixSpace& space, std::span<const TokenId> tokens);
  // Returns whether thoughts once followed the first n tokens, for any n from `from` to one less than all. Linear in
  // the number of tokens.
  bool passed(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t from) const;

 private:
  std::unordered_set<std::uint64_t> hashes_;
  std::deque<std::uint64_t> order_;  // oldest first
};

}  // namespace kvasir
