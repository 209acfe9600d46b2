// Slots moved within a page and between pages, rotated or not.
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/attention_scene.h"

namespace kvasir::test {
namespace {

class MoveSlotsTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(MoveSlotsTest);

// An element of a page as its bits.
std::uint32_t bits_of(KvType type, const std::byte* page, std::size_t index) {
  std::uint32_t bits = 0;
  const std::size_t size = type == KvType::kF32 ? 4 : 2;
  std::memcpy(&bits, page + index * size, size);
  return bits;
}

float value_of(KvType type, std::uint32_t bits) {
  if (type == KvType::kF32) return std::bit_cast<float>(bits);
  return type == KvType::kF16 ? f16_to_f32(static_cast<std::uint16_t>(bits))
                              : bf16_to_f32(static_cast<std::uint16_t>(bits));
}

std::uint32_t bits_for(KvType type, float value) {
  if (type == KvType::kF32) return std::bit_cast<std::uint32_t>(value);
  return type == KvType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}

struct Case {
  PageFormat shape;
  int rotary = -1;  // -1: not rotated
  SlotMask slots = 0;
  int to_slot = 0;
  bool in_place = false;
};

class Pages {
 public:
  Pages(const KernelTable& table, const Case& wanted, Random& random)
      : table_(table),
        case_(wanted),
        from_(wanted.shape.bytes(), std::size_t{64}),
        to_(wanted.shape.bytes(), std::size_t{64}),
        cosine_(static_cast<std::size_t>(std::max(wanted.rotary, 0) / 2)),
        sine_(cosine_.size()) {
    fill(from_, random);
    fill(to_, random);
    for (std::size_t i = 0; i < cosine_.size(); ++i) {
      const float angle = random.symmetric(100.0F);
      cosine_[i] = std::cos(angle);
      sine_[i] = std::sin(angle);
    }
  }

  void run() {
    const std::vector<std::byte> from = from_.copy();
    std::vector<std::byte> generic = target().copy();
    const std::vector<std::byte> before = generic;
    const bool rotated = case_.rotary >= 0;
    const float* cosine = rotated ? cosine_.data() : nullptr;
    const float* sine = rotated ? sine_.data() : nullptr;
    table_.move_slots(case_.shape, from_.data(), case_.slots, target().data(), case_.to_slot, case_.rotary, cosine,
                      sine);
    ASSERT_TRUE(from_.intact() && to_.intact() && cosine_.intact() && sine_.intact());
    if (!case_.in_place) {
      ASSERT_EQ(from_.copy(), from) << "the source was written";
    }
    generic_kernels().move_slots(case_.shape, case_.in_place ? generic.data() : from.data(), case_.slots,
                                 generic.data(), case_.to_slot, case_.rotary, cosine, sine);
    ASSERT_EQ(target().copy(), generic) << "not what the generic table writes";
    verify(from, before);
  }

 private:
  Fenced<std::byte>& target() { return case_.in_place ? from_ : to_; }

  void fill(Fenced<std::byte>& page, Random& random) const {
    const auto dim = static_cast<std::size_t>(case_.shape.head_dim);
    for (int s = 0; s < case_.shape.slots; ++s) {
      std::vector<float> key = random.floats(dim, std::ldexp(1.0F, random.below(30) - 22));
      std::vector<float> value = random.floats(dim, 3.0F);
      value[0] = -0.0F;
      if (s % 7 == 3) key[dim - 1] = value[1] = s % 2 == 0 ? INFINITY : std::nanf("");
      table_.store_kv(case_.shape, page.data(), s, key.data(), value.data());
    }
  }

  // The page element by element: what was moved is the source's, rotated in float, and all else is as before.
  void verify(const std::vector<std::byte>& from, const std::vector<std::byte>& before) {
    const KvType type = case_.shape.key;
    const auto dim = static_cast<std::size_t>(case_.shape.head_dim);
    const auto width = static_cast<std::size_t>(case_.shape.slots);
    const auto rotary = static_cast<std::size_t>(std::max(case_.rotary, 0));
    const std::size_t values = width * dim;  // elements before them
    std::vector<int> source(width, -1);
    int to = case_.to_slot;
    for (int s = 0; s < case_.shape.slots; ++s)
      if (case_.slots >> s & 1) source[static_cast<std::size_t>(to++)] = s;
    for (std::size_t s = 0; s < width; ++s) {
      const bool moved = source[s] >= 0;
      const std::vector<std::byte>& page = moved ? from : before;
      const std::size_t at = moved ? static_cast<std::size_t>(source[s]) : s;
      for (std::size_t d = 0; d < dim; ++d) {
        ASSERT_EQ(bits_of(type, target().data(), values + s * dim + d),
                  bits_of(type, page.data(), values + at * dim + d))
            << "value " << s << ' ' << d;
        const std::uint32_t got = bits_of(type, target().data(), d * width + s);
        if (!moved || d >= rotary) {
          ASSERT_EQ(got, bits_of(type, page.data(), d * width + at)) << "key " << s << ' ' << d;
          continue;
        }
        const float a = value_of(type, bits_of(type, page.data(), (d & ~std::size_t{1}) * width + at));
        const float b = value_of(type, bits_of(type, page.data(), (d | 1) * width + at));
        const float c = cosine_[d / 2];
        const float n = sine_[d / 2];
        const float first = d % 2 == 0 ? a * c : a * n;
        const float second = d % 2 == 0 ? b * n : b * c;
        const float wanted = d % 2 == 0 ? first - second : first + second;
        if (std::isnan(wanted)) {
          ASSERT_TRUE(std::isnan(value_of(type, got)));
        } else {
          ASSERT_EQ(got, bits_for(type, wanted)) << "key " << s << ' ' << d;
        }
      }
    }
  }

  const KernelTable& table_;
  Case case_;
  Fenced<std::byte> from_;
  Fenced<std::byte> to_;
  Fenced<float> cosine_;
  Fenced<float> sine_;
};

SlotMask random_mask(int slots, Random& random) {
  const SlotMask all = slot_range(0, slots);
  switch (random.below(6)) {
    case 0: return all;
    case 1: return SlotMask{1} << random.below(slots);
    case 2: {
      const int begin = random.below(slots);
      return slot_range(begin, begin + 1 + random.below(slots - begin));
    }
    case 3: return random.bits() & random.bits() & all;
    case 4: return (random.bits() | random.bits()) & all;
    default: return random.bits() & all;
  }
}

TEST_P(MoveSlotsTest, MovesRandomSlotsAndNothingElse) {
  Random random(1);
  for (const KvType type : kKvTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {2, 16, 20, 64}) {
        for (const int rotary : {-1, 0, 2, head_dim / 4 * 2, head_dim}) {
          for (int round = 0; round < 12; ++round) {
            Case wanted{{head_dim, slots, type}, rotary, random_mask(slots, random), 0, round % 2 == 0};
            if (wanted.slots == 0) continue;
            const int count = std::popcount(wanted.slots);
            wanted.to_slot = random.below(1 + (wanted.in_place ? std::countr_zero(wanted.slots) : slots - count));
            SCOPED_TRACE(std::string(kv_type_name(type)) + " dim " + std::to_string(head_dim) + " slots " +
                         std::to_string(slots) + " rotary " + std::to_string(rotary) + " mask " +
                         std::to_string(wanted.slots) + " to " + std::to_string(wanted.to_slot) +
                         (wanted.in_place ? " in place" : ""));
            ASSERT_NO_FATAL_FAILURE(Pages(table(), wanted, random).run());
          }
        }
      }
    }
  }
}

TEST_P(MoveSlotsTest, NoSlotsAndWholePages) {
  Random random(2);
  for (const KvType type : kKvTypes)
    for (const int slots : {16, 32, 64})
      for (const bool in_place : {false, true})
        for (const int rotary : {-1, 20})
          for (const SlotMask mask : {SlotMask{0}, slot_range(0, slots)})
            ASSERT_NO_FATAL_FAILURE(Pages(table(), {{20, slots, type}, rotary, mask, 0, in_place}, random).run());
}

// A move by one angle and a move back leave the key where it was, but for rounding.
TEST_P(MoveSlotsTest, RotatingThereAndBackIsTheSameKey) {
  Random random(3);
  const PageFormat shape{64, 32, KvType::kF32};
  std::vector<std::byte> page(shape.bytes());
  for (int s = 0; s < 32; ++s)
    table().store_kv(shape, page.data(), s, random.floats(64).data(), random.floats(64).data());
  const std::vector<std::byte> before = page;
  std::vector<float> cosine(32), sine(32), back(32);
  for (std::size_t i = 0; i < 32; ++i) {
    const double angle = random.symmetric(3.0F);
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
    back[i] = -sine[i];
  }
  const SlotMask slots = 0xfffffffe;
  table().move_slots(shape, page.data(), slots, page.data(), 0, 64, cosine.data(), sine.data());
  std::vector<std::byte> other(shape.bytes());
  table().move_slots(shape, page.data(), slots >> 1, other.data(), 1, 64, cosine.data(), back.data());
  for (std::size_t d = 0; d < 64; ++d)
    for (std::size_t s = 1; s < 32; ++s)
      ASSERT_NEAR(value_of(KvType::kF32, bits_of(KvType::kF32, other.data(), d * 32 + s)),
                  value_of(KvType::kF32, bits_of(KvType::kF32, before.data(), d * 32 + s)), 1e-6);
}

}  // namespace
}  // namespace kvasir::test
