#include <algorithm>

#include "backend/cpu/kernels/kernel_test.h"
#include "backend/cpu/kernels/pages/page_layout.h"

namespace kvasir::test {
namespace {

TEST(Dispatch, NamesAndTablesBelongTogether) {
  const std::vector<std::string_view> names = kernel_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "generic");
  for (const std::string_view name : names) {
    const KernelTable* table = find_kernels(name);
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->name, name);
  }
  EXPECT_EQ(std::count(names.begin(), names.end(), "avx2"), avx2_kernels() != nullptr ? 1 : 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "avx512"), avx512_kernels() != nullptr ? 1 : 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "amx"), amx_kernels() != nullptr ? 1 : 0);
}

TEST(Dispatch, AutoIsOneOfThem) {
  const KernelTable* best = find_kernels("auto");
  ASSERT_NE(best, nullptr);
  EXPECT_EQ(best, find_kernels(kernel_names().back()));
}

TEST(Dispatch, UnknownNamesGiveNothing) {
  for (const std::string_view name : {"", "Generic", "avx", "avx2 ", "auto ", "neon"})
    EXPECT_EQ(find_kernels(name), nullptr);
}

TEST_P(KernelTest, EveryKernelIsThere) {
  const KernelTable& t = table();
  EXPECT_TRUE(t.matmul && t.quantize_q8 && t.rms_norm && t.activate && t.add && t.rope && t.store_kv && t.rotate_keys &&
              t.attend && t.merge && t.finish);
}
KVASIR_ON_EVERY_TABLE(KernelTest);

TEST(KvPage, TypeNamesRoundTrip) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16})
    EXPECT_EQ(kv_type_from_name(kv_type_name(type)), type);
  EXPECT_EQ(kv_type_from_name("F16"), std::nullopt);
  EXPECT_EQ(kv_type_from_name(""), std::nullopt);
}

TEST(KvPage, Sizes) {
  const PageFormat shape{80, 32, KvType::kBF16};
  EXPECT_EQ(values_offset(shape), 80u * 32 * 2);
  EXPECT_EQ(shape.bytes(), 80u * 32 * 2 * 2);
  EXPECT_EQ((PageFormat{20, 16, KvType::kF32}.bytes()), 20u * 16 * 4 * 2);
  const PageFormat mixed{80, 32, KvType::kF32, KvType::kBF16};
  EXPECT_EQ(values_offset(mixed), 80u * 32 * 4);
  EXPECT_EQ(value_bytes(mixed), 80u * 2);
  EXPECT_EQ(mixed.bytes(), 80u * 32 * (4 + 2));
  EXPECT_EQ(codec_name(mixed), "k=f32,v=bf16");
  EXPECT_EQ(codec_name(shape), "bf16");
}

TEST(KvPage, SlotRanges) {
  for (int begin = 0; begin <= 64; ++begin) {
    for (int end = begin; end <= 64; ++end) {
      SlotMask wanted = 0;
      for (int s = begin; s < end; ++s) wanted |= SlotMask{1} << s;
      ASSERT_EQ(slot_range(begin, end), wanted) << begin << " " << end;
    }
  }
}

}  // namespace
}  // namespace kvasir::test
