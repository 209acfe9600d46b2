#include "reference/dequantise.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/grid_codes.h"

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

// The values of an entry of a grid: `kCount` codes of 16 / kCount bits each.
template <std::size_t kCount, std::size_t kEntries, std::size_t kValues>
std::array<int, kCount> grid_values(const std::array<std::uint16_t, kEntries>& grid, int entry,
                                    const std::array<int, kValues>& values) {
  std::array<int, kCount> out;
  int codes = grid.at(static_cast<std::size_t>(entry));
  constexpr int kCodes = kCount == 8 ? 4 : 16;
  for (int& value : out) {
    value = values.at(static_cast<std::size_t>(codes % kCodes));
    codes /= kCodes;
  }
  return out;
}

constexpr std::array<int, 3> kIq2Values = {8, 25, 43};
constexpr std::array<int, 8> kIq3XxsValues = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<int, 8> kIq3SValues = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr std::array<int, 3> kIq1Values = {-1, 0, 1};

// A byte of signs, of which seven are stored: the number of set bits is even.
int even_signs(int seven) {
  int set = 0;
  for (std::size_t i = 0; i < 7; ++i) set += bit(seven, i) ? 1 : 0;
  return seven + set % 2 * 128;
}

template <std::size_t kCount>
void append_signed(Values& out, double scale, const std::array<int, kCount>& values, int signs) {
  for (std::size_t i = 0; i < kCount; ++i) out.push_back(scale * (bit(signs, i) ? -values[i] : values[i]));
}

Values iq2_xxs(Bytes block) {
  const double d = block.half();
  Values out;
  for (int part = 0; part < 8; ++part) {
    const std::array<int, 4> entries = block.bytes<4>();
    std::uint32_t rest = block.take<std::uint32_t>();
    const double scale = d * (2 * (rest / (1U << 28)) + 1) / 8;
    for (const int entry : entries) {
      append_signed(out, scale, grid_values<8>(kIq2XxsCodes, entry, kIq2Values),
                    even_signs(static_cast<int>(rest % 128)));
      rest /= 128;
    }
  }
  return out;
}

Values iq2_xs(Bytes block) {
  const double d = block.half();
  std::array<int, 32> entries;
  for (int& entry : entries) entry = block.take<std::uint16_t>();
  const std::array<int, 8> scales = block.bytes<8>();
  Values out;
  for (std::size_t eight = 0; eight < 32; ++eight) {
    const int both = scales[eight / 4];
    const int scale = eight % 4 < 2 ? both % 16 : both / 16;
    append_signed(out, d * (2 * scale + 1) / 8, grid_values<8>(kIq2XsCodes, entries[eight] % 512, kIq2Values),
                  even_signs(entries[eight] / 512));
  }
  return out;
}

Values iq2_s(Bytes block) {
  const double d = block.half();
  const std::array<int, 32> low = block.bytes<32>();
  const std::array<int, 32> signs = block.bytes<32>();
  const std::array<int, 8> high = block.bytes<8>();
  const std::array<int, 8> scales = block.bytes<8>();
  Values out;
  for (std::size_t eight = 0; eight < 32; ++eight) {
    const int both = scales[eight / 4];
    const int scale = eight % 4 < 2 ? both % 16 : both / 16;
    const int entry = low[eight] + 256 * (high[eight / 4] / (1 << (2 * (eight % 4))) % 4);
    append_signed(out, d * (2 * scale + 1) / 8, grid_values<8>(kIq2SCodes, entry, kIq2Values), signs[eight]);
  }
  return out;
}

Values iq3_xxs(Bytes block) {
  const double d = block.half();
  const std::array<int, 64> entries = block.bytes<64>();
  Values out;
  for (std::size_t part = 0; part < 8; ++part) {
    std::uint32_t rest = block.take<std::uint32_t>();
    const double scale = d * (2 * (rest / (1U << 28)) + 1) / 4;
    for (std::size_t eight = part * 4; eight < part * 4 + 4; ++eight) {
      const int signs = even_signs(static_cast<int>(rest % 128));
      append_signed(out, scale, grid_values<4>(kIq3XxsCodes, entries[2 * eight], kIq3XxsValues), signs % 16);
      append_signed(out, scale, grid_values<4>(kIq3XxsCodes, entries[2 * eight + 1], kIq3XxsValues), signs / 16);
      rest /= 128;
    }
  }
  return out;
}

Values iq3_s(Bytes block) {
  const double d = block.half();
  const std::array<int, 64> low = block.bytes<64>();
  const std::array<int, 8> high = block.bytes<8>();
  const std::array<int, 32> signs = block.bytes<32>();
  const std::array<int, 4> scales = block.bytes<4>();
  Values out;
  for (std::size_t four = 0; four < 64; ++four) {
    const int both = scales[four / 16];
    const int scale = four % 16 < 8 ? both % 16 : both / 16;
    const int entry = low[four] + (bit(high[four / 8], four % 8) ? 256 : 0);
    append_signed(out, d * (2 * scale + 1), grid_values<4>(kIq3SCodes, entry, kIq3SValues),
                  four % 2 == 0 ? signs[four / 2] % 16 : signs[four / 2] / 16);
  }
  return out;
}

void append_shifted(Values& out, double scale, int entry, bool less) {
  for (const int value : grid_values<8>(kIq1Codes, entry, kIq1Values))
    out.push_back(scale * (less ? value - 0.125 : value + 0.125));
}

Values iq1_s(Bytes block) {
  const double d = block.half();
  const std::array<int, 32> low = block.bytes<32>();
  Values out;
  for (std::size_t part = 0; part < 8; ++part) {
    int rest = block.take<std::uint16_t>();
    const bool less = rest >= 32768;
    const int scale = 2 * (rest / 4096 % 8) + 1;
    for (std::size_t n = 0; n < 4; ++n, rest /= 8)
      append_shifted(out, d * scale, low[part * 4 + n] + rest % 8 * 256, less);
  }
  return out;
}

Values iq1_m(Bytes block) {
  const std::array<int, 32> low = block.bytes<32>();
  const std::array<int, 16> high = block.bytes<16>();
  std::array<int, 4> words;
  for (int& word : words) word = block.take<std::uint16_t>();
  const int bits = words[0] / 4096 + words[1] / 4096 * 16 + words[2] / 4096 * 256 + words[3] / 4096 * 4096;
  const double d = decode_f16(static_cast<std::uint16_t>(bits));
  Values out;
  for (std::size_t eight = 0; eight < 32; ++eight) {
    const int scale = 2 * (words[eight / 8] / (1 << (3 * (eight / 2 % 4))) % 8) + 1;
    const int nibble = eight % 2 == 0 ? high[eight / 2] % 16 : high[eight / 2] / 16;
    append_shifted(out, d * scale, low[eight] + nibble % 8 * 256, nibble >= 8);
  }
  return out;
}

// Digits of base three: the byte times three, again and again; what leaves its eight bits is the next digit.
template <std::size_t kBytes>
void append_digits(std::vector<int>& out, const std::array<int, kBytes>& bytes, int digits) {
  std::array<int, kBytes> rest = bytes;
  for (int n = 0; n < digits; ++n)
    for (int& r : rest) {
      out.push_back(r * 3 / 256);
      r = r * 3 % 256;
    }
}

Values tq1_0(Bytes block) {
  std::vector<int> digits;
  append_digits(digits, block.bytes<32>(), 5);
  append_digits(digits, block.bytes<16>(), 5);
  append_digits(digits, block.bytes<4>(), 4);
  const double d = block.half();
  Values out;
  for (const int digit : digits) out.push_back(d * (digit - 1));
  return out;
}

Values tq2_0(Bytes block) {
  const std::vector<int> quants = bit_pairs(block.bytes<64>());
  const double d = block.half();
  Values out;
  for (const int q : quants) out.push_back(d * (q - 1));
  return out;
}

// A sign, two bits of exponent and one of mantissa.
Values mxfp4(Bytes block) {
  static constexpr std::array<double, 8> kE2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double scale = std::ldexp(1.0, block.take<std::uint8_t>() - 127);
  Values out;
  for (const int code : nibbles(block.bytes<16>()))
    out.push_back(
        scale * (code < 8 ? kE2m1.at(static_cast<std::size_t>(code)) : -kE2m1.at(static_cast<std::size_t>(code - 8))));
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
    {16, 66, iq2_xxs},
    {17, 74, iq2_xs},
    {18, 98, iq3_xxs},
    {19, 50, iq1_s},
    {20, 18, iq4_nl},
    {21, 110, iq3_s},
    {22, 82, iq2_s},
    {23, 136, iq4_xs},
    {29, 56, iq1_m},
    {30, 2, bf16},
    {34, 54, tq1_0},
    {35, 66, tq2_0},
    {39, 17, mxfp4},
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
