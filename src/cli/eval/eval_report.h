// Builds the reports of `kvasir eval`. Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/needle.h"
#include "eval/perplexity.h"
#include "eval/restream.h"
#include "report/report.h"

namespace kvasir::cli {

// Returns the last part of a path.
std::string text_name(const std::string& path);

// Returns one line about the measurement: model, kernels, threads.
std::string machine_line(const LoadedModel& model);

struct TextRuns {
  std::string file;
  std::vector<PerplexityResult> runs;  // one per policy; the same policies, in the same order, for every text
};

// REQUIRES: at least one text; `pooled` is empty if there is only one.
report::Report perplexity_report(const LoadedModel& model, const PerplexityOptions& options,
                                 std::span<const TextRuns> texts, std::span<const PerplexityResult> pooled);
report::Report needle_report(const LoadedModel& model, const NeedleOptions& options,
                             std::span<const NeedleResult> runs);
report::Report restream_report(const LoadedModel& model, std::int64_t fill, std::span<const RestreamResult> runs);

}  // namespace kvasir::cli
