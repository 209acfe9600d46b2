// Several sampled continuations of one context, side by side: forks that share the context's pages, one pass per token
// for all of them.
// Thread-safety: one caller at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/step.h"
#include "generation/generation.h"

namespace kvasir {

struct Sample {
  std::unique_ptr<Sequence> sequence;
  Generation generation;
  std::vector<float> logits;  // of its newest token
};

// Called with the number of a sample and the text that became complete; return false to cancel that sample.
using OnSampleText = std::function<bool(std::size_t sample, std::string_view text)>;

// Runs all generations to their ends. Where memory does not hold the next token of all, the newest samples end first
// (FinishReason::kKvMemory); a sample of which the logits are NaN ends the others too. REQUIRES: the sequences belong
// to the step's cache. Errors: kDataLoss.
Status run_samples(Step& step, std::span<Sample> samples, const OnSampleText& on_text);

}  // namespace kvasir
