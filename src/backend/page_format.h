// What a page is, as all parts see it: a number, a format, and a mask of slots. Its layout in memory is known to the
// backend alone.
// Thread-safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/kv_page.h"

namespace kvasir {

// The number of a page in its pool.
enum class PageId : std::uint32_t {};

}  // namespace kvasir
