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

// Fetches a page into the second-level cache in kFetches shares, between which other work goes on: more at a time would
// wait for one another.
inline constexpr int kFetches = 4;
inline constexpr int kPagesAhead = 2;
class PageFetch {
 public:
  PageFetch(const std::byte* page, std::size_t bytes) : at_(page), end_(page + bytes), share_(bytes / kFetches) {}
  void operator()() {
    for (const std::byte* end = end_ - at_ < 2 * share_ ? end_ : at_ + share_; at_ < end; at_ += 64)
      __builtin_prefetch(at_, 0, 2);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  std::ptrdiff_t share_;
};

}  // namespace
}  // namespace kvasir
