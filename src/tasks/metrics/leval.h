// Metrics of L-Eval.
// Originals: OpenLMLab/LEval Evaluation/auto_eval.py, em.py, f1.py and rouge.py.
// REQUIRES: valid UTF-8, at least one reference. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "tasks/metrics/metric.h"

namespace kvasir::metrics {

// exact_match_score(): for a reference of letters A to D, 1 if the prediction is the same, 0.25 if it has no other
// letters. Otherwise 1 if both are equal numbers, or, unless both are numbers, if the prediction contains the
// reference.
double leval_exact_match(const MetricInput& input);

// exact_match_score() after the answers were extracted: one letter (quality, tpo), several letters (coursera), a number
// (gsm100), the output of a program (codeU).
double leval_exam(const MetricInput& input);
double leval_exam_coursera(const MetricInput& input);
double leval_gsm(const MetricInput& input);
double leval_code(const MetricInput& input);

double leval_rouge_1(const MetricInput& input);
double leval_rouge_2(const MetricInput& input);
double leval_rouge_l(const MetricInput& input);

}  // namespace kvasir::metrics
