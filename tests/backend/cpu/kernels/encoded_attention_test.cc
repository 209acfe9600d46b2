// Attention over encoded pages against the softmax over the floats that they stand for, in double, with the error that
// integer_products.h allows: half a unit for each code.
#include <bit>
#include <functional>
#include <optional>

#include "backend/cpu/kernels/codec_scene.h"

namespace kvasir::test {
namespace {

// Encoded pages, queries and masks, and the floats that the pages stand for.
struct EncodedScene {
  PageFormat format;
  int rows;
  int group;
  int entries;
  std::vector<std::vector<std::byte>> pages;
  std::vector<Encoded> written;
  std::vector<Side> keys;  // [slots][head_dim], decoded
  std::vector<Side> values;
  std::vector<float> q;
  std::vector<SlotMask> masks;  // [rows][entries]
  float softcap = 0;            // AttentionPartial::softcap

  EncodedScene(const PageFormat& page_format, int row_count, int group_size, int entry_count, Random& random)
      : format(page_format), rows(row_count), group(group_size), entries(entry_count) {
    const SlotMask all = slot_range(0, format.slots);
    for (int e = 0; e < entries; ++e) {
      const Encoded& encoded = written.emplace_back(encode_random(format, all, random));
      pages.push_back(encoded.page);
      keys.push_back(is_encoded(format.key)
                         ? expected(format.key, true, encoded.keys, all, format.slots, format.head_dim)
                         : encoded.keys);
      values.push_back(is_encoded(format.value)
                           ? expected(format.value, false, encoded.values, all, format.slots, format.head_dim)
                           : encoded.values);
    }
    q = random.floats(static_cast<std::size_t>(rows * group * format.head_dim), 0.3F);
    for (int i = 0; i < rows * entries; ++i) {
      const int kind = random.below(4);
      masks.push_back(kind == 0 ? 0 : kind == 1 ? all : random.bits() & all);
    }
  }

  State attend(const KernelTable& table, int first, int count, const std::vector<SlotMask>& live,
               Exponentials* exponentials = nullptr) const {
    std::vector<const std::byte*> data;
    for (const auto& page : pages) data.push_back(page.data());
    const std::vector<const PageFormat*> formats(data.size(), &format);
    State state(count * group, format.head_dim);
    AttentionPartial partial;
    partial.head_dim = format.head_dim;
    partial.slots = format.slots;
    partial.rows = count;
    partial.group = group;
    partial.q_row_stride = static_cast<std::size_t>(group * format.head_dim);
    partial.q = q.data() + static_cast<std::size_t>(first) * partial.q_row_stride;
    partial.entries = entries;
    partial.pages = data.data();
    partial.formats = formats.data();
    partial.masks = live.data() + first * entries;
    partial.mask_row_stride = static_cast<std::size_t>(entries);
    partial.softcap = softcap;
    if (exponentials != nullptr) {
      partial.weights = exponentials->of(0);
      partial.weight_stride = exponentials->weight_stride;
      partial.weight_maxima = exponentials->maxima_of(0);
      partial.weight_maximum_stride = exponentials->maximum_stride;
    }
    table.attend(partial, state.view());
    EXPECT_TRUE(state.intact());
    return state;
  }

  double query(int number, int d) const { return double{q[static_cast<std::size_t>(number * format.head_dim + d)]}; }
  static double of(const std::vector<Side>& sides, int e, int at) {
    return double{sides[static_cast<std::size_t>(e)][static_cast<std::size_t>(at)]};
  }

  double score(int number, int e, int s) const {
    double sum = 0;
    for (int d = 0; d < format.head_dim; ++d) sum += query(number, d) * of(keys, e, s * format.head_dim + d);
    return softcap == 0 ? sum : softcap * std::tanh(sum / double{softcap});
  }

  // How far codes of a group reach: from the least to the greatest element; of q8, the greatest magnitude.
  double reach(KvType type, const std::vector<Side>& sides, int e, const std::vector<int>& group_elements) const {
    double least = 1e30, most = -1e30, magnitude = 0;
    for (const int i : group_elements) {
      least = std::min(least, of(sides, e, i));
      most = std::max(most, of(sides, e, i));
      magnitude = std::max(magnitude, std::fabs(of(sides, e, i)));
    }
    return (type == KvType::kQ8 ? magnitude : most - least) * 1.01;
  }

  // How far a score may be off: for each dimension half a unit, of the largest query times scale, times the code. A cap
  // makes no difference larger, and rounds.
  double score_error(int number, int e) const {
    const int dims = format.head_dim;
    double size = 0, most = 0;
    for (int s = 0; s < format.slots; ++s) {
      double magnitude = 0;
      for (int d = 0; d < dims; ++d) magnitude += std::fabs(query(number, d) * of(keys, e, s * dims + d));
      size = std::max(size, magnitude);
    }
    // Sums of least elements and outliers are as large as the elements.
    const double rounding = 4 * (dims + 8) * kEpsilon * size + 8 * kEpsilon * double{softcap} + 1e-12;
    if (!is_encoded(format.key)) return rounding;
    if (format.key == KvType::kQ8) {
      double codes = 0;
      for (int s = 0; s < format.slots; ++s) {
        double sum = 0;
        for (int d = 0; d < dims; ++d) sum += std::fabs(of(keys, e, s * dims + d));
        codes = std::max(codes, sum);
      }
      for (int d = 0; d < dims; ++d) most = std::max(most, std::fabs(query(number, d)));
      return most / 65534 * codes + rounding;
    }
    for (const std::vector<int>& elements : groups_of(format.key, true, format.slots, dims))
      most = std::max(most, std::fabs(query(number, elements[0] % dims)) * reach(format.key, keys, e, elements));
    return most / 65534 * dims + rounding;
  }

  // Of the sum of values of an entry, each with its weight.
  double value_error(int e, const std::vector<double>& weight) const {
    double most = 0, sum = 0, size = 0;
    for (int s = 0; s < format.slots; ++s) sum += weight[static_cast<std::size_t>(s)];
    for (const std::vector<int>& elements : groups_of(format.value, false, format.slots, format.head_dim)) {
      const double w = weight[static_cast<std::size_t>(elements[0] / format.head_dim)];
      if (is_encoded(format.value)) most = std::max(most, w * reach(format.value, values, e, elements));
      for (const int i : elements) size = std::max(size, std::fabs(of(values, e, i)));
    }
    return most / 65534 * format.slots + 4 * 80 * kEpsilon * size * sum;
  }

  std::string describe() const {
    return codec_name(format) + " dim " + std::to_string(format.head_dim) + " slots " + std::to_string(format.slots) +
           " group " + std::to_string(group) + " softcap " + std::to_string(softcap);
  }
};

std::vector<PageFormat> formats_of(int dim, int slots) {
  std::vector<PageFormat> formats;
  for (const KvType type : kCodecs) formats.push_back({dim, slots, type});
  formats.push_back({dim, slots, KvType::kQ8, KvType::kQ2});
  formats.push_back({dim, slots, KvType::kQ4O, KvType::kQ8});
  formats.push_back({dim, slots, KvType::kF16, KvType::kQ4});
  formats.push_back({dim, slots, KvType::kQ3, KvType::kBF16});
  return formats;
}

void for_each_shape(const std::function<void(const PageFormat&, int)>& run) {
  for (const int slots : {16, 32, 64})
    for (const int dim : {16, 20, 64, 80, 128})
      for (const int group : {1, 3, 4, 8})
        for (const PageFormat& format : formats_of(dim, slots)) run(format, group);
}

class EncodedAttentionTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(EncodedAttentionTest);

// With one slot live, the maximum is its score and the weighted sum its value.
TEST_P(EncodedAttentionTest, ScoresAndValuesOfOneSlot) {
  Random random(17);
  double squares = 0;
  int count = 0;
  for_each_shape([&](const PageFormat& format, int group) {
    const EncodedScene scene(format, 2, group, 1, random);
    const int slot = random.below(format.slots);
    const State state = scene.attend(table(), 0, 2, std::vector<SlotMask>(2, SlotMask{1} << slot));
    std::vector<double> weight(static_cast<std::size_t>(format.slots));
    weight[static_cast<std::size_t>(slot)] = 1;
    const double value_error = scene.value_error(0, weight) / format.slots;
    for (int i = 0; i < 2 * group; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double error = state.maximum[at] - scene.score(i, 0, slot);
      ASSERT_LE(std::fabs(error), scene.score_error(i, 0)) << scene.describe();
      squares += error * error / scene.score_error(i, 0) / scene.score_error(i, 0);
      ++count;
      ASSERT_EQ(state.sum[at], 1.0F);
      for (int d = 0; d < format.head_dim; ++d)
        ASSERT_NEAR(state.weighted[at * state.dim + static_cast<std::size_t>(d)],
                    EncodedScene::of(scene.values, 0, slot * format.head_dim + d), value_error + 1e-6)
            << scene.describe();
    }
  });
  EXPECT_LT(std::sqrt(squares / count), 0.2) << "errors are those of rounding, which cancel out";
}

// `cap_of`: AttentionPartial::softcap of a shape; nullopt: it is left out.
void expect_softmax(const KernelTable& table, const std::function<std::optional<float>(int dim, int group)>& cap_of) {
  Random random(18);
  for_each_shape([&](const PageFormat& format, int group) {
    const std::optional<float> cap = cap_of(format.head_dim, group);
    if (!cap) return;
    EncodedScene scene(format, 2, group, 3, random);
    scene.softcap = *cap;
    Exponentials exponentials(2 * group, 3, format.slots);
    const State state = scene.attend(table, 0, 2, scene.masks, &exponentials);
    EXPECT_TRUE(exponentials.weights.intact() && exponentials.maxima.intact());
    for (int i = 0; i < 2 * group; ++i) {
      double highest = -1e30, sum = 0, score_error = 0;
      std::vector<std::vector<double>> weights(3, std::vector<double>(static_cast<std::size_t>(format.slots)));
      for (const bool second : {false, true})
        for (int e = 0; e < 3; ++e)
          for (int s = 0; s < format.slots; ++s) {
            if ((scene.masks[static_cast<std::size_t>(i / group * 3 + e)] >> s & 1) == 0) continue;
            const double score = scene.score(i, e, s);
            score_error = std::max(score_error, scene.score_error(i, e));
            highest = std::max(highest, score);
            if (second)
              sum += weights[static_cast<std::size_t>(e)][static_cast<std::size_t>(s)] = std::exp(score - highest);
          }
      const auto at = static_cast<std::size_t>(i);
      if (sum == 0) {
        ASSERT_EQ(state.sum[at], 0.0F);
        continue;
      }
      ASSERT_NEAR(state.maximum[at], highest, score_error);
      double tolerance = 0, largest = 0;
      for (int e = 0; e < 3; ++e) {
        std::vector<double>& weight = weights[static_cast<std::size_t>(e)];
        for (double& w : weight) w /= sum;
        tolerance += scene.value_error(e, weight);
        for (const float x : scene.values[static_cast<std::size_t>(e)])
          largest = std::max(largest, std::fabs(double{x}));
        if (scene.masks[static_cast<std::size_t>(i / group * 3 + e)] == 0) continue;
        const double maximum = double{exponentials.maxima_of(at)[e]};
        for (int s = 0; s < format.slots; ++s)
          if ((scene.masks[static_cast<std::size_t>(i / group * 3 + e)] >> s & 1) != 0) {
            ASSERT_NEAR(exponentials.of(at)[e * format.slots + s], std::exp(scene.score(i, e, s) - maximum),
                        std::expm1(2 * score_error) + 1e-6);
          }
      }
      // Scores off by that much move weight from one value to another.
      tolerance = 1.1 * tolerance + std::expm1(2 * score_error) * largest;
      for (int d = 0; d < format.head_dim; ++d) {
        double wanted = 0;
        for (int e = 0; e < 3; ++e)
          for (int s = 0; s < format.slots; ++s)
            wanted += weights[static_cast<std::size_t>(e)][static_cast<std::size_t>(s)] *
                      EncodedScene::of(scene.values, e, s * format.head_dim + d);
        ASSERT_NEAR(state.weighted[at * state.dim + static_cast<std::size_t>(d)] / state.sum[at], wanted, tolerance)
            << scene.describe();
      }
    }
  });
}

TEST_P(EncodedAttentionTest, IsTheSoftmaxOfWhatPagesStandFor) {
  expect_softmax(table(), [](int, int) { return 0.0F; });
}

// A cap that most scores reach, and one that bends some.
TEST_P(EncodedAttentionTest, IsTheSoftmaxOfCappedScores) {
  expect_softmax(table(), [](int dim, int group) -> std::optional<float> {
    if ((dim != 20 && dim != 64) || group > 3) return {};
    return group == 1 ? 2.0F : 30.0F;
  });
}

TEST_P(EncodedAttentionTest, ARowIsTheSameBitsWhateverRowsAreBeside) {
  Random random(19);
  for (const int slots : {16, 32, 64})
    for (const int dim : {20, 64, 80})
      for (const int group : {1, 3, 4, 8})
        for (const PageFormat& format : formats_of(dim, slots)) {
          const EncodedScene scene(format, 19, group, 2, random);
          const State all = scene.attend(table(), 0, scene.rows, scene.masks);
          for (const int rows : {1, 2, 5}) {
            const int first = random.below(scene.rows - rows + 1);
            ASSERT_TRUE(
                all.holds(scene.attend(table(), first, rows, scene.masks), static_cast<std::size_t>(first * group)))
                << scene.describe() << " " << rows << " rows from " << first;
          }
        }
}

// What a row does not see must not touch it, be it infinite.
TEST_P(EncodedAttentionTest, WhatOnlyAnotherRowSeesDoesNotLeak) {
  Random random(20);
  for (const KvType value : kCodecs) {
    const PageFormat format{64, 32, KvType::kQ8, value};
    EncodedScene scene(format, 4, 2, 2, random);
    for (int r = 0; r < 4; ++r) {
      scene.masks[static_cast<std::size_t>(2 * r)] = r == 1 ? 0 : 0xff0f;
      scene.masks[static_cast<std::size_t>(2 * r + 1)] = r == 2 ? 0xf0 : 0xe0;
    }
    const State before = scene.attend(table(), 0, 4, scene.masks);
    Encoded& encoded = scene.written[1];
    const std::vector<float> bad(64, INFINITY);
    generic_kernels().store_kv(format.open(), encoded.open.data(), 4, bad.data(), bad.data());
    encode_page(format, encoded.open.data(), slot_range(0, 32), scene.pages[1].data());
    const State after = scene.attend(table(), 0, 4, scene.masks);
    for (const int row : {0, 1, 3}) {
      const State one = scene.attend(table(), row, 1, scene.masks);
      ASSERT_TRUE(after.holds(one, static_cast<std::size_t>(row * 2))) << kv_type_name(value);
      // Other elements of q4o pages become outliers.
      if (value != KvType::kQ4O) {
        ASSERT_TRUE(before.holds(one, static_cast<std::size_t>(row * 2))) << kv_type_name(value);
      }
    }
    for (std::size_t d = 0; d < 64; ++d) ASSERT_FALSE(std::isfinite(after.weighted[4 * 64 + d])) << "it shows";
  }
}

TEST_P(EncodedAttentionTest, WhatIsNoNumberShows) {
  Random random(21);
  for (const PageFormat& format : formats_of(64, 32)) {
    if (!is_encoded(format.key)) continue;
    EncodedScene scene(format, 1, 4, 2, random);
    Encoded& encoded = scene.written[0];
    std::vector<float> key(64, 1.0F);
    key[7] = std::nanf("");
    generic_kernels().store_kv(format.open(), encoded.open.data(), 3, key.data(), key.data());
    encode_page(format, encoded.open.data(), slot_range(0, 32), scene.pages[0].data());
    State state = scene.attend(table(), 0, 1, std::vector<SlotMask>(2, 0xff));
    std::vector<float> out(4 * 64);
    table().finish(state.view(), 4, 64, out.data());
    for (const float x : out) ASSERT_FALSE(std::isfinite(x)) << scene.describe();
  }
}

// Formats of all kinds beside each other: entry by entry is one order.
TEST_P(EncodedAttentionTest, EntriesOfManyFormats) {
  Random random(22);
  for (const int dim : {20, 64}) {
    std::vector<PageFormat> formats = formats_of(dim, 32);
    formats.push_back({dim, 32, KvType::kF16});
    std::vector<std::vector<std::byte>> pages;
    std::vector<const std::byte*> data;
    std::vector<const PageFormat*> of;
    for (const PageFormat& format : formats) {
      if (format.encoded()) {
        pages.push_back(encode_random(format, slot_range(0, 32), random).page);
      } else {
        pages.push_back(encode_random({dim, 32, KvType::kQ8}, slot_range(0, 32), random).open);
      }
      of.push_back(&format);
    }
    for (const auto& page : pages) data.push_back(page.data());
    const std::vector<float> q = random.floats(static_cast<std::size_t>(4 * dim), 0.1F);
    const std::vector<SlotMask> masks(pages.size(), 0xffff0ff0);
    AttentionPartial partial;
    partial.head_dim = dim;
    partial.slots = 32;
    partial.rows = 1;
    partial.group = 4;
    partial.q = q.data();
    partial.q_row_stride = static_cast<std::size_t>(4 * dim);
    partial.pages = data.data();
    partial.formats = of.data();
    partial.masks = masks.data();
    partial.mask_row_stride = masks.size();
    State together(4, dim), apart(4, dim);
    partial.entries = static_cast<int>(pages.size());
    table().attend(partial, together.view());
    partial.entries = 1;
    for (std::size_t e = 0; e < pages.size(); ++e, ++partial.pages, ++partial.formats, ++partial.masks)
      table().attend(partial, apart.view());
    EXPECT_TRUE(together.holds(apart, 0));
  }
}

// Tables of one arithmetic give the same bits; a result that is not a number may be any.
TEST(EncodedArithmetic, IsThatOfEveryTableOfItsName) {
  int pairs = 0;
  for (const std::string_view one : kernel_names())
    for (const std::string_view other : kernel_names()) {
      if (one >= other || find_kernels(one)->arithmetic != find_kernels(other)->arithmetic) continue;
      ++pairs;
      Random random(23);
      for_each_shape([&](const PageFormat& format, int group) {
        EncodedScene scene(format, 5, group, 3, random);
        for (float& x : scene.q) {
          const int kind = random.below(200);
          if (kind == 0) x *= 1e-38F;
          if (kind == 1) x *= 1e30F;
          if (kind == 2) x = -0.0F;
          if (kind == 3) x *= 100.0F;
        }
        const auto run = [&](std::string_view name) {
          const State state = scene.attend(*find_kernels(name), 0, 5, scene.masks);
          std::vector<std::uint32_t> bits;
          for (const Fenced<float>* part : {&state.maximum, &state.sum, &state.weighted})
            for (std::size_t i = 0; i < part->size(); ++i)
              bits.push_back(std::isnan((*part)[i]) ? 0x7fc00000U : std::bit_cast<std::uint32_t>((*part)[i]));
          return bits;
        };
        ASSERT_EQ(run(one), run(other)) << scene.describe();
      });
    }
  if (pairs == 0) GTEST_SKIP() << "no two kernel tables of one arithmetic on this machine";
}

}  // namespace
}  // namespace kvasir::test
