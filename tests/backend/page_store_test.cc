// What a page holds, as floats.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/generic.h"
#include "backend/cpu/kernels/pages/page_layout.h"
#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace kvasir::test {
namespace {

TEST(CpuPageStore, OpensEveryHalf) {
  constexpr int kDim = 64, kSlots = 64, kElements = kDim * kSlots, kPages = 65536 / kElements;
  ThreadPool threads(1);
  CpuPageStore store(&generic_kernels(), &threads, {});
  const PageFormat format{.head_dim = kDim, .slots = kSlots};
  ASSERT_TRUE(store.reserve(PageClass{0}, format, kPages).ok());
  std::vector<float> keys(kElements), values(kElements);
  for (int p = 0; p < kPages; ++p) {
    const PageId page = page_id(PageClass{0}, static_cast<std::uint64_t>(p));
    std::vector<std::uint16_t> halves(kElements);
    for (int i = 0; i < kElements; ++i)
      halves[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(p * kElements + i);
    std::memcpy(store.data(page), halves.data(), kElements * 2);
    std::memcpy(store.data(page) + values_offset(format), halves.data(), kElements * 2);
    store.read_keys(page, keys.data());
    store.read_values(page, values.data());
    for (int slot = 0; slot < kSlots; ++slot)
      for (int d = 0; d < kDim; ++d) {
        const auto at = static_cast<std::size_t>(slot * kDim + d);
        const std::uint16_t key = halves[static_cast<std::size_t>(d * kSlots + slot)];
        ASSERT_EQ(std::bit_cast<std::uint32_t>(keys[at]), std::bit_cast<std::uint32_t>(f16_to_f32(key))) << key;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[at]), std::bit_cast<std::uint32_t>(f16_to_f32(halves[at])));
      }
  }
}

}  // namespace
}  // namespace kvasir::test
