// Builds the report of `kvasir inspect`. Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "eval/inspect.h"
#include "report/report.h"
#include "runtime/loaded_model.h"

namespace kvasir::cli {

// `file`: the text's name. `matrix_layers`: the layers whose attention matrix is shown.
report::Report inspect_report(const LoadedModel& model, const std::string& file, const std::vector<TokenId>& text,
                              const InspectOptions& options, const InspectResult& result,
                              const std::vector<int>& matrix_layers);

// Returns min(shown, count) of `count` layers, evenly spread, first and last included. REQUIRES: both at least 1.
std::vector<int> spread_layers(int shown, int count);

// Returns the summary table [layers + 1][columns], the header first.
std::vector<std::vector<std::string>> inspect_table(const InspectResult& result);

}  // namespace kvasir::cli
