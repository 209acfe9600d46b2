#include "reference/dequantise.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace kvasir::test {
namespace {

double decode_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  KVASIR_CHECK(exponent != 31);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Takes a block apart from front to back.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    T value;
    KVASIR_CHECK(at_ + sizeof value <= bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  double half() { return decode_f16(take<std::uint16_t>()); }
  template <std::size_t kCount>
  std::array<int, kCount> bytes() {
    std::array<int, kCount> out;
    for (int& b : out) b = take<std::uint8_t>();
    return out;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

using Values = std::vector<double>;

// Two values a byte: the low nibbles are the first half of the values.
template <std::size_t kCount>
std::vector<int> nibbles(const std::array<int, kCount>& bytes) {
  std::vector<int> out(2 * kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    out[i] = bytes[i] % 16;
    out[i + kCount] = bytes[i] / 16;
  }
  return out;
}

bool bit(const int value, std::size_t index) {
  return (value >> index) % 2 == 1;
}

Values legacy(Bytes block, bool has_minimum, bool five_bits) {
  const double d = block.half();
  const double m = has_minimum ? block.half() : 0;
  const std::array<int, 4> high = five_bits ? block.bytes<4>() : std::array<int, 4>{};
  const std::vector<int> low = nibbles(block.bytes<16>());
  Values out;
  for (std::size_t i = 0; i < 32; ++i) {
    const int q = low[i] + (bit(high[i / 8], i % 8) ? 16 : 0);
    const int zero = has_minimum ? 0 : five_bits ? 16 : 8;
    out.push_back(d * (q - zero) + m);
  }
  return out;
}

constexpr std::array<int, 16> kCodebook = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

Values iq4_nl(Bytes block) {
  const double d = block.half();
  Values out;
  for (const int code : nibbles(block.bytes<16>())) out.push_back(d * kCodebook[static_cast<std::size_t>(code)]);
  return out;
}

Values iq4_xs(Bytes block) {
  const double d = block.half();
  const int high = block.take<std::uint16_t>();
  const std::array<int, 4> low = block.bytes<4>();
  Values out;
  for (std::size_t part = 0; part < 8; ++part) {
    const int nibble = part % 2 == 0 ? low[part / 2] % 16 : low[part / 2] / 16;
    const int scale = nibble + 16 * (high / (1 << (2 * part)) % 4) - 32;
    for (const int code : nibbles(block.bytes<16>()))
      out.push_back(d * scale * kCodebook[static_cast<std::size_t>(code)]);
  }
  return out;
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
struct ScalesAndMinima {
  std::array<int, 8> scale;
  std::array<int, 8> minimum;
};
ScalesAndMinima unpack_six_bits(const std::array<int, 12>& bytes) {
  ScalesAndMinima out;
  for (std::size_t i = 0; i < 4; ++i) {
    out.scale[i] = bytes[i] % 64;
    out.minimum[i] = bytes[i + 4] % 64;
    out.scale[i + 4] = bytes[i + 8] % 16 + bytes[i] / 64 * 16;
    out.minimum[i + 4] = bytes[i + 8] / 16 + bytes[i + 4] / 64 * 16;
  }
  return out;
}

Values q4_or_q5_k(Bytes block, bool five_bits) {
  const double d = block.half();
  const double m = block.half();
  const ScalesAndMinima parts = unpack_six_bits(block.bytes<12>());
  const std::array<int, 32> high = five_bits ? block.bytes<32>() : std::array<int, 32>{};
  Values out;
  for (std::size_t part = 0; part < 8; part += 2) {
    const std::vector<int> both = nibbles(block.bytes<32>());
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t own = part + i / 32;
      const int q = both[i] + (bit(high[i % 32], own) ? 16 : 0);
      out.push_back(d * parts.scale[own] * q - m * parts.minimum[own]);
    }
  }
  return out;
}

Values q6_k(Bytes block) {
  const std::array<int, 128> low = block.bytes<128>();
  const std::array<int, 64> high = block.bytes<64>();
  std::array<int, 16> scales;
  for (int& scale : scales) scale = block.take<std::int8_t>();
  const double d = block.half();
  Values out(256);
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t i = 0; i < 32; ++i) {
      const int h = high[half * 32 + i];
      const int a = low[half * 64 + i];
      const int b = low[half * 64 + 32 + i];
      const int quants[4] = {a % 16 + h % 4 * 16, b % 16 + h / 4 % 4 * 16, a / 16 + h / 16 % 4 * 16,
                             b / 16 + h / 64 * 16};
      for (std::size_t quarter = 0; quarter < 4; ++quarter) {
        const std::size_t at = half * 128 + quarter * 32 + i;
        out[at] = d * scales[at / 16] * (quants[quarter] - 32);
      }
    }
  }
  return out;
}

// Bit pairs: of each 32 bytes, the lowest pairs are 32 values, then the next.
std::vector<int> bit_pairs(const std::array<int, 64>& bytes) {
  std::vector<int> out;
  for (std::size_t half = 0; half < 64; half += 32)
    for (int divisor = 1; divisor <= 64; divisor *= 4)
      for (std::size_t i = 0; i < 32; ++i) out.push_back(bytes[half + i] / divisor % 4);
  return out;
}

Values q2_k(Bytes block) {
  const std::array<int, 16> scales = block.bytes<16>();
  const std::vector<int> quants = bit_pairs(block.bytes<64>());
  const double d = block.half();
  const double m = block.half();
  Values out;
  for (std::size_t i = 0; i < 256; ++i)
    out.push_back(d * (scales[i / 16] % 16) * quants[i] - m * (scales[i / 16] / 16));
  return out;
}

Values q3_k(Bytes block) {
  const std::array<int, 32> high = block.bytes<32>();
  const std::vector<int> quants = bit_pairs(block.bytes<64>());
  const std::array<int, 12> packed = block.bytes<12>();
  const double d = block.half();
  Values out;
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t part = i / 16;
    const int low = part < 8 ? packed[part] % 16 : packed[part - 8] / 16;
    const int scale = low + 16 * (packed[8 + part % 4] / (1 << (2 * (part / 4))) % 4) - 32;
    out.push_back(d * scale * (quants[i] + (bit(high[i % 32], i / 32) ? 4 : 0) - 4));
  }
  return out;
}

Values q8_0(Bytes block) {
  const double d = block.half();
  Values out;
  for (int i = 0; i < 32; ++i) out.push_back(d * block.take<std::int8_t>());
  return out;
}

Values bf16(Bytes block) {
  const std::uint32_t bits = std::uint32_t{block.take<std::uint16_t>()} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return {double{value}};
}

struct Format {
  std::uint32_t type;
  std::size_t bytes;  // of a block
  Values (*decode)(Bytes block);
};

constexpr Format kFormats[] = {
    {0, 4, [](Bytes b) { return Values{double{b.take<float>()}}; }},
    {1, 2, [](Bytes b) { return Values{b.half()}; }},
    {2, 18, [](Bytes b) { return legacy(b, false, false); }},
    {3, 20, [](Bytes b) { return legacy(b, true, false); }},
    {6, 22, [](Bytes b) { return legacy(b, false, true); }},
    {7, 24, [](Bytes b) { return legacy(b, true, true); }},
    {8, 34, q8_0},
    {10, 84, q2_k},
    {11, 110, q3_k},
    {12, 144, [](Bytes b) { return q4_or_q5_k(b, false); }},
    {13, 176, [](Bytes b) { return q4_or_q5_k(b, true); }},
    {14, 210, q6_k},
    {20, 18, iq4_nl},
    {23, 136, iq4_xs},
    {30, 2, bf16},
};

}  // namespace

std::vector<double> dequantise(std::uint32_t type, std::span<const std::byte> bytes, std::size_t elements) {
  const Format* format = nullptr;
  for (const Format& f : kFormats)
    if (f.type == type) format = &f;
  KVASIR_CHECK(format != nullptr);
  std::vector<double> out;
  for (; out.size() < elements; bytes = bytes.subspan(format->bytes)) {
    const Values block = format->decode(Bytes(bytes.first(format->bytes)));
    out.insert(out.end(), block.begin(), block.end());
  }
  KVASIR_CHECK(out.size() == elements && bytes.empty());
  return out;
}

}  // namespace kvasir::test
