// Codecs against their definitions, computed here element by element in double and without any layout.
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/kernels/attention_scene.h"
#include "backend/cpu/kernels/encode_page.h"
#include "backend/cpu/kernels/page_layout.h"
#include "tensor/dtype.h"

namespace kvasir::test {
namespace {

constexpr KvType kCodecs[] = {KvType::kQ8, KvType::kQ4, KvType::kQ4O, KvType::kQ3, KvType::kQ2};

// One side of a page: [slots][head_dim].
using Side = std::vector<float>;

double half(double x) {
  return double{f16_to_f32(f32_to_f16(static_cast<float>(x)))};
}

int bits_of(KvType type) {
  return type == KvType::kQ8 ? 8 : type == KvType::kQ3 ? 3 : type == KvType::kQ2 ? 2 : 4;
}

// The groups of a side, as lists of elements [slot * head_dim + dimension].
std::vector<std::vector<int>> groups_of(KvType type, bool keys, int slots, int dim) {
  std::vector<std::vector<int>> groups;
  if (keys && type != KvType::kQ8) {
    for (int d = 0; d < dim; ++d)
      for (int first = 0; first < slots; first += 32) {
        std::vector<int>& group = groups.emplace_back();
        for (int s = first; s < std::min(first + 32, slots); ++s) group.push_back(s * dim + d);
      }
    return groups;
  }
  for (int s = 0; s < slots; ++s)
    for (int first = 0; first < dim; first += 32) {
      std::vector<int>& group = groups.emplace_back();
      for (int d = first; d < std::min(first + 32, dim); ++d) group.push_back(s * dim + d);
    }
  return groups;
}

// Of groups whose elements are live.
void keep_apart(const std::vector<std::vector<int>>& groups, const Side& x, int slots, int dim, bool keys,
                std::vector<bool>& apart) {
  std::vector<std::tuple<double, int, int>> order;  // the farthest first, then by place on the page
  for (const std::vector<int>& group : groups) {
    if (group.empty()) continue;
    float least = x[static_cast<std::size_t>(group[0])], most = least;
    for (const int i : group) {
      least = std::min(least, x[static_cast<std::size_t>(i)]);
      most = std::max(most, x[static_cast<std::size_t>(i)]);
    }
    const float middle = (least + most) / 2;
    for (const int i : group) {
      const int place = keys ? i % dim * slots + i / dim : i;
      order.emplace_back(-std::fabs(x[static_cast<std::size_t>(i)] - middle), place, i);
    }
  }
  std::sort(order.begin(), order.end());
  const std::size_t count = std::min<std::size_t>(order.size(), static_cast<std::size_t>((slots * dim + 99) / 100));
  for (std::size_t i = 0; i < count; ++i) apart[static_cast<std::size_t>(std::get<2>(order[i]))] = true;
}

// What a codec makes of a side; of slots outside `live`, anything.
Side expected(KvType type, bool keys, const Side& x, SlotMask live, int slots, int dim) {
  Side out = x;
  std::vector<bool> apart(x.size());
  std::vector<std::vector<int>> groups = groups_of(type, keys, slots, dim);
  for (std::vector<int>& group : groups) std::erase_if(group, [&](int i) { return (live >> (i / dim) & 1) == 0; });
  if (type == KvType::kQ4O) keep_apart(groups, x, slots, dim, keys, apart);
  for (const std::vector<int>& group : groups) {
    double least = 0, most = 0, magnitude = 0;
    bool any = false;
    for (const int i : group) {
      if (apart[static_cast<std::size_t>(i)]) continue;
      const double value = double{x[static_cast<std::size_t>(i)]};
      least = any ? std::min(least, value) : value;
      most = any ? std::max(most, value) : value;
      magnitude = std::max(magnitude, std::fabs(value));
      any = true;
    }
    const int levels = (1 << bits_of(type)) - 1;
    const bool symmetric = type == KvType::kQ8;
    const double zero = symmetric ? 0 : half(least);
    const double scale =
        half(symmetric ? std::max(magnitude / 127, 1e-8)
                       : static_cast<double>(static_cast<float>(most) - static_cast<float>(zero)) / levels);
    for (const int i : group) {
      if (apart[static_cast<std::size_t>(i)]) continue;
      const float distance = static_cast<float>(x[static_cast<std::size_t>(i)] - static_cast<float>(zero));
      const double steps = scale > 0 ? double{distance / static_cast<float>(scale)} : 0;
      const double code = std::nearbyint(symmetric ? std::clamp(steps, -127.0, 127.0)
                                                   : std::clamp(steps, 0.0, static_cast<double>(levels)));
      out[static_cast<std::size_t>(i)] = static_cast<float>(zero + scale * code);
    }
  }
  return out;
}

struct Encoded {
  Side keys;
  Side values;
  std::vector<std::byte> open;
  std::vector<std::byte> page;
};

float outlying(Random& random, int dimension) {
  const float x = random.symmetric(2.0F);
  return random.below(40) == 0 ? x * 12 : dimension % 7 == 3 ? x + 9 : x;
}

Encoded encode_random(const PageFormat& format, SlotMask live, Random& random) {
  Encoded encoded;
  const auto count = static_cast<std::size_t>(format.slots * format.head_dim);
  encoded.open.resize(format.open().bytes());
  encoded.page.resize(format.bytes());
  encoded.keys.resize(count);
  encoded.values.resize(count);
  for (int s = 0; s < format.slots; ++s) {
    std::vector<float> key, value;
    for (int d = 0; d < format.head_dim; ++d) {
      key.push_back(outlying(random, d));
      value.push_back(outlying(random, d));
    }
    generic_kernels().store_kv(format.open(), encoded.open.data(), s, key.data(), value.data());
    for (int d = 0; d < format.head_dim; ++d) {
      const auto at = static_cast<std::size_t>(s * format.head_dim + d);
      encoded.keys[at] = round_to(format.open().key, key[static_cast<std::size_t>(d)]);
      encoded.values[at] = round_to(format.open().value, value[static_cast<std::size_t>(d)]);
    }
  }
  encode_page(format, encoded.open.data(), live, encoded.page.data());
  return encoded;
}

// A page that decodes to these floats, as attention reads it: with one query after the other that is a unit vector.
class Reader {
 public:
  Reader(const PageFormat& format, const std::byte* page) : format_(format), page_(page) {}

  // The key and the value in a slot, in 16 bits.
  void read(Side& keys, Side& values) const {
    std::vector<std::byte> open(format_.open().bytes());
    decode_to_open(format_, page_, open.data());
    const PageFormat plain = format_.open();
    for (int s = 0; s < plain.slots; ++s)
      for (int d = 0; d < plain.head_dim; ++d) {
        const auto at = static_cast<std::size_t>(s * plain.head_dim + d);
        keys[at] =
            element(plain.key, open.data() + static_cast<std::size_t>(d * plain.slots + s) * kv_type_bytes(plain.key));
        values[at] = element(plain.value, open.data() + values_offset(plain) + at * kv_type_bytes(plain.value));
      }
  }

 private:
  static float element(KvType type, const std::byte* p) {
    if (type == KvType::kF32) {
      float value;
      std::memcpy(&value, p, sizeof value);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return type == KvType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }

  PageFormat format_;
  const std::byte* page_;
};

TEST(Codec, BytesAreThoseOfTheTable) {
  const std::pair<KvType, double> bytes[] = {
      {KvType::kQ8, 1.0625}, {KvType::kQ4, 0.625}, {KvType::kQ3, 0.5}, {KvType::kQ2, 0.375}};
  for (const int dim : {32, 64, 128})
    for (const auto& [type, each] : bytes) {
      const PageFormat format{dim, 32, type};
      EXPECT_EQ(static_cast<double>(format.bytes()), each * 2 * 32 * dim) << kv_type_name(type);
      EXPECT_EQ(format.key_bytes() * 2, format.bytes());
    }
  const PageFormat apart{64, 32, KvType::kQ4O};
  EXPECT_EQ(apart.bytes(), PageFormat({64, 32, KvType::kQ4}).bytes() + 2 * 21 * 4);
  EXPECT_NEAR(static_cast<double>(apart.bytes()) / (2 * 32 * 64), 0.68, 0.02);
  const PageFormat mixed{64, 32, KvType::kQ8, KvType::kQ4};
  EXPECT_EQ(mixed.bytes(), 64u * 34 + 32u * 40);
  EXPECT_EQ(mixed.open(), (PageFormat{64, 32, KvType::kF16}));
}

TEST(Codec, DecodesToWhatItsDefinitionSays) {
  Random random(41);
  for (const KvType key : kCodecs)
    for (const KvType value : kCodecs)
      for (const int slots : {16, 32, 64})
        for (const int dim : {2, 3, 17, 31, 32, 33, 50, 64, 80, 127, 128}) {
          const PageFormat format{dim, slots, key, value};
          const SlotMask live = random.below(3) == 0 ? slot_range(0, slots) : random.bits() & slot_range(0, slots);
          const Encoded encoded = encode_random(format, live, random);
          Side keys(encoded.keys.size()), values(keys.size());
          Reader(format, encoded.page.data()).read(keys, values);
          const Side wanted_keys = expected(key, true, encoded.keys, live, slots, dim);
          const Side wanted_values = expected(value, false, encoded.values, live, slots, dim);
          for (std::size_t i = 0; i < keys.size(); ++i) {
            if ((live >> (i / static_cast<std::size_t>(dim)) & 1) == 0) continue;
            ASSERT_EQ(keys[i], half(wanted_keys[i]))
                << codec_name(format) << " slots " << slots << " dim " << dim << " key " << i;
            ASSERT_EQ(values[i], half(wanted_values[i]))
                << codec_name(format) << " slots " << slots << " dim " << dim << " value " << i;
          }
        }
}

TEST(Codec, SidesThatAreNotEncodedStayAsTheyAre) {
  Random random(5);
  for (const KvType plain : kKvTypes)
    for (const bool keys_are : {false, true}) {
      const PageFormat format{48, 32, keys_are ? KvType::kQ4 : plain, keys_are ? plain : KvType::kQ4};
      const Encoded encoded = encode_random(format, slot_range(0, 32), random);
      Side keys(encoded.keys.size()), values(keys.size());
      Reader(format, encoded.page.data()).read(keys, values);
      EXPECT_EQ(keys == encoded.keys, !keys_are);
      EXPECT_EQ(values == encoded.values, keys_are);
    }
}

TEST(Codec, WhatIsNotFiniteShows) {
  Random random(6);
  for (const KvType type : kCodecs)
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      const PageFormat format{64, 32, type};
      Encoded encoded = encode_random(format, slot_range(0, 32), random);
      std::vector<float> key(64, 1.0F), value(64, 1.0F);
      key[7] = value[7] = bad;
      generic_kernels().store_kv(format.open(), encoded.open.data(), 3, key.data(), value.data());
      const auto read = [&](SlotMask live) {
        encode_page(format, encoded.open.data(), live, encoded.page.data());
        Side keys(encoded.keys.size()), values(keys.size());
        Reader(format, encoded.page.data()).read(keys, values);
        return std::pair(keys[3 * 64 + 7], values[3 * 64 + 7]);
      };
      EXPECT_TRUE(std::isnan(read(slot_range(0, 32)).first)) << kv_type_name(type);
      EXPECT_TRUE(std::isnan(read(slot_range(0, 32)).second)) << kv_type_name(type);
      EXPECT_TRUE(std::isfinite(read(slot_range(0, 32) & ~SlotMask{8}).first)) << "of a slot that is dead";
    }
}

TEST(Hadamard, IsTheMatrixInBlocks) {
  Random random(9);
  for (const int dim : {2, 48, 50, 64, 80, 96, 128, 512}) {
    const int block = dim & -dim;
    std::vector<float> x = random.floats(static_cast<std::size_t>(3 * dim), 4.0F);
    std::vector<float> y = x;
    hadamard(y.data(), 3, dim);
    for (int i = 0; i < 3 * dim; ++i) {
      double sum = 0;
      const int first = i / block * block;
      for (int j = 0; j < block; ++j)
        sum += (std::popcount(static_cast<unsigned>((i - first) & j)) % 2 == 0 ? 1 : -1) *
               double{x[static_cast<std::size_t>(first + j)]};
      ASSERT_NEAR(y[static_cast<std::size_t>(i)], sum / std::sqrt(block), 1e-5);
    }
    hadamard(y.data(), 3, dim);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 1e-5);
  }
}

TEST(ParseCodec, ReadsWhatCodecNameWrites) {
  for (const std::string text : {"f16", "q4", "k=q8,v=q4", "q4,recent=64", "k=f32,v=q2,recent=32", "bf16", "q4o"}) {
    const ParsedCodec parsed = parse_codec(text);
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(codec_name(parsed.codec), text);
  }
  EXPECT_EQ(codec_name(parse_codec("v=q4,k=q4").codec), "q4");
  for (const std::string rotate : {"k", "v", "kv", "off"}) {
    const KvCodec codec = parse_codec("q4,rotate=" + rotate).codec;
    EXPECT_EQ(codec.rotated_keys, rotate[0] == 'k');
    EXPECT_EQ(codec.rotated_values, rotate.back() == 'v');
    EXPECT_EQ(parse_codec(codec_name(codec)).codec, codec);
  }
  for (const std::string text : {"", ",", "q5", "q4,", "k=q4", "v=q4", "q4,q4", "k=q4,k=q4",
                                 "q4,recent=", "q4,recent=-1", "q4,recent=5000", "q4,recent=1,recent=1", "f16,recent=8",
                                 "f16,rotate=k", "q4,rotate=x", "q4,x=1", "k=q4,v=f16,rotate=v", "=", "q4 "})
    EXPECT_NE(parse_codec(text).error, "") << text;
}

class EncodedAttention : public KernelTest {};
KVASIR_ON_EVERY_TABLE(EncodedAttention);

// The contract of AttentionPartial, for pages of many formats beside each other.
TEST_P(EncodedAttention, IsThatOfTheDecodedFloats) {
  Random random(17);
  for (const int slots : {16, 32, 64})
    for (const int dim : {16, 20, 64, 80, 128})
      for (const int group : {1, 3, 4, 8}) {
        std::vector<PageFormat> formats;
        for (const KvType type : kCodecs) formats.push_back({dim, slots, type});
        formats.push_back({dim, slots, KvType::kQ8, KvType::kQ2});
        formats.push_back({dim, slots, KvType::kF16, KvType::kQ4});
        formats.push_back({dim, slots, KvType::kF16});
        const int entries = static_cast<int>(formats.size());
        const int rows = 2;
        std::vector<std::vector<std::byte>> pages, floats;
        const PageFormat wide{dim, slots, KvType::kF32};
        for (const PageFormat& format : formats) {
          Encoded encoded;
          if (format.encoded()) {
            encoded = encode_random(format, slot_range(0, slots), random);
          } else {
            encoded = encode_random({dim, slots, KvType::kQ4}, slot_range(0, slots), random);
            encoded.page = encoded.open;
          }
          pages.push_back(encoded.page);
          std::vector<std::byte>& decoded = floats.emplace_back(wide.bytes());
          Side keys = encoded.keys, values = encoded.values;
          if (is_encoded(format.key)) keys = expected(format.key, true, encoded.keys, slot_range(0, slots), slots, dim);
          if (is_encoded(format.value))
            values = expected(format.value, false, encoded.values, slot_range(0, slots), slots, dim);
          for (int s = 0; s < slots; ++s)
            generic_kernels().store_kv(wide, decoded.data(), s, keys.data() + s * dim, values.data() + s * dim);
        }
        const std::vector<float> q = random.floats(static_cast<std::size_t>(rows * group * dim), 0.5F);
        std::vector<SlotMask> masks;
        for (int i = 0; i < rows * entries; ++i)
          masks.push_back(random.below(4) == 0 ? 0 : random.bits() & slot_range(0, slots));
        const auto run = [&](const std::vector<std::vector<std::byte>>& of, const std::vector<const PageFormat*>& as,
                             Exponentials& exponentials) {
          std::vector<const std::byte*> data;
          for (const auto& page : of) data.push_back(page.data());
          State state(rows * group, dim);
          AttentionPartial partial;
          partial.head_dim = dim;
          partial.slots = slots;
          partial.rows = rows;
          partial.group = group;
          partial.q = q.data();
          partial.q_row_stride = static_cast<std::size_t>(group * dim);
          partial.entries = entries;
          partial.pages = data.data();
          partial.formats = as.data();
          partial.masks = masks.data();
          partial.mask_row_stride = static_cast<std::size_t>(entries);
          partial.weights = exponentials.of(0);
          partial.weight_stride = exponentials.weight_stride;
          partial.weight_maxima = exponentials.maxima_of(0);
          partial.weight_maximum_stride = exponentials.maximum_stride;
          table().attend(partial, state.view());
          EXPECT_TRUE(state.intact() && exponentials.weights.intact() && exponentials.maxima.intact());
          return state;
        };
        std::vector<const PageFormat*> own;
        for (const PageFormat& format : formats) own.push_back(&format);
        Exponentials a(rows * group, entries, slots), b(rows * group, entries, slots);
        const State got = run(pages, own, a);
        const State wanted = run(floats, std::vector<const PageFormat*>(formats.size(), &wide), b);
        ASSERT_TRUE(got.count == wanted.count && same_bits(got.maximum.data(), wanted.maximum.data(), got.count) &&
                    same_bits(got.sum.data(), wanted.sum.data(), got.count) &&
                    same_bits(got.weighted.data(), wanted.weighted.data(), got.count * got.dim))
            << "slots " << slots << " dim " << dim << " group " << group;
        for (int query = 0; query < rows * group; ++query)
          for (int e = 0; e < entries; ++e) {
            const SlotMask live = masks[static_cast<std::size_t>(query / group * entries + e)];
            if (live == 0) continue;
            const auto entry = static_cast<std::size_t>(e);
            ASSERT_EQ(a.maxima_of(static_cast<std::size_t>(query))[entry],
                      b.maxima_of(static_cast<std::size_t>(query))[entry]);
            for (int s = 0; s < slots; ++s)
              if ((live >> s & 1) != 0) {
                ASSERT_EQ(a.of(static_cast<std::size_t>(query))[e * slots + s],
                          b.of(static_cast<std::size_t>(query))[e * slots + s]);
              }
          }
      }
}

}  // namespace
}  // namespace kvasir::test
