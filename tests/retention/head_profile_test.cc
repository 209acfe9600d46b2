// Clusters of heads against every partition there is, the profile's file, and the agreement of two profiles.
#include "retention/head_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/splitmix.h"

namespace kvasir::test {
namespace {

// Overlaps of heads that fall into groups, with noise.
std::vector<double> grouped(const std::vector<int>& group, std::uint64_t seed) {
  SplitMix draw(seed);
  const std::size_t heads = group.size();
  std::vector<double> overlap(heads * heads, 1.0);
  for (std::size_t a = 0; a < heads; ++a)
    for (std::size_t b = 0; b < a; ++b)
      overlap[a * heads + b] = overlap[b * heads + a] = (group[a] == group[b] ? 0.6 : 0.2) + 0.15 * draw.unit();
  return overlap;
}

// The sum of squared distances to the clusters' means, of rows of D = max(S) - S.
double inertia(const std::vector<double>& overlap, const std::vector<int>& cluster, int reps) {
  const std::size_t heads = cluster.size();
  const double most = *std::max_element(overlap.begin(), overlap.end());
  double sum = 0;
  for (int c = 0; c < reps; ++c)
    for (std::size_t i = 0; i < heads; ++i) {
      double mean = 0, count = 0;
      for (std::size_t h = 0; h < heads; ++h)
        if (cluster[h] == c) mean += most - overlap[h * heads + i], ++count;
      mean /= count;
      for (std::size_t h = 0; h < heads; ++h)
        if (cluster[h] == c) sum += std::pow(most - overlap[h * heads + i] - mean, 2);
    }
  return sum;
}

double best_inertia(const std::vector<double>& overlap, int heads, int reps) {
  double best = std::numeric_limits<double>::infinity();
  int codes = 1;
  for (int h = 0; h < heads; ++h) codes *= reps;
  for (int code = 0; code < codes; ++code) {
    std::vector<int> cluster, size(static_cast<std::size_t>(reps), 0);
    for (int h = 0, rest = code; h < heads; ++h, rest /= reps) {
      cluster.push_back(rest % reps);
      ++size[static_cast<std::size_t>(rest % reps)];
    }
    if (std::find(size.begin(), size.end(), 0) == size.end()) best = std::min(best, inertia(overlap, cluster, reps));
  }
  return best;
}

TEST(HeadClusters, AreTheBestOfAllPartitions) {
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    for (const int reps : {1, 2, 3}) {
      const std::vector<int> group = {0, 1, 0, 2, 1, 0, 2, 1};
      const std::vector<double> overlap = grouped(group, seed);
      const HeadClusters clusters = cluster_heads(overlap, 8, reps, seed);
      EXPECT_NEAR(inertia(overlap, clusters.cluster, reps), best_inertia(overlap, 8, reps), 1e-9)
          << seed << ' ' << reps;
      // The representative is nearest to the mean of its cluster.
      ASSERT_EQ(static_cast<int>(clusters.representatives.size()), reps);
      EXPECT_TRUE(std::is_sorted(clusters.representatives.begin(), clusters.representatives.end()));
      for (int c = 0; c < reps; ++c) {
        int nearest = -1;
        double least = std::numeric_limits<double>::infinity();
        for (int h = 0; h < 8; ++h) {
          if (clusters.cluster[static_cast<std::size_t>(h)] != c) continue;
          double off = 0;
          for (int i = 0; i < 8; ++i) {
            double mean = 0, count = 0;
            for (int o = 0; o < 8; ++o)
              if (clusters.cluster[static_cast<std::size_t>(o)] == c) mean += overlap[o * 8 + i], ++count;
            off += std::pow(overlap[h * 8 + i] - mean / count, 2);
          }
          if (off < least - 1e-12) least = off, nearest = h;
        }
        EXPECT_EQ(clusters.representatives[static_cast<std::size_t>(c)], nearest);
      }
      if (reps == 3) {
        for (int a = 0; a < 8; ++a)
          for (int b = 0; b < 8; ++b)
            EXPECT_EQ(clusters.cluster[a] == clusters.cluster[b], group[a] == group[b]) << seed;
      }
    }
}

TEST(HeadClusters, AreNeverEmptyEvenIfAllHeadsAreAlike) {
  const std::vector<double> ones(36, 1.0);
  for (int reps = 1; reps <= 6; ++reps) {
    const HeadClusters clusters = cluster_heads(ones, 6, reps, 1);
    std::vector<int> size(static_cast<std::size_t>(reps), 0);
    for (const int c : clusters.cluster) ++size[static_cast<std::size_t>(c)];
    EXPECT_EQ(std::count(size.begin(), size.end(), 0), 0);
  }
}

TEST(TopPositions, TiesGoToTheYounger) {
  std::vector<std::uint32_t> order, top;
  const std::vector<double> weights = {0.1, 0.3, 0.3, 0.1, 0.2, 0.2};
  top_positions(weights, 3, order, top);
  EXPECT_EQ(top, (std::vector<std::uint32_t>{1, 2, 5}));
  top_positions(weights, 9, order, top);
  EXPECT_EQ(top.size(), 6u);
}

HeadProfile some_profile(std::uint64_t seed) {
  HeadProfile profile{.fingerprint = {7, 9},
                      .layers = 3,
                      .kv_heads = 8,
                      .top_k = 64,
                      .queries = 5,
                      .articles = 2,
                      .tokens = 2000,
                      .reps = 3,
                      .seed = 11,
                      .overlap = {},
                      .clusters = {}};
  for (int layer = 0; layer < 3; ++layer) profile.overlap.push_back(grouped({0, 1, 0, 2, 1, 0, 2, 1}, seed + layer));
  profile.clusters = cluster_layers(profile.overlap, 8, 3, 11);
  return profile;
}

std::string sealed(std::string text) {
  text.resize(text.find("checksum "));
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return text + "checksum " + hasher.digest().hex() + "\n";
}

TEST(HeadProfileFile, SaysTheSameWhenReadAgain) {
  const HeadProfile profile = some_profile(1);
  const auto again = parse_head_profile(format_head_profile(profile), "p");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, profile);
}

TEST(HeadProfileFile, RefusesEveryDamage) {
  const std::string text = format_head_profile(some_profile(1));
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(parse_head_profile(text.substr(0, size), "p").ok());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = damaged[at] == '1' ? '2' : '1';
    EXPECT_FALSE(parse_head_profile(damaged, "p").ok()) << at;
  }
}

TEST(HeadProfileFile, NamesTheLine) {
  const std::string text = format_head_profile(some_profile(1));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return std::string(parse_head_profile(sealed(changed), "p").status().message());
  };
  EXPECT_EQ(parse_head_profile("hello", "p").status().message(), "'p' is not a head profile");
  EXPECT_EQ(with("layers 3", "layers 0"),
            "'p' is not a sound head profile: line 3 is not 'layers' and a number from 1 to 1024");
  EXPECT_EQ(with("kv_heads 8", "kv_heads 99999999999999999999"),
            "'p' is not a sound head profile: line 4 is not 'kv_heads' and a number from 1 to 256");
  EXPECT_EQ(with("layers 3", "layers 4"), "'p' is not a sound head profile: line 44 is not 'layer ...'");
  EXPECT_EQ(with("overlap 1 ", "overlap nan "),
            "'p' is not a sound head profile: line 12 is not 'overlap' and 8 numbers from 0 to 1, one blank apart");
  EXPECT_EQ(with("checksum", "more\nchecksum"), "'p' is not a sound head profile: line 44 is not 'checksum ...'");
  std::string changed = text;
  changed.replace(changed.find("top_k 64"), 8, "top_k 65");
  EXPECT_EQ(parse_head_profile(changed, "p").status().message(),
            "'p' is not a sound head profile: line 44 has another checksum than the lines before it: the file is "
            "damaged");
  EXPECT_EQ(parse_head_profile(text + "x\n", "p").status().message(),
            "'p' is not a sound head profile: line 44 is not the last");
}

TEST(ProfileAgreement, MatchesClustersByTheirHeads) {
  const HeadProfile one = some_profile(1);
  HeadProfile other = one;
  // Heads 0 2 5, 1 4 7 and 3 6 belong together. Another representative, and one head in another cluster.
  other.clusters[1].cluster = {0, 1, 0, 2, 1, 0, 2, 0};
  other.clusters[1].representatives = {2, 4, 6};
  const auto agreement = compare_profiles(one, other);
  ASSERT_TRUE(agreement.ok());
  EXPECT_EQ(agreement->layers[0].same_representative, 1.0);
  EXPECT_EQ(agreement->layers[0].same_cluster, 1.0);
  EXPECT_EQ(agreement->layers[1].same_cluster, 7.0 / 8);
  int same = 0;
  for (int head = 0; head < 8; ++head)
    same += one.clusters[1].representative(head) == other.clusters[1].representative(head);
  EXPECT_EQ(agreement->layers[1].same_representative, same / 8.0);
  EXPECT_NEAR(agreement->mean.same_cluster, (1 + 7.0 / 8 + 1) / 3, 1e-12);
  other.reps = 2;
  EXPECT_FALSE(compare_profiles(one, other).ok());
  other = one;
  other.fingerprint.low = 1;
  EXPECT_FALSE(compare_profiles(one, other).ok());
}

TEST(ProfileAgreement, FindsTheBestMatching) {
  // Random clusterings of 9 heads into 4, against all permutations.
  SplitMix draw(5);
  for (int trial = 0; trial < 50; ++trial) {
    HeadProfile a{.layers = 1, .kv_heads = 9, .reps = 4, .overlap = {{}}, .clusters = {{}}};
    HeadProfile b = a;
    for (HeadProfile* p : {&a, &b}) {
      p->clusters[0].representatives = {0, 1, 2, 3};
      for (int head = 0; head < 9; ++head)
        p->clusters[0].cluster.push_back(head < 4 ? head : static_cast<int>(draw.below(4)));
    }
    std::vector<int> to = {0, 1, 2, 3};
    int best = 0;
    do {
      int common = 0;
      for (int head = 0; head < 9; ++head)
        common += to[static_cast<std::size_t>(a.clusters[0].cluster[head])] == b.clusters[0].cluster[head];
      best = std::max(best, common);
    } while (std::next_permutation(to.begin(), to.end()));
    EXPECT_EQ(compare_profiles(a, b)->mean.same_cluster, best / 9.0);
  }
}

}  // namespace
}  // namespace kvasir::test
