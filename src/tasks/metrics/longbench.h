// Metrics of LongBench (English and code), LongBench v2 and RULER.
// Originals: THUDM/LongBench LongBench/metrics.py and pred.py, NVIDIA/RULER scripts/eval.
// REQUIRES: valid UTF-8, at least one reference. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tasks/metrics/metric.h"

namespace kvasir::metrics {

// F1 of the words of both texts, normalised as in normalize_answer.
double word_f1(std::string_view prediction, std::string_view reference);

double qa_f1_score(const MetricInput& input);
double longbench_rouge_score(const MetricInput& input);
// 1 over the number of classes that the prediction names, if the reference is one of them.
double classification_score(const MetricInput& input);
// Share of the numbers in the prediction that equal the one after "Paragraph " in the reference.
double retrieval_score(const MetricInput& input);
// Share of the numbers in the prediction that equal the reference.
double count_score(const MetricInput& input);
// Similarity in whole per cent of the reference and the first line without "`", "#" and "//".
double code_sim_score(const MetricInput& input);

// Returns the letter, "A" to "D", after "The correct answer is", in brackets or else without; asterisks are ignored.
std::optional<std::string> longbench_v2_letter(std::string_view response);
double longbench_v2_accuracy(const MetricInput& input);

// Makes control characters line feeds, and strips.
std::string ruler_postprocess(std::string_view prediction);
// Share of the references that the prediction contains, in any case.
double string_match_all(const MetricInput& input);
// 1 if the prediction contains one of the references.
double string_match_part(const MetricInput& input);

}  // namespace kvasir::metrics
