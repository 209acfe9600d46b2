// Softmax weights out of the attention kernels, and their sums.
#include <bit>
#include <cstring>

#include "backend/cpu/kernels/attention_scene.h"

namespace kvasir::test {
namespace {

class ObservedAttentionTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(ObservedAttentionTest);

// All rows of a scene, over partials that end at `ends`, and each query's packed weights.
struct Observation {
  Observation(const KernelTable& table, const Scene& scene, int first, int count, const std::vector<int>& ends)
      : exponentials(count * scene.group, scene.entries, scene.shape.slots),
        total(count * scene.group, scene.shape.head_dim) {
    int begin = 0;
    for (const int end : ends) {
      State part(count * scene.group, scene.shape.head_dim);
      scene.attend(table, first, count, begin, end, part, &exponentials);
      table.merge(total.view(), part.view(), count * scene.group, scene.shape.head_dim);
      begin = end;
    }
    EXPECT_TRUE(exponentials.weights.intact() && exponentials.maxima.intact());
    for (int query = 0; query < count * scene.group; ++query) observe(table, scene, first, query);
  }

  void observe(const KernelTable& table, const Scene& scene, int first, int query) {
    const auto at = static_cast<std::size_t>(query);
    const std::size_t row = static_cast<std::size_t>(first + query / scene.group);
    const auto entries = static_cast<std::size_t>(scene.entries);
    const Fenced<SlotMask> masks(std::span(scene.masks).subspan(row * entries, entries));
    const std::vector<float> before = exponentials.weights.copy();
    const std::vector<float> maxima = exponentials.maxima.copy();
    ObservedQuery observed;
    observed.entries = scene.entries;
    observed.slots = scene.shape.slots;
    observed.masks = masks.data();
    observed.weights = exponentials.of(at);
    observed.weight_maxima = exponentials.maxima_of(at);
    observed.maximum = total.maximum[at];
    observed.sum = total.sum[at];
    const int written = table.observe_weights(observed);
    weights.emplace_back(observed.weights, observed.weights + written);
    // Nothing but the query's own was touched.
    ASSERT_TRUE(exponentials.weights.intact() && exponentials.maxima.intact());
    ASSERT_TRUE(same_bits(exponentials.maxima.data(), maxima.data(), maxima.size()));
    const std::size_t own = at * exponentials.weight_stride;
    const std::size_t behind = own + entries * exponentials.slots;
    ASSERT_TRUE(same_bits(exponentials.weights.data(), before.data(), own));
    ASSERT_TRUE(same_bits(exponentials.weights.data() + behind, before.data() + behind, before.size() - behind));
  }

  Exponentials exponentials;
  State total;
  std::vector<std::vector<float>> weights;  // [queries][live slots]
};

std::vector<int> random_ends(int entries, Random& random) {
  std::vector<int> ends;
  for (int end = 0; end < entries;) ends.push_back(end = std::min(entries, end + 1 + random.below(4)));
  return ends;
}

TEST_P(ObservedAttentionTest, WeightsAreTheSoftmax) {
  Random random(1);
  for (const KvType type : kKvTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {16, 20, 64, 80}) {
        for (const int group : {1, 3, 4, 8}) {
          for (const float range : {0.0F, 1.0F, 60.0F}) {
            Scene scene(table(), {head_dim, slots, type}, 1 + random.below(5), group, 1 + random.below(9), range,
                        random);
            if (random.below(3) == 0) scene.draw_biases(random);
            SCOPED_TRACE(scene.describe());
            const Observation observation(table(), scene, 0, scene.rows, random_ends(scene.entries, random));
            if (HasFatalFailure()) return;
            std::vector<double> wanted;
            for (int query = 0; query < scene.rows * group; ++query) {
              const double score_error = scene.softmax_weights(query, 0, scene.entries, wanted);
              const std::vector<float>& got = observation.weights[static_cast<std::size_t>(query)];
              ASSERT_EQ(got.size(), wanted.size());
              double sum = 0;
              for (std::size_t i = 0; i < wanted.size(); ++i) {
                sum += got[i];
                ASSERT_NEAR(got[i], wanted[i], wanted[i] * (2 * score_error + 64 * kEpsilon) + 1e-36) << i;
              }
              if (!wanted.empty()) {
                ASSERT_NEAR(sum, 1.0, 1e-5);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(ObservedAttentionTest, AskingForWeightsChangesNoBitOfTheState) {
  Random random(2);
  for (const KvType type : kKvTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {20, 48, 64, 128}) {
        for (const int group : {1, 2, 5, 8}) {
          Scene scene(table(), {head_dim, slots, type}, 1 + random.below(9), group, 1 + random.below(6), 3.0F, random);
          SCOPED_TRACE(scene.describe());
          Exponentials exponentials(scene.rows * group, scene.entries, slots);
          State state(scene.rows * group, head_dim);
          scene.attend(table(), 0, scene.rows, 0, scene.entries, state, &exponentials);
          ASSERT_TRUE(state.holds(scene.attend_all(table(), 0, scene.rows), 0));
          ASSERT_TRUE(exponentials.weights.intact() && exponentials.maxima.intact());
          // What a query does not see is not written, nor what lies between queries.
          for (std::size_t query = 0; query < state.count; ++query) {
            for (int e = 0; e < scene.entries; ++e) {
              if (scene.mask(static_cast<int>(query) / group, e) != 0) continue;
              const auto entry = static_cast<std::size_t>(e);
              ASSERT_TRUE(exponentials.maxima.untouched(query * exponentials.maximum_stride + entry));
              for (std::size_t s = 0; s < exponentials.slots; ++s)
                ASSERT_TRUE(exponentials.weights.untouched(query * exponentials.weight_stride +
                                                           entry * exponentials.slots + s));
            }
            if (query + 1 == state.count) continue;
            for (std::size_t i = 1; i <= 3; ++i)
              ASSERT_TRUE(exponentials.weights.untouched((query + 1) * exponentials.weight_stride - i));
            for (std::size_t i = 1; i <= 2; ++i)
              ASSERT_TRUE(exponentials.maxima.untouched((query + 1) * exponentials.maximum_stride - i));
          }
        }
      }
    }
  }
}

TEST_P(ObservedAttentionTest, ARowsWeightsAreTheSameBitsWhateverRowsAreBeside) {
  Random random(3);
  for (const KvType type : kKvTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {20, 64}) {
        for (const int group : {1, 3, 4, 8}) {
          const Scene scene(table(), {head_dim, slots, type}, 24, group, 5, 2.0F, random);
          SCOPED_TRACE(scene.describe());
          const std::vector<int> ends = {2, 5};
          const Observation all(table(), scene, 0, scene.rows, ends);
          for (const int rows : {1, 2, 7}) {
            const int first = random.below(scene.rows - rows + 1);
            const Observation some(table(), scene, first, rows, ends);
            for (std::size_t query = 0; query < some.weights.size(); ++query) {
              const std::vector<float>& wanted = all.weights[static_cast<std::size_t>(first * group) + query];
              ASSERT_EQ(some.weights[query].size(), wanted.size());
              ASSERT_TRUE(same_bits(some.weights[query].data(), wanted.data(), wanted.size()));
            }
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ObservedAttentionTest, GarbageInDeadSlotsDoesNotShow) {
  Random random(4);
  for (const KvType type : kKvTypes) {
    for (const int slots : {16, 64}) {
      Scene scene(table(), {64, slots, type}, 6, 3, 4, 1.0F, random);
      for (int r = 0; r < scene.rows; ++r) {
        scene.mask(r, 0) = slot_range(0, 5 + r % 3);
        scene.mask(r, 1) &= 0xf0f3;
      }
      const Observation before(table(), scene, 0, scene.rows, {3, 4});
      for (const float garbage : {INFINITY, -INFINITY, std::nanf("")}) {
        for (int e = 0; e < scene.entries; ++e) {
          SlotMask live = 0;
          for (int r = 0; r < scene.rows; ++r) live |= scene.mask(r, e);
          for (int s = 0; s < slots; ++s)
            if ((live >> s & 1) == 0)
              scene.store(table(), e, s, std::vector<float>(64, garbage), std::vector<float>(64, garbage));
        }
        const Observation after(table(), scene, 0, scene.rows, {3, 4});
        ASSERT_EQ(after.weights, before.weights) << garbage;
      }
    }
  }
}

// One key that is far above the others, in the first or in the last partial: the others' weights vanish, and do not
// turn into anything else.
TEST_P(ObservedAttentionTest, WeightsFarBelowTheHighestVanish) {
  Random random(5);
  for (const int at : {0, 3}) {
    Scene scene(table(), {16, 32, KvType::kF32}, 1, 1, 4, 1.0F, random);
    for (int e = 0; e < 4; ++e) scene.mask(0, e) = 0xffff;
    std::fill(scene.q.begin(), scene.q.end(), 1.0F);
    scene.store(table(), at, 7, std::vector<float>(16, 40.0F), std::vector<float>(16, 1.0F));
    const Observation observation(table(), scene, 0, 1, {1, 2, 4});
    for (std::size_t i = 0; i < 64; ++i)
      EXPECT_EQ(observation.weights[0][i], i == static_cast<std::size_t>(at * 16 + 7) ? 1.0F : 0.0F) << i;
  }
}

// Sizes around the widths of vectors; values of all magnitudes.
std::vector<float> wide_floats(std::size_t count, Random& random) {
  std::vector<float> x = random.floats(count);
  for (float& value : x) value = std::ldexp(value, random.below(250) - 140);
  return x;
}

TEST_P(ObservedAttentionTest, SumsAreTheSameBitsOnEveryTable) {
  Random random(6);
  for (int n = 0; n < 70; ++n) {
    for (int round = 0; round < 4; ++round) {
      const Fenced<float> x(wide_floats(static_cast<std::size_t>(n), random));
      // The definition: 16 interleaved sums, then those pairwise.
      double sums[16] = {};
      for (int i = 0; i < n; ++i) sums[i % 16] += static_cast<double>(x[static_cast<std::size_t>(i)]);
      for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
      const double got = table().sum_weights(x.data(), n);
      ASSERT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(sums[0])) << n;
      ASSERT_EQ(got, generic_kernels().sum_weights(x.data(), n));
    }
  }
  std::vector<float> x(40, 1.0F);
  for (const float broken : {INFINITY, std::nanf("")})
    for (const std::size_t at : {0, 15, 16, 39}) {
      x[at] = broken;
      EXPECT_FALSE(std::isfinite(table().sum_weights(x.data(), 40)));
      x[at] = 1.0F;
    }
}

TEST_P(ObservedAttentionTest, AddedWeightsAreTheSameBitsOnEveryTable) {
  Random random(7);
  for (int n = 0; n < 70; ++n) {
    const auto count = static_cast<std::size_t>(n);
    for (const double factor : {1.0, 0.1, 1.0 / 3.0, 1e-300, -7.0, 0.0}) {
      const Fenced<float> x(wide_floats(count, random));
      Fenced<double> mass(count);
      std::vector<double> wanted(count);
      for (std::size_t i = 0; i < count; ++i) {
        // Sums that would differ if product and sum were rounded once.
        mass[i] = wanted[i] = -factor * static_cast<double>(x[i]) * (1 + 0x1p-50 * random.below(8));
        const double product = factor * static_cast<double>(x[i]);
        wanted[i] += product;
      }
      table().add_weights(x.data(), n, factor, mass.data());
      ASSERT_TRUE(mass.intact());
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(std::bit_cast<std::uint64_t>(mass[i]), std::bit_cast<std::uint64_t>(wanted[i])) << n << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace kvasir::test
