// Loops whose numbers are constants. Internal to the translation units that include it.
#pragma once

#include <type_traits>
#include <utility>

namespace kvasir {
namespace {

// Calls run(0), ..., run(kCount - 1) with constants.
template <int kCount, class Run>
[[gnu::always_inline]] inline void unrolled(const Run& run) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) __attribute__((always_inline)) {
    (run(std::integral_constant<int, kNumbers>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace kvasir
