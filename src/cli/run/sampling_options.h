// The options of kvasir run that say how tokens are chosen, and what ends the text.
#pragma once

#include <CLI/CLI.hpp>

#include "kvasir/options.h"

namespace kvasir::cli {

inline constexpr const char* kSamplingOptions[] = {"--temp",
                                                   "--top-k",
                                                   "--top-p",
                                                   "--min-p",
                                                   "--top-n-sigma",
                                                   "--typical-p",
                                                   "--xtc-probability",
                                                   "--xtc-threshold",
                                                   "--dynatemp-range",
                                                   "--dynatemp-exponent",
                                                   "--repeat-penalty",
                                                   "--frequency-penalty",
                                                   "--presence-penalty",
                                                   "--penalty-window",
                                                   "--dry",
                                                   "--dry-base",
                                                   "--dry-length",
                                                   "--dry-window",
                                                   "--logit-bias",
                                                   "--seed"};

// Adds the options of kSamplingOptions.
void add_sampling_options(CLI::App& command, SamplingOptions& sampling);

// Adds --include-stop, --min-tokens, --stop-token-ids, --allowed-token-ids and --bad-words.
void add_ending_options(CLI::App& command, GenerateOptions& generate);

// Returns whether one of --min-tokens, --stop-token-ids, --allowed-token-ids and --bad-words is in effect.
bool limits_tokens(const GenerateOptions& generate);

}  // namespace kvasir::cli
