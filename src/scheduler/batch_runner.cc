#include "scheduler/batch_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/status.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// Ends the drafting of tasks, also where a pass throws.
class Drafters {
 public:
  Drafters(std::span<const Turn> turns, int most) {
    for (const Turn& turn : turns)
      if (most > 0 && turn.task->drafts_wanted() > 0) all_.push_back(turn.task);
    drafting_ = all_;
  }
  ~Drafters() {
    for (Task* task : all_) task->end_drafting();
  }
  Drafters(const Drafters&) = delete;
  Drafters& operator=(const Drafters&) = delete;

  std::vector<StepRequest> requests() const {
    std::vector<StepRequest> requests;
    for (Task* task : drafting_) requests.push_back({&task->sequence(), task->drafting_input(), nullptr});
    return requests;
  }
  // Gives each task its result, and drops those that have no further draft to make.
  void take(std::span<const StepResult> results) {
    std::vector<Task*> left;
    for (std::size_t i = 0; i < drafting_.size(); ++i)
      if (drafting_[i]->take_draft(results[i])) left.push_back(drafting_[i]);
    drafting_ = std::move(left);
  }
  bool done() const { return drafting_.empty(); }

 private:
  std::vector<Task*> all_;
  std::vector<Task*> drafting_;
};

}  // namespace

void BatchRunner::draft(std::span<const Turn> turns, int most) {
  Drafters drafters(turns, most);
  const Clock::time_point began = Clock::now();
  for (int i = 0; i < most && !drafters.done(); ++i) {
    const std::vector<StepRequest> requests = drafters.requests();
    const Step::Plan plan = step_.plan(requests);
    std::vector<StepResult> results(requests.size());
    if (!plan.fits || !step_.run(plan, requests, results).ok()) break;
    drafters.take(results);
  }
  drafting_seconds_ += seconds_since(began);
}

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
  const Clock::time_point began = Clock::now();
  const double drafting = std::exchange(drafting_seconds_, 0);
  KVASIR_RETURN_IF_ERROR(step_.run(plan, requests, results));
  // A row of logits is as long as the vocabulary: copying and drawing from 16 of them takes milliseconds on one thread.
  // Tasks share only what none of them changes: the logits, the model's configuration and its tokenizer.
  const double seconds = seconds_since(began);
  model_->threads->parallel_for(static_cast<int>(turns.size()), [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    try {
      turns[i].task->take(results[i]);
      turns[i].task->note_seconds(seconds, drafting);
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
