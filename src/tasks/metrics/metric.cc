#include "tasks/metrics/metric.h"

#include <algorithm>
#include <iterator>

#include "tasks/metrics/exact_match.h"
#include "tasks/metrics/infinitebench.h"
#include "tasks/metrics/leval.h"
#include "tasks/metrics/longbench.h"
#include "tasks/metrics/math_equivalence.h"
#include "tasks/metrics/python_text.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr Metric kMetrics[] = {
    {"qa_f1_score", "THUDM/LongBench, LongBench/metrics.py, qa_f1_score", metrics::qa_f1_score},
    {"rouge_score", "THUDM/LongBench, LongBench/metrics.py, rouge_score", metrics::longbench_rouge_score},
    {"classification_score", "THUDM/LongBench, LongBench/metrics.py, classification_score",
     metrics::classification_score, true},
    {"retrieval_score", "THUDM/LongBench, LongBench/metrics.py, retrieval_score", metrics::retrieval_score},
    {"count_score", "THUDM/LongBench, LongBench/metrics.py, count_score", metrics::count_score},
    {"code_sim_score", "THUDM/LongBench, LongBench/metrics.py, code_sim_score", metrics::code_sim_score},
    {"longbench_v2_accuracy", "THUDM/LongBench, pred.py, extract_answer", metrics::longbench_v2_accuracy},

    {"string_match_all", "NVIDIA/RULER, scripts/eval/synthetic/constants.py, string_match_all",
     metrics::string_match_all},
    {"string_match_part", "NVIDIA/RULER, scripts/eval/synthetic/constants.py, string_match_part",
     metrics::string_match_part},

    {"exact_match", "EleutherAI/lm-evaluation-harness, lm_eval/api/metrics.py, exact_match_hf_evaluate",
     metrics::plain_exact_match},
    {"gsm8k_strict_match", "EleutherAI/lm-evaluation-harness, lm_eval/tasks/gsm8k/gsm8k.yaml, strict-match",
     metrics::gsm8k_strict_match},
    {"gsm8k_flexible_extract", "EleutherAI/lm-evaluation-harness, lm_eval/tasks/gsm8k/gsm8k.yaml, flexible-extract",
     metrics::gsm8k_flexible_extract},
    {"math_equivalence", "EleutherAI/lm-evaluation-harness, lm_eval/tasks/hendrycks_math/utils.py, is_equiv",
     metrics::math_equivalence},
    {"hendrycks_math", "EleutherAI/lm-evaluation-harness, lm_eval/tasks/hendrycks_math/utils.py, process_results",
     metrics::hendrycks_math},

    {"leval_exact_match", "OpenLMLab/LEval, Evaluation/em.py, exact_match_score", metrics::leval_exact_match},
    {"leval_exam", "OpenLMLab/LEval, Evaluation/auto_eval.py, process_output_mc", metrics::leval_exam},
    {"leval_exam_coursera", "OpenLMLab/LEval, Evaluation/auto_eval.py, process_output_mc",
     metrics::leval_exam_coursera},
    {"leval_gsm", "OpenLMLab/LEval, Evaluation/auto_eval.py, process_math", metrics::leval_gsm},
    {"leval_code", "OpenLMLab/LEval, Evaluation/auto_eval.py, process_output_code", metrics::leval_code},
    {"leval_f1", "OpenLMLab/LEval, Evaluation/f1.py, f1_score", metrics::qa_f1_score},
    {"leval_rouge_1", "OpenLMLab/LEval, Evaluation/rouge.py, compute_rouge", metrics::leval_rouge_1},
    {"leval_rouge_2", "OpenLMLab/LEval, Evaluation/rouge.py, compute_rouge", metrics::leval_rouge_2},
    {"leval_rouge_l", "OpenLMLab/LEval, Evaluation/rouge.py, compute_rouge", metrics::leval_rouge_l},

    {"infinitebench_passkey", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_passkey",
     metrics::infinitebench_number},
    {"infinitebench_number_string", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_number_string",
     metrics::infinitebench_number},
    {"infinitebench_kv_retrieval", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_kv_retrieval",
     metrics::infinitebench_kv_retrieval},
    {"infinitebench_math_find", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_math_find",
     metrics::infinitebench_math_find},
    {"infinitebench_math_calc", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_math_calc",
     metrics::infinitebench_math_calc},
    {"infinitebench_code_run", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_code_run",
     metrics::infinitebench_code_run},
    {"infinitebench_code_debug", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_code_debug",
     metrics::infinitebench_code_debug},
    {"infinitebench_longbook_choice_eng",
     "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_longbook_choice_eng",
     metrics::infinitebench_longbook_choice},
    {"infinitebench_longdialogue_qa_eng",
     "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_longdialogue_qa_eng",
     metrics::infinitebench_longdialogue_qa},
    {"infinitebench_longbook_qa_eng", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_longbook_qa_eng",
     metrics::qa_f1_score},
    {"infinitebench_longbook_sum_eng", "OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_longbook_sum_eng",
     metrics::infinitebench_longbook_sum},

    {"scbench_kv_retrieval", "microsoft/MInference, scbench/compute_scores.py, get_score_one_kv_retrieval",
     metrics::scbench_kv_retrieval},
    {"scbench_math_find", "microsoft/MInference, scbench/compute_scores.py, get_score_one_math_find",
     metrics::scbench_math_find},
    {"scbench_code_debug", "microsoft/MInference, scbench/compute_scores.py, get_score_one_code_debug",
     metrics::scbench_code_debug},
    {"scbench_longdialogue_qa_eng",
     "microsoft/MInference, scbench/compute_scores.py, get_score_one_longdialogue_qa_eng",
     metrics::scbench_longdialogue_qa},
    {"scbench_string_match_all", "microsoft/MInference, scbench/compute_scores.py, string_match_all",
     metrics::scbench_string_match_all},
};

std::vector<std::string> valid_copies(std::span<const std::string> texts) {
  std::vector<std::string> valid;
  for (const std::string& text : texts) valid.push_back(metrics::replace_invalid_utf8(text));
  return valid;
}

}  // namespace

double Metric::score(const MetricInput& input) const {
  if (input.references.empty()) return 0;
  const auto valid = [](std::string_view text) { return !find_invalid_utf8(text); };
  if (valid(input.prediction) && std::all_of(input.references.begin(), input.references.end(), valid) &&
      std::all_of(input.classes.begin(), input.classes.end(), valid)) {
    return compute(input);
  }
  const std::string prediction = metrics::replace_invalid_utf8(input.prediction);
  const std::vector<std::string> references = valid_copies(input.references);
  const std::vector<std::string> classes = valid_copies(input.classes);
  return compute({prediction, references, classes});
}

const Metric* find_metric(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kMetrics), std::end(kMetrics), [&](const Metric& metric) { return metric.name == name; });
  return found == std::end(kMetrics) ? nullptr : found;
}

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const Metric& metric : kMetrics) names.push_back(metric.name);
  return names;
}

}  // namespace kvasir
