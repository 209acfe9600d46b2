#include "scheduler/batch_runner.h"

#include <exception>

#include "base/status.h"

namespace kvasir {

std::vector<StepRequest> BatchRunner::requests_of(std::span<const Turn> turns, bool drafts) {
  std::vector<StepRequest> requests;
  requests.reserve(turns.size());
  for (const Turn& turn : turns) {
    const int most_rows = drafts || turn.task->drafts() == 0 ? turn.most_rows : 1;
    requests.push_back({&turn.task->sequence(), turn.task->input(most_rows), turn.task});
  }
  return requests;
}

Status BatchRunner::pass(std::span<const Turn> turns) {
  std::vector<StepRequest> requests = requests_of(turns);
  Step::Plan plan = step_.plan(requests);
  if (!plan.fits) {  // policies may need memory for their state of drafts
    requests = requests_of(turns, false);
    plan = step_.plan(requests);
  }
  std::vector<StepResult> results(requests.size());
  std::vector<std::exception_ptr> failures(requests.size());  // nothing may throw between the step and take()
  KVASIR_RETURN_IF_ERROR(step_.run(plan, requests, results));
  // A row of logits is as long as the vocabulary: copying and drawing from 16 of them takes milliseconds on one thread.
  // Tasks share only what none of them changes: the logits, the model's configuration and its tokenizer.
  model_->threads->parallel_for(static_cast<int>(turns.size()), [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    try {
      turns[i].task->take(results[i]);
    } catch (...) {
      failures[i] = std::current_exception();
      return;
    }
    try {
      if (turns[i].prepares) turns[i].task->prepare();
    } catch (...) {  // nothing has changed: the caller's prepare() tries again
    }
  });
  for (const std::exception_ptr& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
  return {};
}

}  // namespace kvasir
