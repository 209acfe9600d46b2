// Finds the items of a task: in a benchmark's file, or generated from a seed.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "tasks/task.h"
#include "text/tokenizer.h"

namespace kvasir {

struct TaskDataOptions {
  std::string file;        // of the benchmark; empty: the items are generated
  std::int64_t limit = 0;  // items asked, from the first; 0: all
  int shots = -1;          // in place of the definition's; -1: those
  bool of_grid = false;    // messages name a grid's fields in place of options
  // Of generated items.
  std::int64_t tokens = 1024;  // of a prompt
  int count = 64;              // of items; with depths: of items per depth
  std::uint64_t seed = 1;
  std::vector<double> depths;
  std::string_view filler;
};

// Checks that an option changes something for at least one of the tasks. `option`: a field of TaskDataOptions (`file`,
// `shots`, `tokens`, `count`, `seed`, `depths` or `filler`); `typed`: how the user spells it. Errors: kInvalidArgument
// that says which tasks take it.
Status check_option(std::string_view option, std::string_view typed, std::span<const EvalTask> tasks);

// Checks that a task whose items are not generated has a file. Errors: kInvalidArgument that says where to name it.
Status check_file(const EvalTask& task, const TaskDataOptions& options);

struct TaskData {
  std::vector<TaskItem> items;  // those on one context, such as a document, share the cluster of the first of them
  std::size_t left_out = 0;     // items before the last of these that EvalTask::leave_out leaves out
  std::string fingerprint;      // XXH3-128 of all prompts, references and choices
  std::string described;        // one line: the file, or how the items were generated
};

// `tokenizer`: of generated items; may be null for those of a file. Errors: those of ItemFile::open, make_item and
// generate_items; kInvalidArgument for a task without a file that cannot be generated, and for a file without items
// beyond the examples and those that the task leaves out.
Result<TaskData> find_items(const EvalTask& task, const TaskDataOptions& options, const Tokenizer* tokenizer);

}  // namespace kvasir
