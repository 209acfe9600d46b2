// The options of `synckv`; see docs/policies/synckv.md.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <memory>

#include "retention/head_profile.h"
#include "retention/scored.h"

namespace kvasir {

struct SyncKvOptions {
  std::int64_t mem = 0;  // millionths; 0: `budget` applies
  Budget budget;
  std::int64_t static_millionths = 0;
  std::int64_t stride = 5;
  int reps = 0;  // 0: auto
  std::int64_t recent = 32;
  bool offloads = false;

  int reps_of(int heads) const { return reps > 0 ? reps : default_representatives(heads); }

  // Returns k: the tokens that NR heads read besides the tail, behind a prompt of n tokens; all with mem=100%. See mem
  // in docs/policies/synckv.md.
  std::int64_t selected(std::int64_t n, int heads) const {
    if (mem == 0) return budget.at(n);
    if (mem == Budget::kWhole) return kMostTokens;
    const std::int64_t all = Budget::kWhole, own = mem * heads - reps_of(heads) * all;
    if (own <= 0) return 0;
    const std::int64_t share = (heads - reps_of(heads)) * all;
    const auto k = static_cast<__int128>(n) * own / share;
    return static_cast<std::int64_t>(k);
  }
  // Returns how many of k tokens form the static set.
  std::int64_t fixed(std::int64_t k) const {
    return static_cast<std::int64_t>(static_cast<__int128>(k) * static_millionths / Budget::kWhole);
  }
};

struct SyncKvSetup {
  SyncKvOptions options;
  std::shared_ptr<const HeadProfile> profile;  // clusters of options.reps_of heads; null: those of the prompt
  PolicyOptions filled;                        // the given options, with the profile's checksum added
};

// Reads and checks the options, and the profile that they name. Errors: kInvalidArgument, and those of
// read_head_profile.
Result<SyncKvSetup> read_synckv_options(const PolicyOptions& given);

}  // namespace kvasir
