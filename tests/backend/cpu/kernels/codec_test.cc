// Codecs against their definitions, computed here element by element in double and without any layout.
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/kernels/codec_scene.h"
#include "backend/cpu/kernels/pages/page_layout.h"
#include "tensor/dtype.h"

namespace kvasir::test {
namespace {

// Reads the floats of an encoded page.
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
    EXPECT_EQ(codec.hadamard_keys, rotate[0] == 'k');
    EXPECT_EQ(codec.hadamard_values, rotate.back() == 'v');
    EXPECT_EQ(parse_codec(codec_name(codec)).codec, codec);
  }
  for (const char* type : {"q4", "q3", "q2"}) {
    EXPECT_TRUE(parse_codec(type).codec.hadamard_keys && parse_codec(type).codec.hadamard_values) << type;
    EXPECT_EQ(codec_name(parse_codec(type + std::string(",rotate=kv")).codec), type);
  }
  for (const char* type : {"q8", "q4o"}) EXPECT_FALSE(parse_codec(type).codec.hadamard_keys) << type;
  const KvCodec sides = parse_codec("k=q8,v=q4").codec;
  EXPECT_TRUE(!sides.hadamard_keys && sides.hadamard_values);
  for (const std::string text : {"", ",", "q5", "q4,", "k=q4", "v=q4", "q4,q4", "k=q4,k=q4",
                                 "q4,recent=", "q4,recent=-1", "q4,recent=5000", "q4,recent=1,recent=1", "f16,recent=8",
                                 "f16,rotate=k", "q4,rotate=x", "q4,x=1", "k=q4,v=f16,rotate=v", "=", "q4 "})
    EXPECT_NE(parse_codec(text).error, "") << text;
}

// Files say what they mean, whatever is taken for granted later.
TEST(ParseCodec, StoredNamesTakeNothingForGranted) {
  EXPECT_EQ(stored_codec_name(parse_codec("q4").codec), "q4,rotate=kv");
  EXPECT_EQ(stored_codec_name(parse_codec("q4,rotate=off").codec), "q4");
  EXPECT_EQ(stored_codec_name(parse_codec("k=q8,v=q2,recent=7").codec), "k=q8,v=q2,recent=7,rotate=v");
  EXPECT_EQ(stored_codec_name(parse_codec("f16").codec), "f16");
  for (const char* text : {"q4", "q4,rotate=off", "q8,rotate=k", "k=q8,v=q2,recent=7", "q4o,rotate=kv", "bf16"}) {
    const KvCodec codec = parse_codec(text).codec;
    EXPECT_EQ(parse_stored_codec(stored_codec_name(codec)).codec, codec) << text;
  }
  EXPECT_FALSE(parse_stored_codec("q4").codec.hadamard_keys);
  EXPECT_NE(parse_stored_codec("q9").error, "");
}

TEST(SplitCodecs, AtTypesAndSidesNamedAgain) {
  using List = std::vector<std::string>;
  EXPECT_EQ(split_codecs("q8"), List{"q8"});
  EXPECT_EQ(split_codecs("q8,q4,recent=64,k=q8,v=q4"), (List{"q8", "q4,recent=64", "k=q8,v=q4"}));
  EXPECT_EQ(split_codecs("v=q4,k=q8,rotate=off,k=f16,v=q2,q2"), (List{"v=q4,k=q8,rotate=off", "k=f16,v=q2", "q2"}));
  EXPECT_EQ(split_codecs("recent=5,q8"), List{"recent=5,q8"});
  EXPECT_EQ(split_codecs("q8,,q4"), (List{"q8", "", "q4"}));  // which is no codec
  EXPECT_EQ(split_codecs("q8,"), (List{"q8", ""}));
  EXPECT_EQ(split_codecs(""), List{""});
}

}  // namespace
}  // namespace kvasir::test
