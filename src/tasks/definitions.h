// The definitions of tasks that are part of the program: those of the files of src/tasks/definitions.
// Thread-safety: immutable; built by the first call.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "tasks/task.h"

namespace kvasir {

struct TaskDefinition {
  std::string_view name;
  std::string_view text;  // JSON, for parse_task
};

// Returns all definitions, in order of name.
std::span<const TaskDefinition> task_definitions();

// Returns their names, in order.
std::vector<std::string_view> task_names();
// Returns the task of that name. Errors: kNotFound, with the nearest name of all tasks, generated ones too.
Result<EvalTask> built_in_task(std::string_view name);

}  // namespace kvasir
