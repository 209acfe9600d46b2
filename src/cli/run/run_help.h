// What `kvasir run --help` says beyond the options themselves.
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir::cli {

// Puts the options of `run` into groups, and examples behind them. Call it once all options are added.
void arrange_help(CLI::App& run);

}  // namespace kvasir::cli
