// "Quality as a promise": a request names the distance from the full cache that its policy may cost, and the engine
// moves the policy's budget to hold it. Options, and what an answer says of it. See docs/policies/quality.md.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Tokens between two checks, at most.
inline constexpr int kMostQualityEvery = 1 << 20;

// Returns the stride where only `every` is given.
constexpr int default_stride(int every) {
  return every < 1 ? 1 : every < 16 ? every : 16;
}

struct QualityOptions {
  // Bound on the mean of KL(full || policy) over the positions compared, in nats per token; above 0, finite.
  double kl = 0.05;
  // Generated tokens between two checks, 1 to kMostQualityEvery. The grid begins behind the prompt.
  int every = 256;
  // One generated token of so many is compared, 1 to `every`. The first is always.
  int stride = 16;
  // The budgets that the policy may get, in the units of its own option (docs/policies/quality.md); 0: `least` is 64,
  // or the least that the policy takes if that is more; `most` is what the longest text of the request needs.
  std::int64_t least = 0;
  std::int64_t most = 0;

  bool operator==(const QualityOptions&) const = default;
};

// Reads "kl=0.05,every=256,stride=16,least=128,most=4096"; each option at most once, only `kl` is required. Errors:
// kInvalidArgument, about "quality".
Result<QualityOptions> parse_quality(std::string_view text);
// Errors: kInvalidArgument about "quality", naming the option.
Status check_quality(const QualityOptions& options);

struct QualityReport {
  double kl_bound = 0;         // QualityOptions::kl
  double kl_mean = 0;          // over the positions compared
  double kl_max = 0;           // largest mean of the positions between two checks
  std::int64_t compared = 0;   // positions
  std::int64_t checks = 0;     // shadow passes that ended
  std::int64_t unchecked = 0;  // tokens generated since the last check: of them nothing is known
  std::int64_t budget = 0;     // of the policy, at the end
  // A budget, and the number of generated tokens after which the policy got it.
  struct Change {
    std::int64_t token = 0;
    std::int64_t budget = 0;
    bool operator==(const Change&) const = default;
  };
  std::vector<Change> budgets;  // the first is that of the request, at token 0
  bool held = false;            // checks > 0, and kl_mean <= kl_bound
  // What it cost. All but the seconds depend on tokens alone.
  std::int64_t shadow_tokens = 0;  // read by shadow passes, from the prefix cache or computed
  std::int64_t reread_tokens = 0;  // read again under another budget, from the prefix cache or computed
  double shadow_seconds = 0;       // that the answer waited for shadow passes
  std::uint64_t shadow_bytes = 0;  // most that a shadow pass held
  std::uint64_t rows_bytes = 0;    // held for the predictions to compare
};

}  // namespace kvasir
