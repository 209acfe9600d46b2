// The profile file, and how far two profiles agree.
#include "retention/head_profile.h"

#include <algorithm>
#include <limits>

#include "base/mapped_file.h"
#include "base/status.h"
#include "retention/profile_file.h"

namespace kvasir {
namespace {

constexpr std::string_view kFirstLine = "kvasir head profile 1";

void read_layer(ProfileLines& lines, int layer, HeadProfile& profile) {
  const int heads = profile.kv_heads;
  if (lines.number("layer", 0, kMostProfileLayers) != static_cast<std::uint64_t>(layer))
    lines.fail(fmt::format("is not 'layer {}'", layer));
  std::vector<double> overlap;
  for (int head = 0; head < heads && lines.ok(); ++head) lines.numbers<double>("overlap", heads, 0, 1, overlap);
  HeadClusters clusters;
  lines.numbers<int>("clusters", heads, 0, profile.reps - 1, clusters.cluster);
  lines.numbers<int>("representatives", profile.reps, 0, heads - 1, clusters.representatives);
  if (!lines.ok()) return;
  for (int c = 0; c < profile.reps; ++c) {
    const auto head = static_cast<std::size_t>(clusters.representatives[static_cast<std::size_t>(c)]);
    if (clusters.cluster[head] != c) lines.fail("names a head that is not in the cluster it represents");
  }
  if (!std::ranges::is_sorted(clusters.representatives)) lines.fail("is not in ascending order");
  profile.overlap.push_back(std::move(overlap));
  profile.clusters.push_back(std::move(clusters));
}

// Assigns rows to columns so that the sum of values is largest (Kuhn, Munkres; potentials after Jonker, Volgenant).
// value: [n, n]. Returns the largest sum.
int largest_matching(const std::vector<int>& value, std::size_t n) {
  std::vector<int> row_potential(n + 1, 0), column_potential(n + 1, 0);
  std::vector<std::size_t> row_of(n + 1, 0), before(n + 1, 0);  // 0: none; rows and columns count from 1
  constexpr int kFar = std::numeric_limits<int>::max() / 2;
  for (std::size_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    std::size_t column = 0;
    std::vector<int> least(n + 1, kFar);
    std::vector<bool> used(n + 1, false);
    do {
      used[column] = true;
      const std::size_t from = row_of[column];
      int step = kFar;
      std::size_t next = 0;
      for (std::size_t j = 1; j <= n; ++j) {
        if (used[j]) continue;
        const int cost = -value[(from - 1) * n + j - 1] - row_potential[from] - column_potential[j];
        if (cost < least[j]) least[j] = cost, before[j] = column;
        if (least[j] < step) step = least[j], next = j;
      }
      for (std::size_t j = 0; j <= n; ++j) {
        if (used[j])
          row_potential[row_of[j]] += step, column_potential[j] -= step;
        else
          least[j] -= step;
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = before[column]) row_of[column] = row_of[before[column]];
  }
  int sum = 0;
  for (std::size_t j = 1; j <= n; ++j) sum += value[(row_of[j] - 1) * n + j - 1];
  return sum;
}

}  // namespace

Result<ProfileAgreement> compare_profiles(const HeadProfile& a, const HeadProfile& b) {
  if (a.fingerprint != b.fingerprint || a.layers != b.layers || a.kv_heads != b.kv_heads)
    return invalid_argument("the two profiles are of different models");
  if (a.reps != b.reps)
    return invalid_argument("the two profiles have {} and {} representatives a layer; make them with the same number",
                            a.reps, b.reps);
  ProfileAgreement agreement;
  const auto reps = static_cast<std::size_t>(a.reps);
  for (int layer = 0; layer < a.layers; ++layer) {
    const HeadClusters& one = a.clusters[static_cast<std::size_t>(layer)];
    const HeadClusters& other = b.clusters[static_cast<std::size_t>(layer)];
    int same = 0;
    std::vector<int> common(reps * reps, 0);  // heads in cluster i of one and cluster j of the other
    for (int head = 0; head < a.kv_heads; ++head) {
      same += one.representative(head) == other.representative(head);
      const auto i = static_cast<std::size_t>(one.cluster[static_cast<std::size_t>(head)]);
      const auto j = static_cast<std::size_t>(other.cluster[static_cast<std::size_t>(head)]);
      ++common[i * reps + j];
    }
    agreement.layers.push_back(
        {static_cast<double>(same) / a.kv_heads, static_cast<double>(largest_matching(common, reps)) / a.kv_heads});
    agreement.mean.same_representative += agreement.layers.back().same_representative / a.layers;
    agreement.mean.same_cluster += agreement.layers.back().same_cluster / a.layers;
  }
  return agreement;
}

std::string format_head_profile(const HeadProfile& profile) {
  std::string out(kFirstLine);
  out += fmt::format(
      "\nfingerprint {}\nlayers {}\nkv_heads {}\ntop_k {}\nqueries {}\narticles {}\ntokens {}\nreps {}\nseed {}\n",
      profile.fingerprint.hex(), profile.layers, profile.kv_heads, profile.top_k, profile.queries, profile.articles,
      profile.tokens, profile.reps, profile.seed);
  const auto heads = static_cast<std::size_t>(profile.kv_heads);
  for (std::size_t layer = 0; layer < profile.overlap.size(); ++layer) {
    out += fmt::format("layer {}\n", layer);
    for (std::size_t head = 0; head < heads; ++head)
      append_profile_line(out, "overlap", std::span(profile.overlap[layer]).subspan(head * heads, heads));
    append_profile_line<int>(out, "clusters", profile.clusters[layer].cluster);
    append_profile_line<int>(out, "representatives", profile.clusters[layer].representatives);
  }
  return out + "checksum " + profile_checksum(out) + "\n";
}

Result<HeadProfile> parse_head_profile(std::string_view text, const std::string& name) {
  if (!text.starts_with(kFirstLine)) return invalid_argument("'{}' is not a head profile", name);
  if (text.size() > kMostProfileBytes)
    return invalid_argument("'{}' is not a sound head profile: it is larger than {} MiB", name,
                            kMostProfileBytes >> 20);
  constexpr auto kMostCount = std::uint64_t{1} << 62;
  ProfileLines lines(text, name, "head profile");
  if (!lines.after(kFirstLine).empty()) lines.fail(fmt::format("is not '{}'", kFirstLine));
  HeadProfile profile;
  profile.fingerprint = lines.hash("fingerprint");
  profile.layers = static_cast<int>(lines.number("layers", 1, kMostProfileLayers));
  profile.kv_heads = static_cast<int>(lines.number("kv_heads", 1, kMostProfileHeads));
  profile.top_k = static_cast<int>(lines.number("top_k", 1, kMostProfileTop));
  profile.queries = static_cast<std::int64_t>(lines.number("queries", 1, kMostCount));
  profile.articles = static_cast<std::int64_t>(lines.number("articles", 1, kMostCount));
  profile.tokens = static_cast<std::int64_t>(lines.number("tokens", 1, kMostCount));
  profile.reps = static_cast<int>(lines.number("reps", 1, static_cast<std::uint64_t>(profile.kv_heads)));
  profile.seed = lines.number("seed", 0, kMostCount);
  for (int layer = 0; layer < profile.layers && lines.ok(); ++layer) read_layer(lines, layer, profile);
  lines.end(text);
  if (!lines.ok()) return lines.status();
  return profile;
}

Result<HeadProfile> read_head_profile(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostProfileBytes));
  return parse_head_profile(text, path);
}

}  // namespace kvasir
