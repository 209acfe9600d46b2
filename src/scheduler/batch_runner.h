// Runs passes over tasks: one Step for all sessions and requests of an engine.
// Thread-safety: one caller at a time.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/draft_model.h"
#include "scheduler/task.h"
#include "sequence/step.h"

namespace kvasir {

// A task's part in a pass. REQUIRES: its prepare() returned true; its text has a sequence.
struct Turn {
  Task* task = nullptr;
  int most_rows = std::numeric_limits<int>::max();
  // The pass calls prepare() after take(), so that tasks draw their next tokens on all threads. False if something
  // else, such as a fork, must come first.
  bool prepares = false;
};

class BatchRunner {
 public:
  BatchRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache)
      : model_(std::move(model)), cache_(std::move(cache)), step_(model_, cache_) {
    if (model_->draft != nullptr) draft_model_ = DraftModel::create(model_->draft, cache_);
  }

  // Returns what a pass would run and take. Changes nothing.
  Step::Plan plan(std::span<const Turn> turns) const { return step_.plan(requests_of(turns)); }
  Step::Plan plan(const Turn& turn) const { return plan({&turn, 1}); }

  // Lets the model and the draft model make the drafts that tasks want of them (Task::drafts_wanted), at most `most`
  // for each, by passes of their own. Call it before the pass that checks them, or never: then there are none. What
  // does not fit is left out.
  void draft(std::span<const Turn> turns, int most = kMostDrafts);
  // Returns the bytes of the cache's budget that the draft model holds, and gives back whenever others need them.
  std::uint64_t draft_bytes() const { return draft_model_ != nullptr ? draft_model_->bytes() : 0; }
  // Makes the draft model give back what it holds, as far as a pass needs it.
  void make_room(std::span<const Turn> turns) {
    if (draft_model_ != nullptr) static_cast<void>(cache_->budget().make_available(plan(turns).bytes));
  }
  // Makes the draft model give back all that it holds.
  void drop_drafts() {
    if (draft_model_ != nullptr) draft_model_->drop_all();
  }
  // Null: there is none, or the cache has no room for one.
  const DraftModel* draft_model() const { return draft_model_.get(); }
  // Runs one pass and gives each task its result, on all threads; a task fails alone (Task::status). Errors:
  // kResourceExhausted for a pass that does not fit: nothing has happened.
  Status pass(std::span<const Turn> turns);
  Status pass(Task& task) {
    const Turn turn{&task};
    draft({&turn, 1});
    return pass({&turn, 1});
  }

  const std::shared_ptr<LoadedModel>& model() const { return model_; }
  const std::shared_ptr<KvCache>& cache() const { return cache_; }
  Step& step() { return step_; }

 private:
  static std::vector<StepRequest> requests_of(std::span<const Turn> turns, bool drafts = true);
  void draft_itself(std::span<const Turn> turns, int most);
  void draft_by_model(std::span<const Turn> turns, int most);

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  Step step_;
  std::shared_ptr<DraftModel> draft_model_;
  double drafting_seconds_ = 0;  // since the last pass, without those of reading texts
};

}  // namespace kvasir
