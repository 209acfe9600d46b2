#include "tasks/metrics/preparation.h"

#include <algorithm>
#include <iterator>

#include "tasks/metrics/exact_match.h"
#include "tasks/metrics/longbench.h"
#include "tasks/metrics/math_equivalence.h"
#include "tasks/metrics/python_text.h"

namespace kvasir {
namespace {

std::string first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(text.substr(0, text.find('\n')));
}

constexpr Preparation kPreparations[] = {
    {"lstrip", "Python, str.lstrip", [](std::string_view text) { return std::string(metrics::lstrip(text)); }},
    {"rstrip", "Python, str.rstrip", [](std::string_view text) { return std::string(metrics::rstrip(text)); }},
    {"strip", "Python, str.strip", [](std::string_view text) { return std::string(metrics::strip(text)); }},
    {"first_line", "THUDM/LongBench, LongBench/eval.py, scorer", first_line},
    {"ruler_postprocess", "NVIDIA/RULER, scripts/eval/evaluate.py, postprocess_pred", metrics::ruler_postprocess},
    {"longbench_v2_letter", "THUDM/LongBench, pred.py, extract_answer",
     [](std::string_view text) { return metrics::longbench_v2_letter(text).value_or(""); }},
    {"gsm8k_strict_match", "EleutherAI/lm-evaluation-harness, gsm8k.yaml, strict-match", metrics::gsm8k_strict_filter},
    {"gsm8k_flexible_extract", "EleutherAI/lm-evaluation-harness, gsm8k.yaml, flexible-extract",
     metrics::gsm8k_flexible_filter},
    {"between_dollars", "EleutherAI/lm-evaluation-harness, hendrycks_math/utils.py, process_results",
     metrics::between_dollars},
    {"last_boxed", "EleutherAI/lm-evaluation-harness, hendrycks_math/utils.py, last_boxed_only_string and remove_boxed",
     [](std::string_view text) { return metrics::last_boxed(text).value_or(""); }},
};

}  // namespace

std::string Preparation::apply(std::string_view prediction) const {
  return prepare(metrics::replace_invalid_utf8(prediction));
}

const Preparation* find_preparation(std::string_view name) {
  const auto* found = std::find_if(std::begin(kPreparations), std::end(kPreparations),
                                   [&](const Preparation& step) { return step.name == name; });
  return found == std::end(kPreparations) ? nullptr : found;
}

std::vector<std::string_view> preparation_names() {
  std::vector<std::string_view> names;
  for (const Preparation& step : kPreparations) names.push_back(step.name);
  return names;
}

}  // namespace kvasir
