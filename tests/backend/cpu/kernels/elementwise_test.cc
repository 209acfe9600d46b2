#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <stdexcept>

#include "backend/cpu/kernels/fenced.h"
#include "backend/cpu/kernels/kernel_test.h"
#include "backend/cpu/kernels/pages/page_layout.h"

namespace kvasir::test {
namespace {

constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBF16};

float round_to(KvType type, float value) {
  switch (type) {
    case KvType::kF32: return value;
    case KvType::kF16: return f16_to_f32(f32_to_f16(value));
    case KvType::kBF16: return bf16_to_f32(f32_to_bf16(value));
    default: return std::nanf("");
  }
}

float read_element(KvType type, const std::byte* p, std::size_t index) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, p + index * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p + index * 2, 2);
  return type == KvType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

class ElementwiseTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(ElementwiseTest);

// One block, contiguous.
struct Quantized {
  std::vector<std::int8_t> q;
  float scale;
  float scaled_sum;
  std::int32_t sum;
  std::int32_t half_sum[2];
};

std::vector<Quantized> quantize(const KernelTable& table, const std::vector<float>& values) {
  const Fenced<float> x(values);
  const std::size_t blocks = x.size() / kQ8Block;
  // Up to the last byte of the row's own places: the rest of its group belongs to other rows.
  const std::size_t places = (blocks - 1) * kRowGroup + 1;
  Fenced<std::int8_t> q(places * kQ8Block);
  Fenced<float> scale(places);
  Fenced<float> scaled_sum(places);
  Fenced<std::int32_t> sum(places);
  Fenced<std::int32_t> half_sum(2 * places);
  table.quantize_q8(x.data(), static_cast<int>(x.size()),
                    {q.data(), scale.data(), scaled_sum.data(), sum.data(), half_sum.data()});
  EXPECT_TRUE(q.intact() && scale.intact() && scaled_sum.intact() && sum.intact() && half_sum.intact());
  std::vector<Quantized> out;
  for (std::size_t at = 0; at < places; ++at) {
    if (at % kRowGroup == 0) {
      out.push_back({std::vector<std::int8_t>(q.data() + at * kQ8Block, q.data() + (at + 1) * kQ8Block),
                     scale[at],
                     scaled_sum[at],
                     sum[at],
                     {half_sum[2 * at], half_sum[2 * at + 1]}});
      continue;
    }
    EXPECT_TRUE(scale.untouched(at) && scaled_sum.untouched(at) && sum.untouched(at));
    EXPECT_TRUE(half_sum.untouched(2 * at) && half_sum.untouched(2 * at + 1));
    for (std::size_t i = 0; i < kQ8Block; ++i) EXPECT_TRUE(q.untouched(at * kQ8Block + i));
  }
  return out;
}

TEST_P(ElementwiseTest, QuantisesToTheNearestOf255Steps) {
  Random random(1);
  for (const float range : {1e-30F, 1e-4F, 1.0F, 300.0F, 1e30F}) {
    const std::vector<float> x = random.floats(32 * 9, range);
    const std::vector<Quantized> blocks = quantize(table(), x);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      float largest = 0;
      int total = 0;
      int first_half = 0;
      for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[b * 32 + i]));
      ASSERT_EQ(blocks[b].scale, largest / 127.0F);
      for (std::size_t i = 0; i < 32; ++i) {
        const double exact = static_cast<double>(x[b * 32 + i]) * 127 / largest;
        ASSERT_LE(std::fabs(blocks[b].q[i] - exact), 0.5 + 1e-4);
        total += blocks[b].q[i];
        if (i < 16) first_half += blocks[b].q[i];
      }
      ASSERT_EQ(blocks[b].sum, -128 * total);
      ASSERT_EQ(blocks[b].half_sum[0], -128 * first_half);
      ASSERT_EQ(blocks[b].half_sum[1], -128 * (total - first_half));
      ASSERT_EQ(blocks[b].scaled_sum, blocks[b].scale * static_cast<float>(total));
    }
  }
}

TEST_P(ElementwiseTest, QuantisationRoundsTiesToEven) {
  std::vector<float> x(32, 0.0F);
  x[0] = 127.0F;
  for (std::size_t i = 1; i < 32; ++i) x[i] = static_cast<float>(i) - 16.5F;
  const Quantized block = quantize(table(), x)[0];
  EXPECT_EQ(block.q[0], 127);
  for (std::size_t i = 1; i < 32; ++i) {
    const int below = static_cast<int>(i) - 17;
    EXPECT_EQ(block.q[i], below % 2 == 0 ? below : below + 1) << x[i];
  }
}

TEST_P(ElementwiseTest, QuantisationOfZeroAndOfTinyBlocks) {
  for (const float tiny : {0.0F, -0.0F, 1e-45F, 1e-40F, 3e-37F, std::numeric_limits<float>::min()}) {
    std::vector<float> x(32, 0.0F);
    x[3] = tiny;
    x[4] = -tiny / 2;
    const Quantized block = quantize(table(), x)[0];
    EXPECT_EQ(block.q[0], 0) << tiny;
    int total = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_LE(std::abs(block.q[i]), 127);
      total += block.q[i];
      EXPECT_LE(std::fabs(static_cast<double>(block.scale) * block.q[i] - x[i]), std::fabs(x[i]) + 1e-44) << tiny;
    }
    EXPECT_EQ(block.sum, -128 * total) << tiny;
  }
}

TEST_P(ElementwiseTest, QuantisationIsTheSameBitsOnEveryTable) {
  Random random(2);
  std::vector<float> x = random.floats(32 * 64, 20.0F);
  for (std::size_t i = 0; i < x.size(); i += 7) x[i] = std::ldexp(x[i], random.below(160) - 140);
  for (std::size_t b = 0; b < 8; ++b)  // whole blocks of small numbers, down to none
    for (std::size_t i = 0; i < 32; ++i) x[b * 32 + i] = std::ldexp(x[b * 32 + i], -112 - 5 * static_cast<int>(b));
  const auto compare = [&] {
    const std::vector<Quantized> here = quantize(table(), x);
    const std::vector<Quantized> there = quantize(generic_kernels(), x);
    for (std::size_t b = 0; b < here.size(); ++b) {
      ASSERT_EQ(here[b].q, there[b].q) << b;
      ASSERT_TRUE(same_bits(&here[b].scale, &there[b].scale, 1)) << b;
      ASSERT_TRUE(same_bits(&here[b].scaled_sum, &there[b].scaled_sum, 1)) << b;
      ASSERT_EQ(here[b].sum, there[b].sum) << b;
      ASSERT_EQ(here[b].half_sum[0], there[b].half_sum[0]) << b;
      ASSERT_EQ(here[b].half_sum[1], there[b].half_sum[1]) << b;
    }
  };
  compare();
  x[100] = INFINITY;
  x[200] = -INFINITY;
  x[300] = std::nanf("");
  compare();
}

TEST_P(ElementwiseTest, QuantisationKeepsWhatIsNotFinite) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const std::size_t at : {0, 15, 16, 31}) {
      std::vector<float> x(64, 1.0F);
      x[at] = bad;
      const std::vector<Quantized> blocks = quantize(table(), x);
      EXPECT_TRUE(std::isnan(blocks[0].scale));
      EXPECT_EQ(blocks[1].scale, 1.0F / 127.0F);
    }
  }
}

TEST_P(ElementwiseTest, RmsNorm) {
  Random random(3);
  for (const int n : {1, 15, 16, 17, 64, 100, 2048}) {
    for (const float range : {1e-6F, 1.0F, 1e6F}) {
      const auto count = static_cast<std::size_t>(n);
      const Fenced<float> x(random.floats(count, range));
      const Fenced<float> weight(random.floats(count, 3.0F));
      Fenced<float> out(count);
      const float eps = 1e-5F;
      table().rms_norm(x.data(), weight.data(), n, eps, out.data());
      ASSERT_TRUE(out.intact());
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) squares += static_cast<double>(x[i]) * x[i];
      for (std::size_t i = 0; i < count; ++i) {
        const double wanted = x[i] / std::sqrt(squares / n + static_cast<double>(eps)) * weight[i];
        ASSERT_NEAR(out[i], wanted, (8 + n / 16) * kEpsilon * std::fabs(wanted)) << n;
      }
      Fenced<float> in_place(x.copy());
      table().rms_norm(in_place.data(), weight.data(), n, eps, in_place.data());
      ASSERT_TRUE(same_bits(in_place.data(), out.data(), count));
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  const std::vector<float> x(40, 0.0F);
  std::vector<float> out(40, 1.0F);
  table().rms_norm(x.data(), std::vector<float>(40, 1.0F).data(), 40, 1e-6F, out.data());
  for (const float y : out) EXPECT_EQ(y, 0.0F);
}

TEST_P(ElementwiseTest, LayerNorm) {
  Random random(9);
  for (const int n : {1, 15, 16, 17, 64, 100, 2048}) {
    for (const float shift : {0.0F, 5.0F}) {
      const auto count = static_cast<std::size_t>(n);
      std::vector<float> values = random.floats(count, 2.0F);
      for (float& value : values) value += shift;
      const Fenced<float> x(values);
      const Fenced<float> weight(random.floats(count, 3.0F));
      const Fenced<float> bias(random.floats(count, 1.0F));
      Fenced<float> out(count);
      const float eps = 1e-5F;
      table().layer_norm(x.data(), weight.data(), bias.data(), n, eps, out.data());
      ASSERT_TRUE(out.intact());
      double mean = 0;
      for (const float v : values) mean += v;
      mean /= n;
      double variance = 0;
      for (const float v : values) variance += (v - mean) * (v - mean);
      variance /= n;
      for (std::size_t i = 0; i < count; ++i) {
        const double normal = (x[i] - mean) / std::sqrt(variance + static_cast<double>(eps));
        const double wanted = normal * weight[i] + bias[i];
        // The mean is as exact as its sum, and shows divided by the deviation.
        const double deviation = std::sqrt(variance + static_cast<double>(eps));
        const double of_mean = (4 + n / 16) * kEpsilon * (2 + static_cast<double>(shift)) / deviation;
        const double rounding = (8 + n / 16) * kEpsilon * (std::fabs(normal * weight[i]) + std::fabs(bias[i]));
        ASSERT_NEAR(out[i], wanted, rounding + of_mean * std::fabs(weight[i])) << n;
      }
      Fenced<float> in_place(values);
      table().layer_norm(in_place.data(), weight.data(), bias.data(), n, eps, in_place.data());
      ASSERT_TRUE(same_bits(in_place.data(), out.data(), count));
    }
  }
}

constexpr ActivationFunction kFunctions[] = {ActivationFunction::kSilu, ActivationFunction::kGelu,
                                             ActivationFunction::kGeluTanh, ActivationFunction::kSigmoid};

// The value, and how far from it a kernel may be.
struct Activated {
  double value = 0;
  double tolerance = 0;
};

Activated activated(ActivationFunction function, double x) {
  const double of_polynomial = std::min(std::fabs(x), 30.0) * 2e-7 + 1e-36;
  switch (function) {
    case ActivationFunction::kSilu: {
      const double value = x / (1 + std::exp(-x));
      return {value, 4e-7 * std::fabs(value) + 1e-36};
    }
    case ActivationFunction::kGelu: {
      const double value = x / 2 * std::erfc(-x / std::sqrt(2.0));
      return {value, of_polynomial + 2e-7 * std::fabs(value)};
    }
    case ActivationFunction::kGeluTanh: {
      const double value = x / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
      return {value, of_polynomial + 2e-7 * std::fabs(value)};
    }
    case ActivationFunction::kSigmoid: {
      const double value = 1 / (1 + std::exp(-x));
      return {value, 4e-7 * value + 1e-36};
    }
    case ActivationFunction::kClampedSwiglu: break;  // has no value without its second factor: ClampedSwiglu
  }
  throw std::logic_error("this function has no value of one factor");
}

TEST_P(ElementwiseTest, Activate) {
  Random random(4);
  for (const ActivationFunction function : kFunctions)
    for (const int n : {1, 16, 31, 5000}) {
      const auto count = static_cast<std::size_t>(n);
      std::vector<float> values = random.floats(count, 12.0F);
      for (std::size_t i = 0; i < count; i += 2) values[i] /= 4;
      const float special[] = {0.0F,  -0.0F,  1e-30F,  -1e-30F, 87.0F,   -87.0F,   88.6F, -88.6F,
                               89.0F, -89.0F, 100.0F,  -100.0F, 1000.0F, -1000.0F, 1e30F, -1e30F,
                               3e38F, -3e38F, -104.5F, 1e-45F,  13.0F,   -13.0F};
      for (std::size_t i = 0; i < std::min<std::size_t>(count, std::size(special)); ++i)
        values[count - 1 - i] = special[i];
      const Fenced<float> x(values);
      const Fenced<float> factor(random.floats(count, 1.0F));
      Fenced<float> gated(count), alone(count);
      table().activate(function, x.data(), factor.data(), n, gated.data());
      table().activate(function, x.data(), nullptr, n, alone.data());
      ASSERT_TRUE(gated.intact() && alone.intact());
      for (std::size_t i = 0; i < count; ++i) {
        const Activated wanted = activated(function, values[i]);
        ASSERT_NEAR(alone[i], wanted.value, wanted.tolerance) << values[i];
        ASSERT_EQ(gated[i], alone[i] * factor[i]) << values[i];
      }
      Fenced<float> gate_in_place(values);
      table().activate(function, gate_in_place.data(), factor.data(), n, gate_in_place.data());
      ASSERT_TRUE(same_bits(gate_in_place.data(), gated.data(), count));
      Fenced<float> factor_in_place(std::vector<float>(factor.data(), factor.data() + n));
      table().activate(function, x.data(), factor_in_place.data(), n, factor_in_place.data());
      ASSERT_TRUE(same_bits(factor_in_place.data(), gated.data(), count));
      Fenced<float> in_place(values);
      table().activate(function, in_place.data(), nullptr, n, in_place.data());
      ASSERT_TRUE(same_bits(in_place.data(), alone.data(), count));
    }
}

TEST_P(ElementwiseTest, ActivateKeepsNaN) {
  std::vector<float> x(20, 1.0F);
  x[7] = std::nanf("");
  const std::vector<float> ones(20, 1.0F);
  for (const ActivationFunction function : kFunctions)
    for (const float* factor : {ones.data(), static_cast<const float*>(nullptr)}) {
      std::vector<float> out(20);
      table().activate(function, x.data(), factor, 20, out.data());
      for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(out[i]), i == 7);
    }
}

TEST_P(ElementwiseTest, ClampedSwiglu) {
  Random random(14);
  for (const int n : {1, 16, 31, 5000}) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> gates = random.floats(count, 12.0F);
    const std::vector<float> ups = random.floats(count, 12.0F);
    const Fenced<float> gate(gates), up(ups);
    Fenced<float> out(count);
    table().activate(ActivationFunction::kClampedSwiglu, gate.data(), up.data(), n, out.data());
    ASSERT_TRUE(out.intact());
    for (std::size_t i = 0; i < count; ++i) {
      const double g = std::min(static_cast<double>(gates[i]), 7.0);
      const double u = std::clamp(static_cast<double>(ups[i]), -7.0, 7.0);
      const double wanted = g / (1 + std::exp(-static_cast<double>(1.702F) * g)) * (1 + u);
      ASSERT_NEAR(out[i], wanted, 4e-6 * std::fabs(g / (1 + std::exp(-1.702 * g))) * (1 + std::fabs(u)) + 1e-36)
          << gates[i] << " " << ups[i];
    }
    Fenced<float> in_place(gates);
    table().activate(ActivationFunction::kClampedSwiglu, in_place.data(), up.data(), n, in_place.data());
    ASSERT_TRUE(same_bits(in_place.data(), out.data(), count));
  }
}

TEST_P(ElementwiseTest, Add) {
  Random random(5);
  for (const int n : {1, 15, 16, 17, 129}) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> before = random.floats(count);
    Fenced<float> x(before);
    const Fenced<float> y(random.floats(count));
    table().add(x.data(), y.data(), n);
    ASSERT_TRUE(x.intact());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(x[i], before[i] + y[i]);
  }
}

TEST_P(ElementwiseTest, Rope) {
  Random random(6);
  for (const int head_dim : {2, 16, 20, 64, 80}) {
    for (const int rotary : {0, 2, head_dim / 4 * 2, head_dim}) {
      for (const int heads : {1, 3}) {
        const auto count = static_cast<std::size_t>(heads * head_dim);
        std::vector<float> cosines(static_cast<std::size_t>(rotary / 2));
        std::vector<float> sines(cosines.size());
        for (std::size_t i = 0; i < cosines.size(); ++i) {
          const float angle = random.symmetric(1000.0F);
          cosines[i] = std::cos(angle);
          sines[i] = std::sin(angle);
        }
        const Fenced<float> x(random.floats(count));
        const Fenced<float> cosine(cosines);
        const Fenced<float> sine(sines);
        const float scale = 0.125F + random.symmetric(0.1F);
        Fenced<float> out(count);
        table().rope(x.data(), heads, head_dim, rotary, cosine.data(), sine.data(), scale, out.data());
        ASSERT_TRUE(out.intact());
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t d = i % static_cast<std::size_t>(head_dim);
          double wanted = x[i];
          double size = std::fabs(x[i]);
          if (d < static_cast<std::size_t>(rotary)) {
            const double c = cosine[d / 2];
            const double s = sine[d / 2];
            wanted = d % 2 == 0 ? x[i] * c - x[i + 1] * s : x[i - 1] * s + x[i] * c;
            size = 2;
          }
          ASSERT_NEAR(out[i], wanted * scale, 4 * kEpsilon * size * scale) << head_dim << " " << rotary << " " << i;
        }
        Fenced<float> in_place(x.copy());
        table().rope(in_place.data(), heads, head_dim, rotary, cosine.data(), sine.data(), scale, in_place.data());
        ASSERT_TRUE(same_bits(in_place.data(), out.data(), count));
      }
    }
  }
}

TEST_P(ElementwiseTest, StoreKvRoundsToNearestAndWritesOneSlot) {
  Random random(7);
  for (int types = 0; types < 9; ++types) {
    const KvType key_type = kKvTypes[types / 3], value_type = kKvTypes[types % 3];
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {2, 16, 20, 64, 80, 128}) {
        const PageFormat shape{head_dim, slots, key_type, value_type};
        const auto dim = static_cast<std::size_t>(head_dim);
        const int slot = random.below(slots);
        std::vector<float> keys = random.floats(dim, 4.0F);
        keys[0] = 70000.0F;  // f16: infinity
        keys[1] = -1e-7F;
        for (std::size_t d = 2; d < dim; ++d) {  // half of them ties, of bf16 and of f16
          const std::uint32_t tie = d % 4 < 2 ? 0x8000 : 0x1000;
          if (d % 2 == 0)
            keys[d] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(keys[d]) & ~(2 * tie - 1)) | tie);
        }
        const Fenced<float> key(keys);
        const Fenced<float> value(random.floats(dim, 1e-5F));  // f16: subnormal
        Fenced<std::byte> page(shape.bytes(), std::size_t{64});
        table().store_kv(shape, page.data(), slot, key.data(), value.data());
        ASSERT_TRUE(page.intact());
        for (std::size_t d = 0; d < dim; ++d) {
          for (int s = 0; s < slots; ++s) {
            const std::size_t k = d * static_cast<std::size_t>(slots) + static_cast<std::size_t>(s);
            const std::size_t v = static_cast<std::size_t>(s) * dim + d;
            const std::byte* values = page.data() + values_offset(shape);
            if (s == slot) {
              ASSERT_EQ(read_element(key_type, page.data(), k), round_to(key_type, key[d])) << codec_name(shape);
              ASSERT_EQ(read_element(value_type, values, v), round_to(value_type, value[d])) << codec_name(shape);
            } else {
              for (std::size_t i = 0; i < kv_type_bytes(key_type); ++i)
                ASSERT_TRUE(page.untouched(k * kv_type_bytes(key_type) + i));
              for (std::size_t i = 0; i < kv_type_bytes(value_type); ++i)
                ASSERT_TRUE(page.untouched(values_offset(shape) + v * kv_type_bytes(value_type) + i));
            }
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, StoreKvKeepsInfinityAndNaN) {
  for (const KvType type : kKvTypes) {
    const PageFormat shape{16, 16, type};
    Fenced<std::byte> page(shape.bytes(), std::size_t{64});
    std::vector<float> key(16, INFINITY);
    std::vector<float> value(16, std::nanf(""));
    key[1] = -INFINITY;
    table().store_kv(shape, page.data(), 5, key.data(), value.data());
    EXPECT_EQ(read_element(type, page.data(), 5), INFINITY);
    EXPECT_EQ(read_element(type, page.data(), 16 + 5), -INFINITY);
    EXPECT_TRUE(std::isnan(read_element(type, page.data() + values_offset(shape), 5 * 16 + 3)));
  }
}

TEST_P(ElementwiseTest, RotateKeys) {
  Random random(8);
  for (const KvType type : kKvTypes) {
    const double half_step = type == KvType::kF32 ? 0x1p-24 : type == KvType::kF16 ? 0x1p-11 : 0x1p-8;
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {2, 16, 20, 64}) {
        for (const int rotary : {0, 2, head_dim / 4 * 2, head_dim}) {
          const PageFormat shape{head_dim, slots, type};
          const auto width = static_cast<std::size_t>(slots);
          Fenced<std::byte> page(shape.bytes(), std::size_t{64});
          for (int s = 0; s < slots; ++s)
            table().store_kv(shape, page.data(), s, random.floats(static_cast<std::size_t>(head_dim)).data(),
                             random.floats(static_cast<std::size_t>(head_dim)).data());
          const std::vector<std::byte> before = page.copy();
          std::vector<float> cosines(static_cast<std::size_t>(rotary / 2));
          std::vector<float> sines(cosines.size());
          for (std::size_t i = 0; i < cosines.size(); ++i) {
            const float angle = random.symmetric(100.0F);
            cosines[i] = std::cos(angle);
            sines[i] = std::sin(angle);
          }
          const Fenced<float> cosine(cosines);
          const Fenced<float> sine(sines);
          const SlotMask rotated = random.bits() & random.bits() & slot_range(0, slots);
          table().rotate_keys(shape, page.data(), rotated, rotary, cosine.data(), sine.data());
          ASSERT_TRUE(page.intact());
          ASSERT_EQ(std::memcmp(page.data() + values_offset(shape), before.data() + values_offset(shape),
                                values_offset(shape)),
                    0);
          for (std::size_t d = 0; d < static_cast<std::size_t>(head_dim); ++d) {
            for (std::size_t s = 0; s < width; ++s) {
              const std::size_t at = d * width + s;
              const float got = read_element(type, page.data(), at);
              if ((rotated >> s & 1) == 0 || d >= static_cast<std::size_t>(rotary)) {
                const float kept = read_element(type, before.data(), at);
                ASSERT_TRUE(same_bits(&got, &kept, 1));
                continue;
              }
              const double a = read_element(type, before.data(), (d & ~std::size_t{1}) * width + s);
              const double b = read_element(type, before.data(), (d | 1) * width + s);
              const double c = cosine[d / 2];
              const double n = sine[d / 2];
              const double wanted = d % 2 == 0 ? a * c - b * n : a * n + b * c;
              ASSERT_NEAR(got, wanted,
                          half_step * std::fabs(wanted) + 4 * kEpsilon + (type == KvType::kF16 ? 0x1p-25 : 0));
            }
          }
        }
      }
    }
  }
}

// Kernels whose arithmetic has one order only: a file of pages, say, must not depend on the machine.
TEST_P(ElementwiseTest, PagesNormsAndRotationsAreTheSameBitsOnEveryTable) {
  Random random(9);
  const KernelTable& generic = generic_kernels();
  for (const KvType type : kKvTypes) {
    for (const int head_dim : {20, 64}) {
      const PageFormat shape{head_dim, 32, type};
      const auto dim = static_cast<std::size_t>(head_dim);
      std::vector<std::byte> here(shape.bytes());
      std::vector<std::byte> there(shape.bytes());
      for (int s = 0; s < 32; ++s) {
        const std::vector<float> key = random.floats(dim, std::ldexp(1.0F, random.below(40) - 25));
        const std::vector<float> value = random.floats(dim, 2.0F);
        table().store_kv(shape, here.data(), s, key.data(), value.data());
        generic.store_kv(shape, there.data(), s, key.data(), value.data());
      }
      ASSERT_EQ(here, there);
      const std::vector<float> cosine = random.floats(dim / 2);
      const std::vector<float> sine = random.floats(dim / 2);
      const SlotMask slots = random.bits() & slot_range(0, 32);
      table().rotate_keys(shape, here.data(), slots, head_dim, cosine.data(), sine.data());
      generic.rotate_keys(shape, there.data(), slots, head_dim, cosine.data(), sine.data());
      ASSERT_EQ(here, there);
    }
  }
  for (const int n : {16, 100, 2048}) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> x = random.floats(count, 5.0F);
    const std::vector<float> weight = random.floats(count);
    std::vector<float> here(count);
    std::vector<float> there(count);
    table().rms_norm(x.data(), weight.data(), n, 1e-5F, here.data());
    generic.rms_norm(x.data(), weight.data(), n, 1e-5F, there.data());
    ASSERT_TRUE(same_bits(here.data(), there.data(), count));
    table().layer_norm(x.data(), weight.data(), x.data(), n, 1e-5F, here.data());
    generic.layer_norm(x.data(), weight.data(), x.data(), n, 1e-5F, there.data());
    ASSERT_TRUE(same_bits(here.data(), there.data(), count));
    table().rope(x.data(), 1, n, n, weight.data(), weight.data() + n / 2, 0.3F, here.data());
    generic.rope(x.data(), 1, n, n, weight.data(), weight.data() + n / 2, 0.3F, there.data());
    ASSERT_TRUE(same_bits(here.data(), there.data(), count));
  }
}

TEST_P(ElementwiseTest, ScoreSegmentsIsTheGreatestBoundOfAnyQuery) {
  Random random(10);
  for (const int head_dim : {16, 20, 64, 128}) {
    for (const int group : {1, 3, 4, 7, 8}) {
      const auto dim = static_cast<std::size_t>(head_dim);
      std::vector<float> queries = random.floats(static_cast<std::size_t>(group) * dim, 2.0F);
      queries[dim / 2] = -0.0F;
      std::vector<float> bounds(dim * 2 * kScoredSegments);
      for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t i = 0; i < kScoredSegments; ++i) {
          const float a = random.symmetric(), b = random.symmetric();
          bounds[2 * d * kScoredSegments + i] = std::min(a, b);
          bounds[(2 * d + 1) * kScoredSegments + i] = std::max(a, b);
        }
      // One chunk is NaN for all queries, and one for those alone that look at its least element.
      bounds[3] = bounds[kScoredSegments + 3] = std::nanf("");
      bounds[2 * kScoredSegments + 5] = std::nanf("");
      Fenced<float> best(kScoredSegments);
      table().score_segments(bounds.data(), queries.data(), group, head_dim, best.data());
      ASSERT_TRUE(best.intact());
      for (std::size_t i = 0; i < kScoredSegments; ++i) {
        float wanted = -std::numeric_limits<float>::infinity();
        bool nan = false;
        for (std::size_t g = 0; g < static_cast<std::size_t>(group); ++g) {
          float sum = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            const float q = queries[g * dim + d];
            sum += q * bounds[(2 * d + (q >= 0 ? 1 : 0)) * kScoredSegments + i];
          }
          nan = nan || std::isnan(sum);
          wanted = std::max(wanted, sum);
        }
        if (nan) {
          ASSERT_TRUE(std::isnan(best[i])) << i;
        } else {
          ASSERT_EQ(best[i], wanted) << "chunk " << i << ", " << group << " queries of " << head_dim;
        }
      }
      EXPECT_TRUE(std::isnan(best[3]));
    }
  }
}

}  // namespace
}  // namespace kvasir::test
