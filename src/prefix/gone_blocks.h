// Remembers which blocks of texts the prefix cache has lost lately, and why.
// Thread-safety: none; as the prefix cache.
#pragma once

#include <cstdint>
#include <list>
#include <string_view>
#include <unordered_map>

namespace kvasir {

// Why no longer beginning of a text was found.
enum class PrefixMiss {
  kNone,      // everything usable was found
  kShort,     // the text is shorter than a block
  kUnknown,   // no text with a longer common beginning was seen
  kEvicted,   // one was, but has been evicted
  kExpired,   // one was, but its time to live has passed
  kPolicy,    // one is held, but this policy cannot continue it
  kNoRoom,    // one is held, but there was no memory for the page tables of one more sequence
  kCodec,     // one is held, but in another codec
  kThoughts,  // one is held that goes on with thoughts, which this text leaves out
};
std::string_view prefix_miss_name(PrefixMiss miss);

class GoneBlocks {
 public:
  // Notes that a block was removed or lost its content. `hash`: of the block and the text before it.
  void remember(std::uint64_t hash, PrefixMiss why);
  void forget(std::uint64_t hash);
  PrefixMiss reason(std::uint64_t hash) const;  // kNone: not remembered
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
