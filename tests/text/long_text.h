// How long the texts of the tests about time are: what takes a quadratic search hours takes this one seconds.
#pragma once

#include <cstddef>

namespace kvasir::test {

#ifdef KVASIR_SANITIZED
inline constexpr std::size_t kMegabyte = 100 * 1000;  // instrumented code gets a tenth of the work
#else
inline constexpr std::size_t kMegabyte = 1000 * 1000;
#endif
// The text that a long one is compared with has 1/kTimes of its size.
inline constexpr std::size_t kTimes = 32;

}  // namespace kvasir::test
