#include "retention/synckv_options.h"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "retention/profile_file.h"

namespace kvasir {
namespace {

// Returns the profile that `filled` names, with clusters of options.reps_of heads, and adds its checksum to `filled`.
Result<std::shared_ptr<const HeadProfile>> read_profile(const SyncKvOptions& options, PolicyOptions& filled) {
  KVASIR_ASSIGN_OR_RETURN(HeadProfile read, read_profile_option<HeadProfile>(filled, "head profile", read_head_profile,
                                                                             format_head_profile));
  const int reps = options.reps_of(read.kv_heads);
  if (reps > read.kv_heads)
    return invalid_argument("policy 'synckv': reps={} is above the {} KV heads of the profile", reps, read.kv_heads);
  if (reps != read.reps) read.clusters = cluster_layers(read.overlap, read.kv_heads, reps, read.seed);
  read.overlap.clear();
  return {std::make_shared<const HeadProfile>(std::move(read))};
}

}  // namespace

Result<SyncKvSetup> read_synckv_options(const PolicyOptions& given) {
  SyncKvSetup setup{{}, nullptr, given};
  auto& [options, profile, filled] = setup;
  if (filled.has("budget") && filled.value("budget") != "-") {
    if (filled.has("mem")) return invalid_argument("policy 'synckv': mem and budget say the same; give one of them");
    KVASIR_ASSIGN_OR_RETURN(options.budget, filled.get_budget("budget", kMostTokens));
  } else {
    const Result<Budget> mem = filled.get_budget("mem", kMostTokens);
    if (!mem.ok() || !mem->is_share())
      return invalid_argument("policy 'synckv': mem={} must be a percentage such as 30%", filled.value("mem"));
    options.mem = mem->millionths;
  }
  KVASIR_ASSIGN_OR_RETURN(const double share, filled.get_double("static", 0, 1));
  options.static_millionths = std::llround(share * Budget::kWhole);
  KVASIR_ASSIGN_OR_RETURN(options.stride, filled.get_int("stride", 1, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.recent, filled.get_int("recent", 0, kMostTokens));
  if (filled.value("reps") != "auto") {
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t reps, filled.get_int("reps", 1, kMostProfileHeads));
    options.reps = static_cast<int>(reps);
  }
  constexpr std::string_view kPlaces[] = {"off", "file"};
  KVASIR_ASSIGN_OR_RETURN(const std::string place, filled.get_choice("offload", kPlaces));
  if (place != "off" && options.mem == Budget::kWhole)
    return invalid_argument(
        "policy 'synckv': with mem=100% every head reads everything, and nothing can be offloaded; "
        "give less, or offload=off");
  if (filled.value("profile") != "-") {
    KVASIR_ASSIGN_OR_RETURN(profile, read_profile(options, filled));
  }
  options.offloads = place != "off";
  return setup;
}

}  // namespace kvasir
