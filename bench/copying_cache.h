// The cache that the papers' own code keeps, as a baseline: keys and values in one array each,
// [heads][tokens][head_dim] f16. Every step makes the new arrays by slicing and concatenating the old ones
// (StreamingLLM, Xiao et al., its published evict_for_space; Cascading KV cache, Willette et al., section 4.1,
// "naive"), and rotates all keys to their new positions. Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::bench {

class CopyingCache {
 public:
  CopyingCache(int heads, int head_dim, int capacity);

  // Drops the token at `index`, appends one: both arrays are copied as a whole.
  void step(int index, const std::uint16_t* key, const std::uint16_t* value);

  // What attention would read: all keys rotated to positions 0 ... tokens - 1.
  const std::uint16_t* rotate();

  int tokens() const { return capacity_; }
  std::size_t bytes_moved_by_step() const;    // read and written
  std::size_t bytes_moved_by_rotate() const;  // read and written

 private:
  int heads_;
  int head_dim_;
  int capacity_;
  std::vector<std::uint16_t> keys_, values_, new_keys_, new_values_, rotated_;
  std::vector<float> cosine_, sine_;  // [tokens][head_dim / 2]
};

}  // namespace kvasir::bench
