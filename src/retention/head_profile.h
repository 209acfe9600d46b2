// Which KV heads of a model attend to the same tokens: the head profile of SyncKV ("A Syncopated Scheduling Approach to
// KV Cache Compression").
//
// The top set of a KV head at a query holds the `top_k` tokens of largest weight, after max-pooling over the query
// heads of its group; ties go to the younger token. The overlap coefficient of two sets is |A ∩ B| / min(|A|, |B|).
// `overlap` is its mean over sampled queries. Heads are clustered by K-means on the rows of D = max(S) - S, S the
// overlaps of the layer; the head nearest to a centroid represents its cluster (R), the others follow it (NR).
//
// The file is text, one statement a line, in this order; its size and every number are bounded:
//
//   kvasir head profile 1
//   fingerprint HEX              of the model (runtime/loaded_model.h)
//   layers N
//   kv_heads N
//   top_k N
//   queries N                    sampled in all
//   articles N                   pieces of text that were read apart
//   tokens N                     in all
//   reps N                       clusters of a layer
//   seed N                       of the sample and of K-means
//   layer N                      for each layer, in order:
//   overlap X X ...              a line for each head: with each head
//   clusters N N ...             of each head; clusters are numbered by their representatives
//   representatives N N ...      ascending
//   checksum HEX                 XXH3-128 of all lines before it
//
// Thread-safety: plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kvasir/status.h"

namespace kvasir {

inline constexpr int kMostProfileHeads = 256;
inline constexpr int kMostProfileLayers = 1024;
inline constexpr int kMostProfileTop = 65536;
inline constexpr std::size_t kMostProfileBytes = std::size_t{64} << 20;

// The clusters of one layer's KV heads.
struct HeadClusters {
  std::vector<int> cluster;          // [KV heads]
  std::vector<int> representatives;  // [clusters]: a head of that cluster; ascending

  int representative(int head) const {
    return representatives[static_cast<std::size_t>(cluster[static_cast<std::size_t>(head)])];
  }
  bool is_representative(int head) const { return representative(head) == head; }
  bool operator==(const HeadClusters&) const = default;
};

struct HeadProfile {
  Hash128 fingerprint;
  int layers = 0;
  int kv_heads = 0;
  int top_k = 0;
  std::int64_t queries = 0;
  std::int64_t articles = 0;
  std::int64_t tokens = 0;
  int reps = 0;
  std::uint64_t seed = 0;
  std::vector<std::vector<double>> overlap;  // [layers][KV heads * KV heads], from 0 to 1
  std::vector<HeadClusters> clusters;        // [layers]

  bool operator==(const HeadProfile&) const = default;
};

// Fills `top` with the positions of the `k` largest weights, or of all if there are fewer, ascending; of equal weights
// the later. REQUIRES: no weight is NaN. `order`: scratch.
void top_positions(std::span<const double> weights, std::size_t k, std::vector<std::uint32_t>& order,
                   std::vector<std::uint32_t>& top);

// The overlap coefficient of two ascending sets that are not empty.
template <class Ids>
double overlap_coefficient(const Ids& a, const Ids& b) {
  std::size_t common = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      ++common, ++i, ++j;
    } else if (a[i] < b[j]) {
      ++i;
    } else {
      ++j;
    }
  }
  return static_cast<double>(common) / static_cast<double>(std::min(a.size(), b.size()));
}

// Returns the default number of a layer's representatives: a quarter of the KV heads, and at least 1 (2 of 8, 1 of 4).
int default_representatives(int kv_heads);

// Clusters the heads of a layer into `reps` clusters, none empty. overlap: [heads, heads]. K-means++ with 16 starts
// and the least sum of squares; ties go to the lower head or cluster. Depends on the arguments alone. REQUIRES: 1 <=
// reps <= heads.
HeadClusters cluster_heads(std::span<const double> overlap, int heads, int reps, std::uint64_t seed);

// The same for all layers. REQUIRES: as cluster_heads.
std::vector<HeadClusters> cluster_layers(std::span<const std::vector<double>> overlap, int heads, int reps,
                                         std::uint64_t seed);

// How far two profiles of one model agree.
struct ProfileAgreement {
  struct Layer {
    double same_representative = 0;  // share of heads that follow the same R head
    double same_cluster = 0;         // share of heads in matched clusters, of the matching with the most
  };
  std::vector<Layer> layers;
  Layer mean;
};
// Errors: kInvalidArgument for profiles of different models or numbers of representatives.
Result<ProfileAgreement> compare_profiles(const HeadProfile& a, const HeadProfile& b);

std::string format_head_profile(const HeadProfile& profile);
// `name`: of the file, for messages. Errors: kInvalidArgument; the message names the line that is wrong.
Result<HeadProfile> parse_head_profile(std::string_view text, const std::string& name);
// Errors: those of reading and parsing.
Result<HeadProfile> read_head_profile(const std::string& path);

}  // namespace kvasir
