// Grows the arrays of a policy's state: by an eighth, but not beyond the most they will ever hold. Capacities depend on
// the requested sizes alone, so RetentionPolicy::most_state_bytes can bound them before anything runs.
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvasir {

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Returns the number of elements by which an array of this capacity grows at least, unless its limit is lower.
constexpr std::size_t growth_step(std::size_t capacity) {
  return std::max<std::size_t>(capacity / 8, 16);
}

// Makes room for `size` elements. `limit`: the most that the array will ever hold, as far as is known.
template <class T>
void grow_to(std::vector<T>& values, std::size_t size, std::size_t limit) {
  const std::size_t capacity = values.capacity();
  if (size <= capacity) return;
  const std::size_t room = limit > capacity ? limit - capacity : 0;
  values.reserve(std::max(size, capacity + std::min(growth_step(capacity), room)));
}

// Returns an upper bound of the capacity that grow_to gives an array of up to `size` elements, for any sequence of
// sizes and any limits up to `limit`.
constexpr std::size_t most_capacity(std::size_t size, std::size_t limit) {
  return std::max(size, std::min(size + growth_step(size), limit));
}

}  // namespace kvasir
