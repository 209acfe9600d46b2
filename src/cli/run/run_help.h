// The parts of `kvasir run --help` besides the options themselves.
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir::cli {

// Groups the options of `run` and adds examples. Call it once all options are added.
void arrange_help(CLI::App& run);

}  // namespace kvasir::cli
