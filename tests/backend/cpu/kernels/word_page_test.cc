// Pages of i16: what is written, against the numbers that were given.
#include "backend/cpu/kernels/pages/word_page.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/attention_scene.h"
#include "backend/cpu/kernels/pages/decode_page.h"

namespace kvasir::test {
namespace {

class WordPageTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(WordPageTest);

// A page and the tokens that it was given.
struct WordPage {
  PageFormat format;
  Fenced<std::byte> page;
  std::vector<std::vector<float>> keys, values;  // [slots][head_dim]

  WordPage(const KernelTable& table, int dim, int slots, Random& random)
      : format{dim, slots, KvType::kI16}, page(format.bytes(), std::size_t{64}) {
    std::fill_n(page.data(), page.size(), std::byte{0x5a});
    for (int s = 0; s < slots; ++s) {
      const float range = std::ldexp(1.0F, random.below(40) - 20);
      keys.push_back(random.floats(static_cast<std::size_t>(dim), range));
      values.push_back(random.floats(static_cast<std::size_t>(dim)));
      table.store_kv(format, page.data(), s, keys.back().data(), values.back().data());
    }
  }
  // [slots][head_dim].
  std::vector<float> key(int slot) const {
    std::vector<float> all(static_cast<std::size_t>(format.head_dim * format.slots)), out;
    decode_keys(format, page.data(), all.data());
    for (int d = 0; d < format.head_dim; ++d) out.push_back(all[static_cast<std::size_t>(d * format.slots + slot)]);
    return out;
  }
  std::vector<float> value(int slot) const {
    std::vector<float> all(static_cast<std::size_t>(format.head_dim * format.slots));
    decode_values(format, page.data(), all.data());
    const auto first = all.begin() + slot * format.head_dim;
    return {first, first + format.head_dim};
  }
};

// Half a step is 1/8190 of the largest element; a float rounds besides.
void expect_near(const std::vector<float>& got, const std::vector<double>& wanted, double steps = 1) {
  double most = 0;
  for (const double x : wanted) most = std::max(most, std::fabs(x));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], steps * most / 8190 * 1.001 + 1e-37) << i;
}
std::vector<double> doubles(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

TEST_P(WordPageTest, TokensAreWithinHalfAStep) {
  Random random(1);
  for (const int slots : {16, 32, 64})
    for (const int dim : {1, 2, 7, 16, 20, 64, 80, 128, 512}) {
      const WordPage page(table(), dim, slots, random);
      ASSERT_TRUE(page.page.intact());
      ASSERT_EQ(page.format.bytes(), page.format.row_bytes() * static_cast<std::size_t>(slots));
      for (int s = 0; s < slots; ++s) {
        const auto at = static_cast<std::size_t>(s);
        expect_near(page.key(s), doubles(page.keys[at]));
        expect_near(page.value(s), doubles(page.values[at]));
        if (HasFatalFailure()) return;
        ASSERT_EQ(page.key(s), stored(KvType::kI16, page.keys[at])) << "as it is defined";
      }
    }
}

TEST_P(WordPageTest, ASlotIsWrittenAlone) {
  Random random(2);
  for (const int dim : {7, 64}) {
    WordPage page(table(), dim, 32, random);
    std::vector<std::vector<float>> before;
    for (int s = 0; s < 32; ++s) before.push_back(page.key(s)), before.push_back(page.value(s));
    const std::vector<float> other(static_cast<std::size_t>(dim), 3.0F);
    table().store_kv(page.format, page.page.data(), 9, other.data(), other.data());
    for (int s = 0; s < 32; ++s) {
      if (s == 9) continue;
      ASSERT_EQ(page.key(s), before[static_cast<std::size_t>(2 * s)]);
      ASSERT_EQ(page.value(s), before[static_cast<std::size_t>(2 * s + 1)]);
    }
    EXPECT_EQ(page.key(9), stored(KvType::kI16, other));
  }
}

TEST_P(WordPageTest, WhatIsNotFiniteIsNoNumberAndZeroIsZero) {
  const PageFormat format{16, 16, KvType::kI16};
  std::vector<std::byte> page(format.bytes());
  std::vector<float> x(16, 1.0F), keys(16 * 16);
  for (const float broken : {INFINITY, -INFINITY, std::nanf("")}) {
    x[5] = broken;
    table().store_kv(format, page.data(), 3, x.data(), x.data());
    decode_keys(format, page.data(), keys.data());
    for (std::size_t d = 0; d < 16; ++d) ASSERT_TRUE(std::isnan(keys[d * 16 + 3]));
  }
  for (const float small : {0.0F, -0.0F, 1e-40F, 1e-34F}) {
    table().store_kv(format, page.data(), 3, std::vector<float>(16, small).data(), x.data());
    decode_keys(format, page.data(), keys.data());
    for (std::size_t d = 0; d < 16; ++d) ASSERT_EQ(keys[d * 16 + 3], 0.0F);
  }
}

TEST_P(WordPageTest, RotatedAndMovedKeysAreWithinAStep) {
  Random random(4);
  for (const int slots : {16, 32, 64})
    for (const int dim : {2, 20, 64}) {
      WordPage page(table(), dim, slots, random);
      const auto pairs = static_cast<std::size_t>(dim / 2);
      std::vector<float> cosine(pairs), sine(pairs);
      for (std::size_t i = 0; i < pairs; ++i) {
        const float angle = random.symmetric(3.0F);
        cosine[i] = std::cos(angle);
        sine[i] = std::sin(angle);
      }
      const auto rotated = [&](const std::vector<float>& key) {
        std::vector<double> out = doubles(key);
        for (std::size_t i = 0; i < pairs; ++i) {
          const double a = double{key[2 * i]}, b = double{key[2 * i + 1]};
          out[2 * i] = a * double{cosine[i]} - b * double{sine[i]};
          out[2 * i + 1] = a * double{sine[i]} + b * double{cosine[i]};
        }
        return out;
      };
      std::vector<std::vector<float>> keys, values;
      for (int s = 0; s < slots; ++s) keys.push_back(page.key(s)), values.push_back(page.value(s));
      const SlotMask turned = random.bits() & slot_range(0, slots);
      table().rotate_keys(page.format, page.page.data(), turned, dim, cosine.data(), sine.data());
      for (int s = 0; s < slots; ++s) {
        const auto at = static_cast<std::size_t>(s);
        ASSERT_EQ(page.value(s), values[at]);
        if (turned >> s & 1) {
          expect_near(page.key(s), rotated(keys[at]), 1.01);
          if (HasFatalFailure()) return;
        } else {
          ASSERT_EQ(page.key(s), keys[at]);
        }
        keys[at] = page.key(s);
      }
      // To the front of the same page, and unrotated to another.
      const SlotMask moved = random.bits() & slot_range(slots / 4, slots);
      WordPage other(table(), dim, slots, random);
      table().move_slots(page.format, page.page.data(), moved, other.page.data(), 1, dim, nullptr, nullptr);
      table().move_slots(page.format, page.page.data(), moved, page.page.data(), 0, dim, cosine.data(), sine.data());
      ASSERT_TRUE(page.page.intact() && other.page.intact());
      int to = 0;
      for (SlotMask left = moved; left != 0; left &= left - 1, ++to) {
        const auto from = static_cast<std::size_t>(std::countr_zero(left));
        expect_near(page.key(to), rotated(keys[from]), 1.01);
        if (HasFatalFailure()) return;
        ASSERT_EQ(page.value(to), values[from]);
        ASSERT_EQ(other.key(to + 1), keys[from]);
        ASSERT_EQ(other.value(to + 1), values[from]);
      }
    }
}

// A page's rows, put into another page, are that page.
TEST(WordPages, RowsThatAreTakenAndPlacedAreThePage) {
  Random random(5);
  for (const int dim : {1, 7, 64, 80}) {
    const WordPage page(generic_kernels(), dim, 32, random);
    Fenced<std::byte> copy(page.format.bytes(), std::size_t{64}), row(page.format.row_bytes(), std::size_t{2});
    for (int s = 0; s < 32; ++s) {
      take_word_row(page.format, page.page.data(), s, row.data());
      place_word_row(page.format, row.data(), s, copy.data());
      ASSERT_TRUE(row.intact() && copy.intact());
    }
    EXPECT_EQ(std::memcmp(copy.data(), page.page.data(), copy.size()), 0) << dim;
  }
}

TEST_P(WordPageTest, AreTheSameBytesOnEveryTable) {
  for (const int dim : {20, 64}) {
    Random one(6), other(6);
    const WordPage here(table(), dim, 32, one), there(generic_kernels(), dim, 32, other);
    EXPECT_EQ(here.page.copy(), there.page.copy());
  }
}

}  // namespace
}  // namespace kvasir::test
