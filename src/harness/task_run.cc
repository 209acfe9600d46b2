#include "harness/task_run.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

using Place = std::pair<std::size_t, std::size_t>;  // item, question

}  // namespace

AskOptions options_of(const EvalTask& task, AskOptions ask) {
  ask.request = task.request;
  ask.stop = task.stop;
  ask.max_tokens = task.max_tokens;
  ask.min_tokens = task.min_tokens;
  ask.chat = ask.chat && task.chat;
  ask.truncation = task.truncation;
  return ask;
}

Result<std::vector<QuestionResult>> run_task(Subject& subject, const TaskRun& run) {
  // Answers of earlier runs, without those that failed: they are asked again.
  std::map<Place, QuestionResult> found;
  if (run.log != nullptr)
    for (const QuestionResult& result : run.log->found()) {
      if (result.item >= run.items.size() || result.question >= run.items[result.item].questions.size())
        return data_loss("the results of an earlier run name item {}, which there is not; remove them", result.item);
      if (!result.error.empty()) continue;
      QuestionResult& kept = found[{result.item, result.question}] = result;
      kept.cluster = run.items[result.item].cluster;
    }
  // An item with a question left is asked again as a whole, since a conversation's questions follow each other.
  std::vector<const TaskItem*> left;
  std::vector<std::size_t> index;
  std::size_t total = 0;
  for (std::size_t i = 0; i < run.items.size(); ++i) {
    const std::size_t questions = run.items[i].questions.size();
    total += questions;
    bool missing = false;
    for (std::size_t q = 0; q < questions; ++q) missing = missing || !found.contains({i, q});
    if (!missing) continue;
    left.push_back(&run.items[i]);
    index.push_back(i);
  }
  const auto go_on = [&] { return !run.progress || run.progress(found.size(), total); };
  Status failed;
  auto last = std::chrono::steady_clock::now();
  const auto take = [&](std::size_t item, std::size_t question, QuestionAnswer answer) {
    const auto now = std::chrono::steady_clock::now();
    const Place place{index[item], question};
    if (!found.contains(place)) {
      QuestionResult result = score_answer(*run.task, *left[item], index[item], question, std::move(answer));
      result.wall_seconds = std::chrono::duration<double>(now - std::exchange(last, now)).count();
      if (run.log != nullptr) failed = run.log->add(result);
      found[place] = std::move(result);
    }
    return failed.ok() && go_on();
  };
  Status status = !go_on() ? Status(StatusCode::kCancelled, "") : Status();
  if (status.ok() && !left.empty()) status = subject.ask(left, options_of(*run.task, run.ask), take, go_on);
  if (!failed.ok()) status = failed;
  std::vector<QuestionResult> results;
  for (auto& [place, result] : found) results.push_back(std::move(result));
  if (status.ok()) return results;
  if (run.partial != nullptr) *run.partial = std::move(results);
  return status;
}

}  // namespace kvasir
