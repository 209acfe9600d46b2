// Metrics of InfiniteBench, and those of SCBench that differ.
// Originals: OpenBMB/InfiniteBench src/compute_scores.py, microsoft/MInference scbench/compute_scores.py.
// "The answer" is the first reference; references are strings also where the data sets hold numbers.
// REQUIRES: valid UTF-8, at least one reference. Thread-safety: pure functions.
#pragma once

#include "tasks/metrics/metric.h"

namespace kvasir::metrics {

// 1 if the first number in the prediction is written as the answer is. For passkey and number_string.
double infinitebench_number(const MetricInput& input);
// 1 if the answer is one of the prediction's words.
double infinitebench_kv_retrieval(const MetricInput& input);
// 1 if the first number equals the answer, an int or, with a "." or an exponent, a float. An int answer and a number
// with decimals, where the original raises: 0.
double infinitebench_math_find(const MetricInput& input);
// Share of the answer's numbers, each a reference, that the prediction's numbers start with.
double infinitebench_math_calc(const MetricInput& input);
// 1 if the last word is an int that equals the answer.
double infinitebench_code_run(const MetricInput& input);
// 1 if the prediction names the function, references[0], or its letter, references[1], where an answer is expected. 0
// without two references.
double infinitebench_code_debug(const MetricInput& input);
// 1 if the letter or the text found in the prediction is one of the references.
double infinitebench_longbook_choice(const MetricInput& input);
// 1 if the answer, which is in upper case, is one of the prediction's words in upper case.
double infinitebench_longdialogue_qa(const MetricInput& input);
double infinitebench_longbook_sum(const MetricInput& input);

// 1 if the prediction contains the answer.
double scbench_kv_retrieval(const MetricInput& input);
// As InfiniteBench's, but the decimals of a number are cut off before it is compared with an int.
double scbench_math_find(const MetricInput& input);
// As InfiniteBench's, without the opening "correct option is:".
double scbench_code_debug(const MetricInput& input);
// 1 if the prediction contains one of the references, in any case.
double scbench_longdialogue_qa(const MetricInput& input);
// Share of the references that the prediction contains, in any case, rounded to two decimals.
double scbench_string_match_all(const MetricInput& input);

}  // namespace kvasir::metrics
