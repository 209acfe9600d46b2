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
  // `by_model`: those for which the draft model drafts; otherwise those for which the model itself does.
  Drafters(std::span<const Turn> turns, int most, bool by_model) {
    for (const Turn& turn : turns)
      if (most > 0 && turn.task->drafts_wanted() > 0 && turn.task->wants_draft_model() == by_model)
        all_.push_back(turn.task);
  }
  ~Drafters() {
    for (Task* task : all_) task->end_drafting();
  }
  Drafters(const Drafters&) = delete;
  Drafters& operator=(const Drafters&) = delete;

  std::span<Task* const> all() const { return all_; }

 private:
  std::vector<Task*> all_;
};

// A task and what the draft model holds of its text.
struct Drafter {
  Task* task = nullptr;
  DraftText* text = nullptr;
};

}  // namespace

void BatchRunner::draft(std::span<const Turn> turns, int most) {
  draft_itself(turns, most);
  draft_by_model(turns, most);
}

void BatchRunner::draft_itself(std::span<const Turn> turns, int most) {
  const Drafters drafters(turns, most, false);
  std::vector<Task*> drafting(drafters.all().begin(), drafters.all().end());
  const Clock::time_point began = Clock::now();
  for (int i = 0; i < most && !drafting.empty(); ++i) {
    std::vector<StepRequest> requests;
    for (Task* task : drafting) requests.push_back({&task->sequence(), task->drafting_input(), nullptr});
    const Step::Plan plan = step_.plan(requests);
    std::vector<StepResult> results(requests.size());
    if (!plan.fits || !step_.run(plan, requests, results).ok()) break;
    std::size_t at = 0;
    std::erase_if(drafting, [&](Task* task) { return !task->take_draft(results[at++]); });
  }
  drafting_seconds_ += seconds_since(began);
}

void BatchRunner::draft_by_model(std::span<const Turn> turns, int most) {
  const Drafters drafters(turns, most, true);
  if (drafters.all().empty()) return;
  constexpr const char* kNoRoom = "the KV memory has no room for the draft model's cache";
  if (draft_model_ == nullptr) {
    for (Task* task : drafters.all()) task->excuse_drafts(kNoRoom);
    return;
  }
  std::vector<Drafter> reading, drafting;
  std::int64_t longest = 0;
  for (Task* task : drafters.all()) {
    reading.push_back({task, &task->follow_draft(draft_model_)});
    longest = std::max(longest, reading.back().text->left());
  }
  Clock::time_point began = Clock::now();
  std::vector<StepRequest> requests;
  std::vector<StepResult> results;
  // A long text is read in parts, before as many passes: the other texts need not wait for it.
  for (int rows = kDraftRows; rows > 0 && !reading.empty();) {
    requests.clear();
    for (const Drafter& each : reading) {
      if (rows == 0) break;
      requests.push_back({each.text->sequence(), each.text->reading(rows), nullptr});
      rows -= static_cast<int>(std::min<std::int64_t>(rows, each.text->left()));
    }
    results.assign(requests.size(), {});
    if (!draft_model_->run(requests, results)) {
      for (std::size_t i = 0; i < requests.size(); ++i) reading[i].task->excuse_drafts(kNoRoom);
      break;
    }
    std::vector<Drafter> left(reading.begin() + std::ssize(requests), reading.end());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!results[i].status.ok()) continue;
      reading[i].text->note_read(results[i].tokens);
      if (reading[i].text->left() > 0) {
        left.push_back(reading[i]);
      } else if (reading[i].task->take_draft(results[i])) {
        drafting.push_back(reading[i]);
      }
    }
    reading = std::move(left);
  }
  if (longest > Sequence::kFewRows) began = Clock::now();
  for (int i = 1; i < most && !drafting.empty(); ++i) {
    requests.clear();
    for (const Drafter& each : drafting)
      requests.push_back({each.text->sequence(), each.text->drafting(each.task->newest_draft()), nullptr});
    results.assign(requests.size(), {});
    if (!draft_model_->run(requests, results)) break;
    std::size_t at = 0;
    std::erase_if(drafting, [&](const Drafter& each) {
      const StepResult& result = results[at++];
      if (!result.status.ok()) return true;
      each.text->note_run(each.task->newest_draft());
      return !each.task->take_draft(result);
    });
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
  if (!plan.fits && draft_model_ != nullptr && cache_->budget().make_available(plan.bytes)) plan = step_.plan(requests);
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
  for (const Turn& turn : turns) turn.task->settle_draft();
  return {};
}

}  // namespace kvasir
