// Runs one task on one subject under one setting, and goes on with a run that ended early.
// Thread-safety: one run at a time per subject.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "harness/results.h"
#include "harness/subject.h"
#include "kvasir/status.h"
#include "tasks/task.h"

namespace kvasir {

// Returns how a task is asked: request, stop, numbers of tokens and truncation are its own, and it may have no chat.
AskOptions options_of(const EvalTask& task, AskOptions ask);

struct TaskRun {
  const EvalTask* task = nullptr;
  std::span<const TaskItem> items;
  AskOptions ask;            // before options_of()
  ResultLog* log = nullptr;  // has the questions that are answered already, and gets each new answer; may be null
  // Gets the questions done and in total; returns false to stop. May be empty. Also called between answers.
  std::function<bool(std::size_t done, std::size_t total)> progress;
  std::vector<QuestionResult>* partial = nullptr;  // gets the results so far of a run that ends early; may be null
};

// Returns the results of all questions, ordered by item and question. Errors: kCancelled; those of Subject::ask and
// ResultLog::add.
Result<std::vector<QuestionResult>> run_task(Subject& subject, const TaskRun& run);

}  // namespace kvasir
