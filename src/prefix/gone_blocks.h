// Which blocks of texts the prefix cache has lost, and why. It knows the newest of them.
// Thread-safety: none; as the prefix cache.
#pragma once

#include <cstdint>
#include <list>
#include <string_view>
#include <unordered_map>

namespace kvasir {

// Why no more of a text was found.
enum class PrefixMiss {
  kNone,     // all was found that could be
  kShort,    // the text is shorter than a block
  kUnknown,  // no text was seen that goes on like this
  kEvicted,  // it was, but had to go since
  kExpired,  // it was, but its time to live has passed
  kPolicy,   // it was, but this policy cannot continue from there
  kNoRoom,   // it was, but there was no memory for the page tables of one more sequence
  kCodec,    // it was, but stored in another codec
};
std::string_view prefix_miss_name(PrefixMiss miss);

class GoneBlocks {
 public:
  // `hash`: of the block and the text before it, which went or lost something.
  void remember(std::uint64_t hash, PrefixMiss why);
  void forget(std::uint64_t hash);
  PrefixMiss reason(std::uint64_t hash) const;  // that is remembered, or kNone
  void check_invariants() const;

 private:
  struct Gone {
    PrefixMiss why = PrefixMiss::kNone;
    std::list<std::uint64_t>::iterator place;  // in order_
  };
  std::unordered_map<std::uint64_t, Gone> gone_;
  std::list<std::uint64_t> order_;  // oldest first
};

}  // namespace kvasir
