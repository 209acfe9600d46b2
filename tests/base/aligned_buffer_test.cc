#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(AlignedBuffer, GrowsOnlyAndIsAligned) {
  AlignedBuffer<float> buffer;
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0u);
  float* first = buffer.ensure(10);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  first[9] = 3.0F;
  EXPECT_EQ(buffer.ensure(5), first);
  EXPECT_EQ(buffer.ensure(10), first);
  EXPECT_EQ(first[9], 3.0F);
  EXPECT_EQ(buffer.size(), 10u);
  float* second = buffer.ensure(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % 64, 0u);
  EXPECT_EQ(buffer.data(), second);
  EXPECT_EQ(buffer.bytes(), 4000u);
  second[999] = 1.0F;
}

}  // namespace
}  // namespace kvasir
