// Top sets, their overlap, and K-means over heads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/splitmix.h"
#include "retention/head_profile.h"

namespace kvasir {
namespace {

constexpr int kStarts = 16;
constexpr int kMostRounds = 100;

// K-means over the rows of a square matrix.
class KMeans {
 public:
  KMeans(std::vector<double> rows, int heads, int clusters)
      : rows_(std::move(rows)), heads_(static_cast<std::size_t>(heads)), clusters_(static_cast<std::size_t>(clusters)) {
    cluster_.resize(heads_);
    centroids_.resize(clusters_ * heads_);
  }

  // One start: seeds, then rounds until no head changes its cluster. Returns the sum of squared distances.
  double run(SplitMix& draw) {
    seed(draw);
    for (int round = 0; round < kMostRounds; ++round) {
      const bool changed = assign() || round == 0;
      fill_empty();
      if (!changed) break;
      move_centroids();
    }
    double sum = 0;
    for (std::size_t head = 0; head < heads_; ++head) sum += distance(head, cluster_[head]);
    return sum;
  }

  HeadClusters result() const {
    std::vector<std::pair<int, std::size_t>> nearest(clusters_, {-1, 0});  // {head, cluster}
    for (std::size_t c = 0; c < clusters_; ++c) {
      nearest[c].second = c;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t head = 0; head < heads_; ++head)
        // The two heads of a cluster are equally near, but for rounding: takes the lower one.
        if (cluster_[head] == c && (nearest[c].first < 0 || distance(head, c) < least * (1 - 1e-9))) {
          least = distance(head, c);
          nearest[c].first = static_cast<int>(head);
        }
    }
    std::ranges::sort(nearest);
    HeadClusters result;
    result.cluster.resize(heads_);
    for (std::size_t number = 0; number < clusters_; ++number) {
      KVASIR_CHECK(nearest[number].first >= 0);
      result.representatives.push_back(nearest[number].first);
      for (std::size_t head = 0; head < heads_; ++head)
        if (cluster_[head] == nearest[number].second) result.cluster[head] = static_cast<int>(number);
    }
    return result;
  }

 private:
  double distance(std::size_t head, std::size_t cluster) const {
    double sum = 0;
    for (std::size_t i = 0; i < heads_; ++i) {
      const double off = rows_[head * heads_ + i] - centroids_[cluster * heads_ + i];
      sum += off * off;
    }
    return sum;
  }

  void put_centroid(std::size_t cluster, std::size_t head) {
    for (std::size_t i = 0; i < heads_; ++i) centroids_[cluster * heads_ + i] = rows_[head * heads_ + i];
  }

  // k-means++ (Arthur, Vassilvitskii 2007): draws each next centre with probability in proportion to its squared
  // distance from the nearest one so far; if all distances are 0, takes the lowest head that is no centre yet.
  void seed(SplitMix& draw) {
    std::vector<bool> taken(heads_, false);
    std::vector<double> nearest(heads_, std::numeric_limits<double>::infinity());
    auto head = static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(heads_)));
    for (std::size_t c = 0; c < clusters_; ++c) {
      if (c > 0) {
        const double sum = std::accumulate(nearest.begin(), nearest.end(), 0.0);
        double left = draw.unit() * sum;
        head = heads_;
        for (std::size_t h = 0; h < heads_ && sum > 0; ++h) {
          if (nearest[h] <= 0) continue;
          head = h;  // the last one, if rounding leaves something
          if ((left -= nearest[h]) < 0) break;
        }
        if (head == heads_) head = static_cast<std::size_t>(std::ranges::find(taken, false) - taken.begin());
      }
      taken[head] = true;
      put_centroid(c, head);
      for (std::size_t h = 0; h < heads_; ++h) nearest[h] = taken[h] ? 0 : std::min(nearest[h], distance(h, c));
    }
  }

  // Gives each head to the nearest centroid. Returns whether any changed.
  bool assign() {
    bool changed = false;
    for (std::size_t head = 0; head < heads_; ++head) {
      std::size_t best = 0;
      for (std::size_t c = 1; c < clusters_; ++c)
        if (distance(head, c) < distance(head, best)) best = c;
      changed = changed || best != cluster_[head];
      cluster_[head] = best;
    }
    return changed;
  }

  // Moves to each empty cluster the head that is farthest from its centroid, among heads that are not alone.
  void fill_empty() {
    std::vector<int> size(clusters_, 0);
    for (const std::size_t c : cluster_) ++size[c];
    for (std::size_t c = 0; c < clusters_; ++c) {
      if (size[c] > 0) continue;
      std::size_t farthest = heads_;
      for (std::size_t head = 0; head < heads_; ++head)
        if (size[cluster_[head]] > 1 &&
            (farthest == heads_ || distance(head, cluster_[head]) > distance(farthest, cluster_[farthest])))
          farthest = head;
      --size[cluster_[farthest]];
      cluster_[farthest] = c;
      size[c] = 1;
      put_centroid(c, farthest);
    }
  }

  void move_centroids() {
    std::ranges::fill(centroids_, 0.0);
    std::vector<double> size(clusters_, 0);
    for (std::size_t head = 0; head < heads_; ++head) {
      ++size[cluster_[head]];
      for (std::size_t i = 0; i < heads_; ++i) centroids_[cluster_[head] * heads_ + i] += rows_[head * heads_ + i];
    }
    for (std::size_t c = 0; c < clusters_; ++c)
      for (std::size_t i = 0; i < heads_; ++i) centroids_[c * heads_ + i] /= size[c];
  }

  std::vector<double> rows_;  // [heads, heads]
  std::size_t heads_;
  std::size_t clusters_;
  std::vector<std::size_t> cluster_;  // [heads]
  std::vector<double> centroids_;     // [clusters, heads]
};

}  // namespace

void top_positions(std::span<const double> weights, std::size_t k, std::vector<std::uint32_t>& order,
                   std::vector<std::uint32_t>& top) {
  order.resize(weights.size());
  std::iota(order.begin(), order.end(), 0u);
  const std::size_t count = std::min(k, weights.size());
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a > b;
  };
  if (count < weights.size())
    std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(count), before);
  top.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(top);
}

int default_representatives(int kv_heads) {
  return std::max(1, kv_heads / 4);
}

HeadClusters cluster_heads(std::span<const double> overlap, int heads, int reps, std::uint64_t seed) {
  KVASIR_CHECK(reps >= 1 && reps <= heads &&
               overlap.size() == static_cast<std::size_t>(heads) * static_cast<std::size_t>(heads));
  const double most = *std::ranges::max_element(overlap);
  std::vector<double> rows;
  for (const double value : overlap) rows.push_back(most - value);
  KMeans means(std::move(rows), heads, reps);
  SplitMix draw(seed);
  HeadClusters best;
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < kStarts; ++start)
    if (const double sum = means.run(draw); sum < least) {
      least = sum;
      best = means.result();
    }
  return best;
}

std::vector<HeadClusters> cluster_layers(std::span<const std::vector<double>> overlap, int heads, int reps,
                                         std::uint64_t seed) {
  std::vector<HeadClusters> layers;
  for (std::size_t layer = 0; layer < overlap.size(); ++layer)
    layers.push_back(cluster_heads(overlap[layer], heads, reps, seed + layer));
  return layers;
}

}  // namespace kvasir
