// Tables of one arithmetic give the same bits, where a machine has both: beside tests/golden, which compares whole
// models, odd sizes, masks of all kinds, infinities and denormals. A result that is not a number may be any.
#include <bit>
#include <functional>

#include "backend/cpu/kernels/attention_scene.h"

namespace kvasir::test {
namespace {

// Bits of each value, all NaN alike.
std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values)
    bits.push_back(std::isnan(value) ? 0x7fc00000U : std::bit_cast<std::uint32_t>(value));
  return bits;
}

std::vector<float> hard_floats(Random& random, std::size_t count) {
  std::vector<float> values = random.floats(count, 20.0F);
  for (float& value : values) {
    const int kind = random.below(40);
    if (kind == 0) value = std::numeric_limits<float>::infinity();
    if (kind == 1) value = -std::numeric_limits<float>::infinity();
    if (kind == 2) value *= 1e-39F;  // denormal
    if (kind == 3) value = -0.0F;
    if (kind == 4) value *= 1e30F;
    if (kind == 5) value *= 5.0F;  // up to where exp leaves the range of floats
  }
  return values;
}

class SameArithmetic : public ::testing::Test {
 protected:
  // Calls compare with each pair of tables of one arithmetic.
  static void for_each_pair(const std::function<void(const KernelTable&, const KernelTable&)>& compare) {
    int pairs = 0;
    for (const std::string_view one : kernel_names())
      for (const std::string_view other : kernel_names()) {
        if (one >= other || find_kernels(one)->arithmetic != find_kernels(other)->arithmetic) continue;
        ++pairs;
        compare(*find_kernels(one), *find_kernels(other));
      }
    if (pairs == 0) GTEST_SKIP() << "no two kernel tables of one arithmetic on this machine";
  }
};

TEST_F(SameArithmetic, Elementwise) {
  for_each_pair([](const KernelTable& one, const KernelTable& other) {
    Random random(1);
    for (int n = 1; n <= 70; ++n) {
      const auto size = static_cast<std::size_t>(n);
      const std::vector<float> x = n % 2 == 0 ? hard_floats(random, size) : random.floats(size, 30.0F);
      const std::vector<float> y = random.floats(size, 3.0F);
      const std::vector<float> z = random.floats(size, 2.0F);
      const auto run = [&](const KernelTable& table) {
        std::vector<float> out(9 * size), added = x;
        table.rms_norm(x.data(), y.data(), n, 1e-5F, out.data());
        table.layer_norm(x.data(), y.data(), z.data(), n, 1e-5F, out.data() + size);
        table.add(added.data(), y.data(), n);
        std::copy(added.begin(), added.end(), out.begin() + 2 * n);
        float* activated = out.data() + 3 * size;
        for (const auto function :
             {ActivationFunction::kSilu, ActivationFunction::kGelu, ActivationFunction::kGeluTanh})
          for (const float* factor : {y.data(), static_cast<const float*>(nullptr)}) {
            table.activate(function, x.data(), factor, n, activated);
            activated += n;
          }
        return out;
      };
      ASSERT_EQ(bits_of(run(one)), bits_of(run(other))) << n;
    }
  });
}

TEST_F(SameArithmetic, QuantisedRows) {
  for_each_pair([](const KernelTable& one, const KernelTable& other) {
    Random random(2);
    constexpr int kInputs = 20 * kQ8Block;
    constexpr std::size_t kPlaces = kInputs / kQ8Block * kRowGroup;
    const std::vector<float> x = hard_floats(random, kInputs);
    struct Row {
      std::vector<std::int8_t> quants = std::vector<std::int8_t>(kPlaces * kQ8Block);
      std::vector<float> floats = std::vector<float>(2 * kPlaces);
      std::vector<std::int32_t> sums = std::vector<std::int32_t>(3 * kPlaces);
    };
    const auto run = [&](const KernelTable& table) {
      Row row;
      table.quantize_q8(x.data(), kInputs,
                        {row.quants.data(), row.floats.data(), row.floats.data() + kPlaces, row.sums.data(),
                         row.sums.data() + kPlaces});
      return row;
    };
    const Row a = run(one), b = run(other);
    EXPECT_EQ(a.quants, b.quants);
    EXPECT_EQ(a.sums, b.sums);
    EXPECT_EQ(bits_of(a.floats), bits_of(b.floats));
  });
}

TEST_F(SameArithmetic, AttentionAndItsWeights) {
  for_each_pair([](const KernelTable& one, const KernelTable& other) {
    Random random(3);
    for (const KvType type : kPlainTypes)
      for (const int slots : {16, 32, 64})
        for (const int group : {1, 3, 8}) {
          Scene scene(one, {64, slots, type}, 3, group, 5, 4.0F, random);
          const auto run = [&](const KernelTable& table) {
            State state(3 * group, 64);
            Exponentials exponentials(3 * group, 5, slots);
            scene.attend(table, 0, 3, 0, 5, state, &exponentials);
            std::vector<float> all(state.maximum.data(), state.maximum.data() + state.count);
            all.insert(all.end(), state.sum.data(), state.sum.data() + state.count);
            all.insert(all.end(), state.weighted.data(), state.weighted.data() + state.count * state.dim);
            for (int query = 0; query < 3 * group; ++query)
              for (int e = 0; e < 5; ++e)
                for (int s = 0; s < slots; ++s)
                  if (scene.mask(query / group, e) >> s & 1) all.push_back(exponentials.of(query)[e * slots + s]);
            return all;
          };
          ASSERT_EQ(bits_of(run(one)), bits_of(run(other))) << slots << " " << group;
        }
  });
}

TEST_F(SameArithmetic, StoredRotatedAndMovedSlots) {
  for_each_pair([](const KernelTable& one, const KernelTable& other) {
    Random random(4);
    for (const KvType type : kPlainTypes)
      for (const int slots : {16, 32, 64})
        for (const int dim : {20, 64}) {
          const PageFormat shape{dim, slots, type};
          std::vector<std::vector<float>> rows;
          for (int s = 0; s < 2 * slots; ++s) rows.push_back(random.floats(static_cast<std::size_t>(dim), 20.0F));
          const std::vector<float> angles = random.floats(static_cast<std::size_t>(dim), 1.0F);
          const SlotMask rotated = random.bits() & slot_range(0, slots);
          const SlotMask moved = random.bits() & random.bits() & slot_range(0, slots);
          const auto run = [&](const KernelTable& table) {
            std::vector<std::byte> page(2 * shape.bytes());
            for (int s = 0; s < slots; ++s)
              table.store_kv(shape, page.data(), s, rows[static_cast<std::size_t>(s)].data(),
                             rows[static_cast<std::size_t>(slots + s)].data());
            table.rotate_keys(shape, page.data(), rotated, dim / 4 * 2, angles.data(), angles.data() + dim / 2);
            table.move_slots(shape, page.data(), moved, page.data() + shape.bytes(), 0, dim / 4 * 2, angles.data(),
                             angles.data() + dim / 2);
            return page;
          };
          ASSERT_TRUE(run(one) == run(other)) << dim << " " << slots;
        }
  });
}

// AMX attends to floats, and to keys and values of different types, as AVX-512 does.
TEST(AmxArithmetic, IsThatOfAvx512WherePagesAreNotOf16Bits) {
  if (find_kernels("amx") == nullptr) GTEST_SKIP() << "no kernels amx on this machine";
  const KernelTable& amx = *find_kernels("amx");
  const KernelTable& avx512 = *find_kernels("avx512");
  Random random(5);
  for (const auto& [key, value] : {std::pair{KvType::kF32, KvType::kF32}, std::pair{KvType::kF16, KvType::kF32}}) {
    const Scene scene(amx, {64, 32, key, value}, 20, 3, 4, 4.0F, random);
    ASSERT_TRUE(scene.attend_all(amx, 0, 20).holds(scene.attend_all(avx512, 0, 20), 0)) << scene.describe();
  }
}

}  // namespace
}  // namespace kvasir::test
