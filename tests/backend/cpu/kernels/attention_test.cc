#include <bit>

#include "backend/cpu/kernels/attention_scene.h"
#include "backend/cpu/kernels/pages/encode_page.h"

namespace kvasir::test {
namespace {

class AttentionTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(AttentionTest);

TEST_P(AttentionTest, IsTheSoftmaxOfEveryShape) {
  Random random(1);
  for (const KvType type : kPlainTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {16, 20, 32, 48, 64, 80, 112, 128}) {
        for (const int group : {1, 2, 3, 4, 7, 8}) {
          Scene scene(table(), {head_dim, slots, type}, 1 + random.below(5), group, 1 + random.below(6), 1.0F, random);
          if (random.below(3) == 0) scene.softcap = 1.5F;
          if (random.below(3) == 0) scene.draw_biases(random);
          SCOPED_TRACE(scene.describe());
          const int dead_entry = random.below(scene.entries);
          for (int r = 0; r < scene.rows; ++r) scene.mask(r, dead_entry) = 0;
          const int dead_row = random.below(scene.rows);
          if (scene.rows > 1)
            for (int e = 0; e < scene.entries; ++e) scene.mask(dead_row, e) = 0;
          State state = scene.attend_all(table(), 0, scene.rows);
          scene.expect_softmax(table(), state, 0, scene.entries);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Gathered rows give the bits of the pages that they were taken from, weights too.
TEST_P(AttentionTest, RowsApartGiveTheBitsOfPages) {
  Random random(31);
  for (const KvType key : kKvTypes)
    for (const KvType value : kKvTypes)
      for (const int slots : {16, 32, 64})
        for (const int head_dim : {16, 20, 64, 80, 128}) {
          const int group = 1 + random.below(8);
          Scene scene(table(), {head_dim, slots, key, value}, 1 + random.below(4), group, 1 + random.below(6), 2.0F,
                      random);
          if (random.below(3) == 0) scene.softcap = 1.5F;
          SCOPED_TRACE(scene.describe());
          State of_pages(scene.rows * group, head_dim), of_rows(scene.rows * group, head_dim);
          Exponentials from_pages(scene.rows * group, scene.entries, slots);
          Exponentials from_rows(scene.rows * group, scene.entries, slots);
          scene.attend(table(), 0, scene.rows, 0, scene.entries, of_pages, &from_pages);
          scene.gathered = true;
          scene.attend(table(), 0, scene.rows, 0, scene.entries, of_rows, &from_rows);
          ASSERT_TRUE(of_pages.holds(of_rows, 0));
          for (int query = 0; query < scene.rows * group; ++query)
            for (int e = 0; e < scene.entries; ++e) {
              const SlotMask live = scene.mask(query / group, e);
              if (live == 0) continue;
              const auto at = static_cast<std::size_t>(query);
              ASSERT_EQ(from_pages.maxima_of(at)[e], from_rows.maxima_of(at)[e]);
              for (int s = 0; s < slots; ++s) {
                if ((live >> s & 1) == 0) continue;
                ASSERT_EQ(from_pages.of(at)[e * slots + s], from_rows.of(at)[e * slots + s]);
              }
            }
          // Entry by entry is one order, however they are divided.
          State divided(scene.rows * group, head_dim);
          const int half = scene.entries / 2;
          scene.attend(table(), 0, scene.rows, 0, half, divided);
          scene.gathered = false;
          scene.attend(table(), 0, scene.rows, half, scene.entries, divided);
          ASSERT_TRUE(of_pages.holds(divided, 0));
        }
}

TEST_P(AttentionTest, KeysAndValuesOfDifferentTypes) {
  Random random(12);
  for (const KvType key : kKvTypes) {
    for (const KvType value : kKvTypes) {
      for (const int head_dim : {20, 64}) {
        Scene scene(table(), {head_dim, 32, key, value}, 3, 2, 4, 2.0F, random);
        SCOPED_TRACE(scene.describe());
        State state = scene.attend_all(table(), 0, scene.rows);
        scene.expect_softmax(table(), state, 0, scene.entries);

        // The same after its tokens went to the front of another page, unrotated.
        Fenced<std::byte> packed(scene.shape.bytes(), std::size_t{64});
        std::fill_n(packed.data(), packed.size(), std::byte{0});
        const SlotMask some = scene.mask(0, 0) = 0x8f00ff31;
        const State before = [&] {
          State one(scene.group, head_dim);
          scene.attend(table(), 0, 1, 0, 1, one);
          return one;
        }();
        table().move_slots(scene.shape, scene.pages[0]->data(), some, packed.data(), 0, 0, nullptr, nullptr);
        ASSERT_TRUE(packed.intact());
        std::copy_n(packed.data(), packed.size(), scene.pages[0]->data());
        scene.mask(0, 0) = slot_range(0, std::popcount(some));
        State after(scene.group, head_dim);
        scene.attend(table(), 0, 1, 0, 1, after);
        for (std::size_t i = 0; i < after.weighted.size(); ++i)
          ASSERT_NEAR(after.weighted[i], before.weighted[i], 1e-4) << i;
      }
    }
  }
}

TEST_P(AttentionTest, ExtremeScores) {
  Random random(2);
  for (const KvType type : kPlainTypes) {
    for (const int head_dim : {20, 64}) {
      for (const float range : {0.0F, 20.0F, 80.0F, 500.0F}) {
        Scene scene(table(), {head_dim, 32, type}, 6, 4, 8, range, random);
        SCOPED_TRACE(scene.describe());
        for (const float softcap : {0.0F, 50.0F}) {
          scene.softcap = softcap;
          State state = scene.attend_all(table(), 0, scene.rows);
          scene.expect_softmax(table(), state, 0, scene.entries);
        }
      }
    }
  }
}

// Scores and values chosen so that the state itself is known: one score per slot, one dimension per slot.
TEST_P(AttentionTest, TheStateIsMaximumSumAndWeights) {
  Random random(3);
  for (const int slots : {16, 32, 64}) {
    for (const float offset : {0.0F, 80.0F, -80.0F}) {
      Scene scene(table(), {64, slots, KvType::kF32}, 1, 1, 1, 1.0F, random);
      std::fill(scene.q.begin(), scene.q.end(), 0.0F);
      scene.q[3] = 1.0F;
      std::vector<float> score(static_cast<std::size_t>(slots));
      for (int s = 0; s < slots; ++s) {
        std::vector<float> key(64, 1.0F);
        std::vector<float> value(64, 0.0F);
        key[3] = score[static_cast<std::size_t>(s)] = offset + random.symmetric(s % 4 == 0 ? 80.0F : 4.0F);
        value[static_cast<std::size_t>(s)] = 1.0F;
        scene.store(table(), 0, s, key, value);
      }
      scene.mask(0, 0) = slot_range(0, slots) & ~SlotMask{0b100100};
      const State state = scene.attend_all(table(), 0, 1);
      float highest = -INFINITY;
      for (std::size_t s = 0; s < score.size(); ++s)
        if (s != 2 && s != 5) highest = std::max(highest, score[s]);
      EXPECT_EQ(state.maximum[0], highest);
      double sum = 0;
      for (std::size_t s = 0; s < score.size(); ++s) {
        const double weight =
            s == 2 || s == 5 ? 0 : std::exp(static_cast<double>(score[s]) - static_cast<double>(highest));
        sum += weight;
        // The difference of two scores rounds, too.
        EXPECT_NEAR(state.weighted[s], weight, 1e-6 * weight + 1e-37 + weight * kEpsilon * 200) << score[s] - highest;
      }
      EXPECT_NEAR(state.sum[0], sum, 1e-5 * sum);
      for (std::size_t d = score.size(); d < 64; ++d) EXPECT_EQ(state.weighted[d], 0.0F);
    }
  }
}

TEST_P(AttentionTest, WhatSeesNothingStaysUnchanged) {
  Random random(4);
  for (const int head_dim : {20, 64}) {
    Scene scene(table(), {head_dim, 32, KvType::kF16}, 5, 3, 4, 1.0F, random);
    for (int e = 0; e < scene.entries; ++e) scene.mask(2, e) = 0;
    State fresh(3, head_dim);
    State state = scene.attend_all(table(), 0, 5);
    EXPECT_TRUE(state.holds(fresh, 2 * 3));
    std::vector<float> out(state.weighted.size(), 1.0F);
    table().finish(state.view(), 15, head_dim, out.data());
    for (int i = 2 * 3 * head_dim; i < 3 * 3 * head_dim; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], 0.0F);

    // And one that saw something keeps it over entries it does not see.
    State before = scene.attend_all(table(), 0, 5);
    std::fill(scene.masks.begin(), scene.masks.end(), 0);
    scene.attend(table(), 0, 5, 0, scene.entries, state);
    EXPECT_TRUE(state.holds(before, 0));
  }
}

TEST_P(AttentionTest, PartialsContinueAndMergeToTheSoftmax) {
  Random random(5);
  for (const KvType type : kKvTypes) {
    for (const int head_dim : {20, 64}) {
      for (const float range : {1.0F, 60.0F}) {
        Scene scene(table(), {head_dim, 16, type}, 7, 3, 14, range, random);
        SCOPED_TRACE(scene.describe());
        for (int e = 0; e < scene.entries; ++e) scene.mask(1, e) = 0;              // sees nothing
        for (int e = 0; e < scene.entries; ++e) scene.mask(e < 6 ? 2 : 3, e) = 0;  // sees one side only
        const int queries = scene.rows * scene.group;

        State continued(queries, head_dim);
        scene.attend(table(), 0, scene.rows, 0, 5, continued);
        scene.attend(table(), 0, scene.rows, 5, 14, continued);
        EXPECT_TRUE(continued.holds(scene.attend_all(table(), 0, scene.rows), 0)) << "entry by entry is one order";

        State merged(queries, head_dim);
        for (const auto& [begin, end] : {std::pair{0, 6}, std::pair{6, 9}, std::pair{9, 14}}) {
          State part(queries, head_dim);
          scene.attend(table(), 0, scene.rows, begin, end, part);
          table().merge(merged.view(), part.view(), queries, head_dim);
          ASSERT_TRUE(merged.intact() && part.intact());
        }
        scene.expect_softmax(table(), merged, 0, scene.entries);
      }
    }
  }
}

// Entries in i16 are weighed in steps: continued behind one, the sums are those of one call. An entry of a step that
// nobody sees makes no difference.
TEST_P(AttentionTest, StepsOfIntegersContinueToTheSameBits) {
  Random random(27);
  for (const int slots : {16, 32, 64})
    for (const int head_dim : {20, 64, 80, 128}) {
      Scene scene(table(), {head_dim, slots, KvType::kI16}, 7, 3, 16, 3.0F, random);
      SCOPED_TRACE(scene.describe());
      for (int r = 0; r < 7; ++r) scene.mask(r, 3) = scene.mask(r, 7) = 0;
      State continued(7 * 3, head_dim), without(7 * 3, head_dim);
      const State all = scene.attend_all(table(), 0, 7);
      for (int e = 0; e < 16;) {
        int end = e + 1;
        while ((scene.joined >> end & 1) != 0) ++end;
        scene.attend(table(), 0, 7, e, end, continued);
        e = end;
      }
      ASSERT_TRUE(continued.holds(all, 0));
      scene.expect_softmax(table(), continued, 0, 16);
      if (HasFatalFailure()) return;
      const std::uint32_t joined = scene.joined;
      for (const int gone : {7, 3}) {
        scene.pages.erase(scene.pages.begin() + gone);
        const bool joins = (scene.joined >> gone & 1) != 0;
        const std::uint32_t below = (1U << gone) - 1;
        scene.joined = (scene.joined & below) | (scene.joined >> 1 & ~below & ~(joins ? 0U : 1U << gone));
        std::vector<SlotMask> masks;
        for (int r = 0; r < 7; ++r)
          for (int e = 0; e < scene.entries; ++e)
            if (e != gone) masks.push_back(scene.mask(r, e));
        scene.masks = masks;
        --scene.entries;
      }
      scene.attend(table(), 0, 7, 0, 14, without);
      ASSERT_TRUE(without.holds(all, 0)) << joined;
    }
}

TEST_P(AttentionTest, MergingWithNothingChangesNothing) {
  Random random(6);
  Scene scene(table(), {64, 32, KvType::kF16}, 3, 2, 3, 1.0F, random);
  for (int r = 0; r < 3; ++r) scene.mask(r, 0) |= 1;
  const State before = scene.attend_all(table(), 0, 3);
  State state = scene.attend_all(table(), 0, 3);
  State nothing(6, 64);
  table().merge(state.view(), nothing.view(), 6, 64);
  EXPECT_TRUE(state.holds(before, 0));
  table().merge(nothing.view(), state.view(), 6, 64);
  EXPECT_TRUE(nothing.holds(before, 0));
}

TEST_P(AttentionTest, ARowIsTheSameBitsWhateverRowsAreBeside) {
  Random random(7);
  for (const KvType type : kPlainTypes) {
    for (const int slots : {16, 32, 64}) {
      for (const int head_dim : {20, 64, 80}) {
        for (const int group : {1, 3, 4, 8}) {
          const Scene scene(table(), {head_dim, slots, type}, 64, group, 5, 2.0F, random);
          const State all = scene.attend_all(table(), 0, scene.rows);
          for (const int rows : {1, 2, 3, 7, 20}) {
            const int first = random.below(scene.rows - rows + 1);
            ASSERT_TRUE(all.holds(scene.attend_all(table(), first, rows), static_cast<std::size_t>(first * group)))
                << scene.describe() << " of 64, from " << first;
          }
        }
      }
    }
  }
}

// What a prompt's rows see: all of the pages before them, and of their own pages what is not later. Blocks of queries
// take other ways through a kernel than one row does.
TEST_P(AttentionTest, RowsOfAPromptAreTheSoftmaxAndTheBitsOfEachRowAlone) {
  Random random(13);
  for (const KvType type : kPlainTypes)
    for (const int slots : {16, 32, 64})
      for (const int head_dim : {48, 64, 128, 256}) {
        const int group = 1 + random.below(5);
        Scene scene(table(), {head_dim, slots, type}, 2 * slots + 5, group, 6, 1.0F, random);
        SCOPED_TRACE(scene.describe());
        for (int r = 0; r < scene.rows; ++r)
          for (int e = 0; e < scene.entries; ++e)
            scene.mask(r, e) = slot_range(0, std::clamp(3 * slots + r + 1 - e * slots, 0, slots));
        State all = scene.attend_all(table(), 0, scene.rows);
        scene.expect_softmax(table(), all, 0, scene.entries);
        if (HasFatalFailure()) return;
        Exponentials observed(scene.rows * group, scene.entries, slots);
        State beside(scene.rows * group, head_dim);
        scene.attend(table(), 0, scene.rows, 0, scene.entries, beside, &observed);
        ASSERT_TRUE(all.holds(beside, 0)) << "observing changes nothing";
        for (const int row : {0, 1, slots - 1, slots, 2 * slots + 4})
          ASSERT_TRUE(all.holds(scene.attend_all(table(), row, 1), static_cast<std::size_t>(row * group))) << row;
      }
}

// The hard case of the tests above: what a row must not see does harm when it is touched at all.
TEST_P(AttentionTest, WhatOnlyAnotherRowSeesDoesNotLeak) {
  Random random(8);
  for (const KvType type : kPlainTypes) {
    for (const int group : {1, 2, 4}) {
      Scene scene(table(), {64, 32, type}, 4, group, 3, 1.0F, random);
      for (int r = 0; r < 4; ++r) {
        scene.mask(r, 0) = 0b0011;
        scene.mask(r, 1) = 0b0110;
        scene.mask(r, 2) = r == 2 ? 0b1100 : r == 1 ? 0 : 0b0100;
      }
      // A score so much higher that what came before is scaled to -0, which adding any zero would turn to +0.
      for (int s : {0, 1}) scene.store(table(), 0, s, std::vector<float>(64, -2.0F), std::vector<float>(64, -1.0F));
      for (int s : {1, 2}) scene.store(table(), 1, s, std::vector<float>(64, 2.0F), std::vector<float>(64, -0.0F));
      scene.store(table(), 2, 2, std::vector<float>(64, 1.0F), std::vector<float>(64, -0.0F));
      std::fill(scene.q.begin(), scene.q.end(), 2.0F);
      for (const float value : {1.0F, -1.0F, -0.0F, 1e-40F, -1e-40F, INFINITY, -INFINITY, std::nanf("")}) {
        scene.store(table(), 2, 3, std::vector<float>(64, value), std::vector<float>(64, value));
        const State all = scene.attend_all(table(), 0, 4);
        for (const int row : {0, 1, 3})
          ASSERT_TRUE(all.holds(scene.attend_all(table(), row, 1), static_cast<std::size_t>(row * group)))
              << scene.describe() << " row " << row << " beside " << value;
      }
    }
  }
}

TEST_P(AttentionTest, GarbageInDeadSlotsDoesNothing) {
  Random random(9);
  for (const KvType type : kPlainTypes) {
    const float huge = type == KvType::kF16 ? 65504.0F : 3e38F;
    for (const int head_dim : {20, 64, 128}) {
      for (const int slots : {16, 32, 64}) {
        Scene scene(table(), {head_dim, slots, type}, 9, 4, 4, 1.0F, random);
        // A page filled in order, one with holes, one of which nothing is live, one random.
        for (int r = 0; r < scene.rows; ++r) {
          scene.mask(r, 0) = slot_range(0, 5 + r % 3);
          scene.mask(r, 1) &= 0xf0f3;
          scene.mask(r, 2) = 0;
        }
        const State before = scene.attend_all(table(), 0, scene.rows);
        for (const float garbage : {huge, -huge, 1e-8F, INFINITY, std::nanf("")}) {
          for (int e = 0; e < scene.entries; ++e) {
            SlotMask live = 0;
            for (int r = 0; r < scene.rows; ++r) live |= scene.mask(r, e);
            for (int s = 0; s < slots; ++s) {
              if (live >> s & 1) continue;
              std::vector<float> noise = random.floats(static_cast<std::size_t>(head_dim), 1.0F);
              for (float& x : noise) x = x > 0 ? garbage : x;
              scene.store(table(), e, s, noise, noise);
            }
          }
          ASSERT_TRUE(before.holds(scene.attend_all(table(), 0, scene.rows), 0)) << scene.describe() << " " << garbage;
        }
      }
    }
  }
}

// A key that overflowed must not turn into plausible text: what is no number stays none to the end.
TEST_P(AttentionTest, WhatIsNoNumberShows) {
  Random random(11);
  for (const KvType type : kPlainTypes) {
    for (const float broken : {INFINITY, std::nanf("")}) {
      for (const int at : {0, 1, 2}) {
        Scene scene(table(), {64, 32, type}, 2, 2, 3, 1.0F, random);
        for (int r = 0; r < 2; ++r)
          for (int e = 0; e < 3; ++e) scene.mask(r, e) = 0xffff;
        std::fill(scene.q.begin(), scene.q.end(), 0.5F);
        scene.store(table(), at, 7, std::vector<float>(64, broken), std::vector<float>(64, 1.0F));
        State state = scene.attend_all(table(), 0, 2);
        std::vector<float> out(4 * 64);
        State total(4, 64);
        table().merge(total.view(), state.view(), 4, 64);
        table().finish(total.view(), 4, 64, out.data());
        for (const float x : out) ASSERT_FALSE(std::isfinite(x)) << scene.describe() << " entry " << at;
      }
    }
  }
}

// Opened as floats, keys are those of any page, and values are the same numbers token by token.
TEST_P(AttentionTest, LatentPagesOpenToTheSameBitsEverywhere) {
  Random random(21);
  for (const KvType type :
       {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kI16, KvType::kQ8, KvType::kQ4, KvType::kQ4O})
    for (const int slots : {16, 32, 64})
      for (const int head_dim : {20, 48, kMaxHeadDim}) {
        const PageFormat format{.head_dim = head_dim, .slots = slots, .key = type, .value = type, .latent = true};
        const PageFormat open = format.open();
        const auto count = static_cast<std::size_t>(head_dim * slots);
        ASSERT_EQ(format.bytes(), format.key_bytes());
        Fenced<std::byte> filled(open.bytes(), std::size_t{64}), page(format.bytes(), std::size_t{64});
        std::vector<float> keys(count);
        for (int s = 0; s < slots; ++s) {
          const std::vector<float> key = random.floats(static_cast<std::size_t>(head_dim), 3.0F);
          table().store_kv(open, filled.data(), s, key.data(), nullptr);
          for (int d = 0; d < head_dim; ++d)
            keys[static_cast<std::size_t>(d * slots + s)] = key[static_cast<std::size_t>(d)];
        }
        ASSERT_TRUE(filled.intact());
        if (format.encoded()) {
          encode_page(format, filled.data(), slot_range(0, slots), page.data());
          ASSERT_TRUE(page.intact());
        } else {
          std::copy_n(filled.data(), open.bytes(), page.data());
        }
        Fenced<float> out(2 * count), wanted(2 * count);
        table().open_latent(format, page.data(), out.data());
        generic_kernels().open_latent(format, page.data(), wanted.data());
        ASSERT_TRUE(out.intact() && same_bits(out.data(), wanted.data(), 2 * count)) << codec_name(format);
        for (int s = 0; s < slots; ++s)
          for (int d = 0; d < head_dim; ++d) {
            const auto at = static_cast<std::size_t>(d * slots + s);
            ASSERT_EQ(out[count + static_cast<std::size_t>(s * head_dim + d)], out[at]);
            if (type == KvType::kF32) {
              ASSERT_EQ(out[at], keys[at]);
            }
            ASSERT_NEAR(out[at], keys[at], is_encoded(type) ? 0.5 : 0.02);
          }
      }
}

TEST_P(AttentionTest, TheLargestHead) {
  Random random(10);
  Scene scene(table(), {kMaxHeadDim, 64, KvType::kF16}, 3, 5, kPartialEntries, 0.3F, random);
  State state = scene.attend_all(table(), 0, 3);
  scene.expect_softmax(table(), state, 0, scene.entries);
}

TEST_P(AttentionTest, MoreQueriesThanAKernelTakesAtOnce) {
  Random random(14);
  struct Case {
    int head_dim, group, rows;
  };
  for (const Case c : {Case{kMaxHeadDim, 5, 9}, Case{64, 131, 2}, Case{128, 3, 47}}) {
    Scene scene(table(), {c.head_dim, 32, KvType::kF16}, c.rows, c.group, 3, 0.3F, random);
    SCOPED_TRACE(scene.describe());
    for (int r = 0; r < scene.rows; ++r) scene.mask(r, 1) = slot_range(0, 32);
    State state = scene.attend_all(table(), 0, scene.rows);
    scene.expect_softmax(table(), state, 0, scene.entries);
    for (int r = 0; r < scene.rows; ++r)
      ASSERT_TRUE(state.holds(scene.attend_all(table(), r, 1), static_cast<std::size_t>(r * c.group))) << r;
  }
}

// Products so small that some units flush them to zero, where a sum may become -0: beside a row that sees more.
TEST_P(AttentionTest, TinyValuesDoNotLeak) {
  Random random(15);
  Scene scene(table(), {64, 32, KvType::kBF16}, 20, 2, 3, 1.0F, random);
  for (int e = 0; e < 3; ++e)
    for (int s = 0; s < 32; ++s) {
      std::vector<float> value(64);
      for (float& x : value) x = random.symmetric(1.0F) * (random.below(2) == 0 ? 0x1p-125F : 0x1p-133F);
      scene.store(table(), e, s, std::vector<float>(64, random.symmetric(0.5F)), value);
    }
  const State all = scene.attend_all(table(), 0, scene.rows);
  for (int r = 0; r < scene.rows; ++r)
    ASSERT_TRUE(all.holds(scene.attend_all(table(), r, 1), static_cast<std::size_t>(r * 2))) << r;
}

}  // namespace
}  // namespace kvasir::test
