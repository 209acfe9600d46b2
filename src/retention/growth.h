// How the arrays of a policy's state grow: by an eighth, but not beyond what they will ever hold. Capacities are a
// function of the sizes asked for, so that a bound on them can be stated before anything runs
// (RetentionPolicy::most_state_bytes). Thread-safety: pure functions of their arguments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvasir {

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Elements by which an array of this capacity grows at least, where it may.
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

// The most capacity that grow_to gives an array of up to `size` elements, whatever the sizes on the way and whatever
// limits up to `limit` were given.
constexpr std::size_t most_capacity(std::size_t size, std::size_t limit) {
  return std::max(size, std::min(size + growth_step(size), limit));
}

}  // namespace kvasir
