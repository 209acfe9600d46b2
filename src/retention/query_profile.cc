#include "retention/query_profile.h"

#include "base/mapped_file.h"
#include "retention/head_profile.h"
#include "retention/profile_file.h"

namespace kvasir {
namespace {

constexpr std::string_view kFirstQueryLine = "kvasir query profile 1";
constexpr double kMostElement = 1e9;

}  // namespace

std::string format_query_profile(const QueryProfile& profile) {
  std::string out(kFirstQueryLine);
  out += fmt::format("\nfingerprint {}\nlayers {}\nheads {}\nhead_dim {}\narticles {}\ntokens {}\n",
                     profile.fingerprint.hex(), profile.layers, profile.heads, profile.head_dim, profile.articles,
                     profile.tokens);
  for (int layer = 0; layer < profile.layers; ++layer) {
    out += fmt::format("layer {}\n", layer);
    for (int head = 0; head < profile.heads; ++head) {
      append_profile_line(out, "mean", profile.mean(layer, head));
      append_profile_line(out, "length", profile.length(layer, head));
    }
  }
  return out + "checksum " + profile_checksum(out) + "\n";
}

Result<QueryProfile> parse_query_profile(std::string_view text, const std::string& name) {
  if (!text.starts_with(kFirstQueryLine))
    return invalid_argument("'{}' is not a query profile; kvasir profile --query-profile FILE writes one", name);
  constexpr auto kMostCount = std::uint64_t{1} << 62;
  ProfileLines lines(text, name, "query profile");
  if (!lines.after(kFirstQueryLine).empty()) lines.fail(fmt::format("is not '{}'", kFirstQueryLine));
  QueryProfile profile;
  profile.fingerprint = lines.hash("fingerprint");
  profile.layers = static_cast<int>(lines.number("layers", 1, kMostProfileLayers));
  profile.heads = static_cast<int>(lines.number("heads", 1, kMostQueryHeads));
  profile.head_dim = static_cast<int>(lines.number("head_dim", 2, kMostQueryHeadDim));
  if (profile.head_dim % 2 != 0) lines.fail("is not an even number");
  profile.articles = static_cast<std::int64_t>(lines.number("articles", 1, kMostCount));
  profile.tokens = static_cast<std::int64_t>(lines.number("tokens", 1, kMostCount));
  for (int layer = 0; layer < profile.layers && lines.ok(); ++layer) {
    if (lines.number("layer", 0, kMostProfileLayers) != static_cast<std::uint64_t>(layer))
      lines.fail(fmt::format("is not 'layer {}'", layer));
    for (int head = 0; head < profile.heads && lines.ok(); ++head) {
      lines.numbers<double>("mean", profile.head_dim, -kMostElement, kMostElement, profile.means);
      lines.numbers<double>("length", profile.head_dim / 2, 0, kMostElement, profile.lengths);
    }
  }
  lines.end(text);
  if (!lines.ok()) return lines.status();
  return profile;
}

Result<QueryProfile> read_query_profile(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostProfileBytes));
  return parse_query_profile(text, path);
}

}  // namespace kvasir
