// Builds the page about the cells of an evaluation. Thread-safety: pure functions.
#pragma once

#include <vector>

#include "cli/eval/cells.h"
#include "report/report.h"

namespace kvasir::cli {

// `cells`: [task][setting]. Differences are taken from a task's first cell, question by question.
report::Report cells_report(const std::vector<std::vector<Cell>>& cells);

}  // namespace kvasir::cli
