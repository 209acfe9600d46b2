// Builds the page of `kvasir eval matrix`. Thread-safety: pure functions.
#pragma once

#include <vector>

#include "cli/command.h"
#include "harness/matrix.h"
#include "harness/results.h"
#include "report/report.h"

namespace kvasir::cli {

// A task under one setting.
struct MatrixCell {
  CacheSetting setting;
  Json json;  // schema "kvasir-eval/1"
  TaskSummary summary;
  std::vector<QuestionResult> questions;
};

// `cells`: [task][setting], in the grid's order. Differences are taken from the first setting, question by question.
report::Report matrix_report(const Matrix& matrix, const std::vector<std::vector<MatrixCell>>& cells);

}  // namespace kvasir::cli
