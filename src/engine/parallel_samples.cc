#include "engine/parallel_samples.h"

#include "base/status.h"
#include "engine/context_rules.h"

namespace kvasir {

Status run_samples(Step& step, std::span<Sample> samples, const OnSampleText& on_text) {
  const auto show = [&](std::size_t sample, std::string_view text) {
    if (!text.empty() && on_text && !on_text(sample, text)) samples[sample].generation.finish(FinishReason::kCancelled);
  };
  std::vector<TokenId> tokens(samples.size());
  std::vector<std::size_t> running;
  std::vector<StepRequest> requests;
  std::vector<StepResult> results;
  for (;;) {
    running.clear();
    requests.clear();
    for (std::size_t s = 0; s < samples.size(); ++s) {
      Sample& sample = samples[s];
      if (sample.generation.finished()) continue;
      KVASIR_ASSIGN_OR_RETURN(const std::optional<TokenId> token, sample.generation.push(sample.logits));
      if (!token) continue;
      if (context_left(*sample.sequence) < 1) {
        sample.generation.finish(FinishReason::kContext);
        continue;
      }
      tokens[s] = *token;
      running.push_back(s);
      requests.push_back({sample.sequence.get(), {{&tokens[s], 1}, Source::kGenerated}});
    }
    Step::Plan plan = step.plan(requests);
    while (!plan.fits && !requests.empty()) {
      samples[running.back()].generation.finish(FinishReason::kKvMemory);
      samples[running.back()].sequence.reset();  // its pages go to the others
      running.pop_back();
      requests.pop_back();
      plan = step.plan(requests);
    }
    if (requests.empty()) break;
    results.assign(requests.size(), {});
    KVASIR_RETURN_IF_ERROR(step.run(plan, requests, results));
    for (std::size_t i = 0; i < running.size(); ++i) {
      Sample& sample = samples[running[i]];
      KVASIR_RETURN_IF_ERROR(results[i].status);
      sample.logits.assign(results[i].logits.begin(), results[i].logits.end());
      show(running[i], sample.generation.accept(tokens[running[i]]));
    }
  }
  for (std::size_t s = 0; s < samples.size(); ++s)
    for (std::string text = samples[s].generation.flush(); !text.empty(); text = samples[s].generation.flush()) {
      if (on_text && !on_text(s, text)) break;
    }
  return {};
}

}  // namespace kvasir
