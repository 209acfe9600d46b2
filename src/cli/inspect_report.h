// The report of `kvasir inspect`. Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "eval/inspect.h"
#include "report/report.h"

namespace kvasir::cli {

// `file` names the text; `text` is the one inspected; `matrix_layers` are those whose attention matrix is shown.
report::Report inspect_report(const LoadedModel& model, const std::string& file, const std::vector<TokenId>& text,
                              const InspectOptions& options, const InspectResult& result,
                              const std::vector<int>& matrix_layers);

// `shown` of `count` layers, at most all of them, evenly spread: the first and the last among them. REQUIRES: both at
// least 1.
std::vector<int> spread_layers(int shown, int count);

// The summary: [layers + 1][columns], the header first.
std::vector<std::vector<std::string>> inspect_table(const InspectResult& result);

}  // namespace kvasir::cli
